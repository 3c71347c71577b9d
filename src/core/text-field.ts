import type { FieldViolation } from "../failures.ts";

/** Checks a text field's length in code points, and that it can be stored and transmitted (no NUL, no lone surrogates). */
export function checkText(
  field: string,
  text: string,
  bounds: { readonly required?: true; readonly max: number },
): FieldViolation | undefined {
  if (text.includes("\0")) return { field, message: "must not contain the character NUL" };
  if (!text.isWellFormed())
    return { field, message: "must be well-formed Unicode: it contains a lone surrogate" };
  if (!isWithin(text, bounds.max)) return { field, message: `must be at most ${bounds.max} characters` };
  if (bounds.required && text === "") return { field, message: "must not be empty" };
  return undefined;
}

/** Whether `checkText` accepts the text. PostgreSQL's `text` cannot hold NUL, and UTF-8 no lone surrogate. */
export function isStorable(text: string, max: number): boolean {
  return isWithin(text, max) && !text.includes("\0") && text.isWellFormed();
}

/** Counts code points only if the number of UTF-16 units does not decide. */
function isWithin(text: string, max: number): boolean {
  if (text.length <= max) return true;
  if (text.length > 2 * max) return false;
  let count = 0;
  for (const _ of text) count++;
  return count <= max;
}
