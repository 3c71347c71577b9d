import type { FieldViolation } from "../failures.ts";

const nationalMobile = /^010\d{8}$/;

/** Nothing to rewrite: what almost every message carries, at a tenth of the cost. */
const onlyDigits = /^\d+$/;

/** Invisible characters too: copying a number from a contact list brings direction marks along. */
const white = /[\s\p{Default_Ignorable_Code_Point}]/gu;
const hyphens = /[-\u2010-\u2015\u2043\u2212]/g;

/** `(0)` and a trunk 0 after the country code are common slips, and cannot mean anything else. */
const mobile = /^(?:(?:\+|00)?82(?:0|\(0\))?|0)10(\d{8})$/;

/**
 * A Korean 010 mobile number as national digits, `01012345678`, or null. Takes spaces and hyphens, the
 * country code as `+82`, `82` or `0082`, and full-width characters.
 *
 * Written by hand, since every inbound message passes here: libphonenumber-js takes 3.4 µs, reads
 * extensions and prose around a number, and refuses 010-597x to 010-599x. It is the tests' oracle.
 */
export function normaliseMobile(text: string): string | null {
  if (nationalMobile.test(text)) return text;
  const subscriber = mobile.exec(withoutSeparators(text))?.[1];
  return subscriber === undefined ? null : `010${subscriber}`;
}

/** What is wrong with a field that should hold what `normaliseMobile` takes. */
export function notMobile(field: string): FieldViolation {
  return { field, message: "must be a 010 mobile number, such as 010-1234-5678" };
}

/**
 * With the country code a number lacks its trunk 0. A bare `82` counts as one only before 8 digits or
 * more: no national number begins with it, but a short code may (`8282`).
 */
const countryCode = /^(?:(?:\+|00)82(?:\(0\))?|82(?:\(0\)|(?=\d{8})))(\d+)$/;

/** 1588-1234 and its like: dialled without a trunk 0. Area codes with their shortest numbers never begin with 1. */
const nationwide = /^1\d{7}$/;

/** `00` is the way abroad; `#` alone is no number. */
const dialable = /^(?!00)(?=.*\d)[\d#]{3,20}$/;

/**
 * A destination as a handset dials it: 3 to 20 national digits, `#` allowed (`#1234`), or null. Takes
 * the same spellings as `normaliseMobile`.
 */
export function normaliseDestination(text: string): string | null {
  const dialled = withoutSeparators(text);
  const significant = countryCode.exec(dialled)?.[1];
  const national = significant === undefined ? dialled : withTrunkPrefix(significant);
  return national !== null && dialable.test(national) ? national : null;
}

/** What is wrong with a field that should hold what `normaliseDestination` takes. */
export function notDestination(field: string): FieldViolation {
  return { field, message: "must be 3 to 20 digits or # that a handset can dial" };
}

/** `010-****-5678`, for logs and the window. What is no mobile number is masked whole. */
export function maskPhone(phone: string): string {
  return nationalMobile.test(phone) ? `010-****-${phone.slice(7)}` : "****";
}

function withTrunkPrefix(significant: string): string | null {
  if (significant.startsWith("0") || nationwide.test(significant)) return significant;
  // The shortest number with an area code, 2-123-4567, has 8 digits; short codes have no country code.
  return significant.length < 8 ? null : `0${significant}`;
}

function withoutSeparators(text: string): string {
  if (onlyDigits.test(text)) return text;
  return text.normalize("NFKC").replace(white, "").replace(hyphens, "");
}
