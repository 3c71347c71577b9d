import fc from "fast-check";

/** Any code point, halves of pairs among them. fast-check's own "binary" makes a table of all of them for each string. */
export const anyCharacter = fc.integer({ min: 0, max: 0x10ffff }).map((point) => String.fromCodePoint(point));
