/** Analyses a message's text: whether it was sent from the web, and which codes it may contain. */

import { type CodeLengths, codeAlphabets } from "./code.ts";

export interface CodeCandidates {
  /** Distinct, in the order of the text, letters in upper case. */
  readonly candidates: string[];
  /** There were more than `candidateLimit`, so the message is ambiguous whatever the candidates are. */
  readonly capped: boolean;
}

/**
 * Limits how many codes one message can try. A 12-character code sent with a space after each character makes 28 candidates.
 */
export const candidateLimit = 32;

/** Printable ASCII and Hangul syllables with single spaces: already normalised. */
const plain = /^(?! )(?:[!-~\uAC00-\uD7A3]| (?! ))*$/;

/** Default-ignorable, but displayed and typed as blanks: removing them would join two words. */
const hangulFillers = /[\u115F\u1160\u3164\uFFA0]/g;
const invisible = /\p{Default_Ignorable_Code_Point}/gu;
/** Excludes single spaces, which need no replacement. */
const whiteSpace = / [\s\p{Cc}]+|[[\s\p{Cc}]--[ ]][\s\p{Cc}]*/gv;
/**
 * Combining marks, and the two voiced sound marks of half-width kana, which NFKC turns into combining marks. Only the first 30
 * in a row are kept, the limit of Unicode's stream-safe text format (UAX #15) and more than any language uses: NFKC sorts them
 * in time quadratic in their number.
 */
const runOfMarks = /([\p{M}\uFF9E\uFF9F]{1,30})[\p{M}\uFF9E\uFF9F]*/gu;
/** NFKC turns ´ ¨ ‾ and the like, typed as quotes, into a space and a mark. Left alone, the mark would join the next group. */
const strayMarks = /(^| )\p{M}+/gu;

declare const normalised: unique symbol;
/** A text normalised by `normaliseText`. Searching any other text for codes or the web mark is a type error. */
export type NormalText = string & { readonly [normalised]: true };

/**
 * NFKC without invisible characters. Each run of white space and control characters becomes one space, none at the ends;
 * accents without a letter become apostrophes. Invisible characters are removed before NFKC, since they would keep the
 * characters around them from composing and would break up a run of too many marks.
 */
export function normaliseText(text: string): NormalText {
  return (plain.test(text) && !text.endsWith(" ") ? text : composed(text)) as NormalText;
}

function composed(text: string): string {
  return text
    .replace(hangulFillers, " ")
    .replace(invisible, "")
    .replace(runOfMarks, "$1")
    .normalize("NFKC")
    .replace(whiteSpace, " ")
    .replace(strayMarks, "$1'")
    .trim();
}

/**
 * The mark that carriers prepend to messages that were not sent from a handset, in any bracket, spacing and case, `Web` also in
 * Hangul, and both words combined: `[국제웹발신]`. Only punctuation and symbols may precede it: a mark further on is the sender's
 * own text or a quotation.
 */
const webMark =
  /^[\p{P}\p{S}\p{C} ]*[\p{Ps}\p{Pi}<≪] ?(?:(?:국 ?제 ?)?(?:w ?e ?b|웹)|국 ?제|국 ?외) ?발 ?신 ?[\p{Pe}\p{Pf}>≫]/iu;

export function isWebSent(text: NormalText): boolean {
  return webMark.test(text);
}

/** Bit flags of a group's characters: it belongs to a group, and which formats it rules out for the group's text. */
const ofGroup = 1;
const notNumeric = 2;
const notAlphanumeric = 4;
/** Any other letter, digit or combining mark: part of its group, which therefore cannot be a code. */
const foreign = ofGroup | notNumeric | notAlphanumeric;

/** Classes of characters that do not belong to a group. */
const endsGroup = -1;
const endsRun = -2;

/**
 * Class by code point, filled on first use; 0: not classified yet. Testing a character's Unicode properties takes as long as a
 * hundred look-ups here, and classifying all code points would add a tenth of a second to each start. Untouched pages use no
 * memory.
 */
const classes = new Int8Array(0x110000);

/**
 * Scripts written without spaces, as Hangul often is: their characters end a group instead of joining it. The long-vowel mark ー
 * (U+30FC) ends many kana words, but Unicode counts it to no script since several use it.
 */
const unspaced = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\u30fc]/u;
const letterDigitOrMark = /[\p{L}\p{N}\p{M}]/u;

/**
 * The substrings of a message that may be a code: a group of letters and digits, or consecutive whole groups with only spaces
 * and hyphens between them, whose total length is in use and whose characters all belong to that format's alphabet. Never a
 * part of a group: 123456 is not in 12345678.
 *
 * Takes time linear in the text: no more groups are joined than the longest length has characters.
 */
export function codeCandidates(normal: NormalText, lengthsInUse: CodeLengths): CodeCandidates {
  const longest = Math.max(...lengthsInUse.numeric, ...lengthsInUse.alphanumeric);
  const candidates: string[] = [];
  let run: Group[] = [];
  let group: Group | null = null;

  for (let index = 0; index < normal.length; index++) {
    const character = normal.codePointAt(index) as number;
    const characterClass = classes[character] || classify(character);
    const width = character > 0xffff ? 2 : 1;
    if (characterClass > 0) {
      if (group === null) {
        group = { start: index, end: index, excluded: 0 };
        run.push(group);
      }
      group.end = index + width;
      group.excluded |= characterClass;
    } else {
      group = null;
      if (characterClass === endsRun && run.length > 0) {
        if (!collect(run)) return { candidates, capped: true };
        run = [];
      }
    }
    index += width - 1;
  }
  return { candidates, capped: !collect(run) };

  /** Returns false if there is one candidate too many. */
  function collect(groups: readonly Group[]): boolean {
    // The run without its separators; every candidate is a slice of it.
    const starts: number[] = [];
    let compact = "";
    for (const { start, end } of groups) {
      starts.push(compact.length);
      compact += normal.slice(start, end);
    }
    for (let first = 0; first < groups.length; first++) {
      const from = starts[first] as number;
      let length = 0;
      let excluded = 0;
      for (let last = first; last < groups.length; last++) {
        const { start, end, excluded: excludedHere } = groups[last] as Group;
        length += end - start;
        excluded |= excludedHere;
        if (length > longest || excluded === foreign) break;
        const isCandidate =
          ((excluded & notNumeric) === 0 && lengthsInUse.numeric.includes(length)) ||
          ((excluded & notAlphanumeric) === 0 && lengthsInUse.alphanumeric.includes(length));
        if (!isCandidate) continue;
        const candidate = compact.slice(from, from + length).toUpperCase();
        if (candidates.includes(candidate)) continue;
        if (candidates.length === candidateLimit) return false;
        candidates.push(candidate);
      }
    }
    return true;
  }
}

/** Whether a message with this text may contain one of the codes. Always true if it has too many candidates. */
export function mayCarry(text: string, codes: readonly string[]): boolean {
  const lengths = codes.map(({ length }) => length);
  const { candidates, capped } = codeCandidates(normaliseText(text), {
    numeric: lengths,
    alphanumeric: lengths,
  });
  return capped || candidates.some((candidate) => codes.includes(candidate));
}

interface Group {
  start: number;
  end: number;
  excluded: number;
}

function classify(character: number): number {
  const characterClass = classOf(character);
  classes[character] = characterClass;
  return characterClass;
}

function classOf(character: number): number {
  if (isHangul(character)) return endsRun;
  if (isSpaceOrHyphen(character)) return endsGroup;
  const text = String.fromCodePoint(character);
  if (/[0-9A-Za-z]/.test(text)) {
    const upperCase = text.toUpperCase();
    return (
      ofGroup |
      (codeAlphabets.numeric.includes(upperCase) ? 0 : notNumeric) |
      (codeAlphabets.alphanumeric.includes(upperCase) ? 0 : notAlphanumeric)
    );
  }
  return letterDigitOrMark.test(text) && !unspaced.test(text) ? foreign : endsRun;
}

/** Syllables, and the jamo and tone marks that NFKC leaves unchanged. */
function isHangul(character: number): boolean {
  return (
    (character >= 0xac00 && character <= 0xd7ff) ||
    (character >= 0x1100 && character <= 0x11ff) ||
    (character >= 0xa960 && character <= 0xa97f) ||
    character === 0x302e ||
    character === 0x302f
  );
}

/** Includes ‐ ‒ – — ― ⁃ and −, which keyboards and "smart" punctuation insert in place of a hyphen. */
function isSpaceOrHyphen(character: number): boolean {
  return (
    character === 0x20 ||
    character === 0x2d ||
    (character >= 0x2010 && character <= 0x2015) ||
    character === 0x2043 ||
    character === 0x2212
  );
}
