import fc from "fast-check";

/**
 * Any code point, including lone surrogates. fast-check's own "binary" builds a table of all of them for each string.
 */
export const anyCharacter = fc.integer({ min: 0, max: 0x10ffff }).map((point) => String.fromCodePoint(point));
