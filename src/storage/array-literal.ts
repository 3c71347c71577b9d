/**
 * PostgreSQL array literals for the batched statements. The driver's own conversion walks every element
 * with several regular expressions; on a batch of creations that costs more than all the rest of the call.
 */

/** For elements that need no quoting: numbers, UUIDs, hexadecimal, enum values. Null becomes NULL. */
export function plainArray(elements: readonly (string | number | null)[]): string {
  let literal = "{";
  for (let index = 0; index < elements.length; index++) {
    if (index > 0) literal += ",";
    literal += elements[index] ?? "NULL";
  }
  return `${literal}}`;
}

/** For booleans. */
export function flagArray(elements: readonly boolean[]): string {
  return plainArray(elements.map((element) => (element ? "t" : "f")));
}

const special = /["\\]/;
const eachSpecial = /["\\]/g;

/** For any text. Null becomes NULL; the word "null" stays a word, since every element is quoted. */
export function textArray(elements: readonly (string | null)[]): string {
  let literal = "{";
  for (let index = 0; index < elements.length; index++) {
    const element = elements[index];
    if (index > 0) literal += ",";
    if (element === null || element === undefined) literal += "NULL";
    else if (special.test(element)) literal += `"${element.replace(eachSpecial, "\\$&")}"`;
    else literal += `"${element}"`;
  }
  return `${literal}}`;
}
