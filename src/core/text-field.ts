import type { FieldViolation } from "../failures.ts";

/**
 * The rules of every text field a caller sends: its length in code points, and nothing in it that cannot be
 * stored or sent on (NUL, lone surrogates).
 */
export function checkText(
  field: string,
  text: string,
  bounds: { readonly required?: true; readonly max: number },
): FieldViolation | undefined {
  if (text.includes("\u0000")) return { field, message: "must not contain the character NUL" };
  if (!text.isWellFormed())
    return { field, message: "must be well-formed Unicode: it holds a lone surrogate" };
  const length = codePointLength(text, bounds.max);
  if (length > bounds.max) return { field, message: `must be at most ${bounds.max} characters` };
  if (bounds.required && length === 0) return { field, message: "must not be empty" };
  return undefined;
}

/** Exact only up to `max`, which most texts meet by their length in code units alone. */
function codePointLength(text: string, max: number): number {
  if (text.length <= max) return text.length;
  let length = 0;
  for (const _ of text) length++;
  return length;
}
