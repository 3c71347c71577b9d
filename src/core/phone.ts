import type { FieldViolation } from "../failures.ts";

const nationalMobile = /^010\d{8}$/;

/** Text of digits only needs no cleaning. Almost every message has such numbers, and this test takes a tenth of the time. */
const onlyDigits = /^\d+$/;

/**
 * In UTF-16 code units: twice what an SMS source may send. NFKC takes time quadratic in the number of combining marks: 0.2 s for 64
 * KiB of them.
 */
const longestSpelling = 128;

/** Invisible characters too: a number copied from a contact list often contains bidirectional marks. */
const white = /[\s\p{Default_Ignorable_Code_Point}]/gu;
const hyphens = /[-\u2010-\u2015\u2043\u2212]/g;

/** `(0)` and a trunk 0 after the country code are common mistakes and unambiguous. */
const mobile = /^(?:(?:\+|00)?82(?:0|\(0\))?|0)10(\d{8})$/;

/**
 * Normalises a Korean 010 mobile number to national digits, `01012345678`; null for anything else. Accepts spaces and
 * hyphens, the country code as `+82`, `82` or `0082`, and full-width characters.
 *
 * Handwritten, since every inbound message passes through it: libphonenumber-js takes 3.4 µs, accepts extensions and
 * prose around a number, and rejects 010-597x to 010-599x. The tests use it as their oracle.
 */
export function normaliseMobile(text: string): string | null {
  if (nationalMobile.test(text)) return text;
  const subscriber = mobile.exec(withoutSeparators(text))?.[1];
  return subscriber === undefined ? null : `010${subscriber}`;
}

/** The violation for a field that `normaliseMobile` rejects. */
export function notMobile(field: string): FieldViolation {
  return { field, message: "must be a 010 mobile number, such as 010-1234-5678" };
}

/**
 * After the country code a number lacks its trunk 0. A bare `82` is taken as the country code only before at least 8
 * digits: no national number begins with 82, but a short code may (`8282`).
 */
const countryCode = /^(?:(?:\+|00)82(?:\(0\))?|82(?:\(0\)|(?=\d{8})))(\d+)$/;

/** Nationwide numbers such as 1588-1234, dialled without a trunk 0. No area code begins with 1. */
const nationwide = /^1\d{7}$/;

/** A leading `00` is the international prefix; `#` without a digit is not a number. */
const dialable = /^(?!00)(?=.*\d)[\d#]{3,20}$/;

/**
 * Normalises a destination to what a handset dials: 3 to 20 national digits, `#` allowed (`#1234`); null for anything
 * else. Accepts the same spellings as `normaliseMobile`.
 */
export function normaliseDestination(text: string): string | null {
  const dialled = withoutSeparators(text);
  const significant = countryCode.exec(dialled)?.[1];
  const national = significant === undefined ? dialled : withTrunkPrefix(significant);
  return national !== null && dialable.test(national) ? national : null;
}

/** The violation for a field that `normaliseDestination` rejects. */
export function notDestination(field: string): FieldViolation {
  return { field, message: "must be 3 to 20 digits or # that a handset can dial" };
}

/** `010-****-5678`, for logs and the window. Anything but a mobile number is masked completely. */
export function maskPhone(phone: string): string {
  return nationalMobile.test(phone) ? `010-****-${phone.slice(7)}` : "****";
}

function withTrunkPrefix(significant: string): string | null {
  if (significant.startsWith("0") || nationwide.test(significant)) return significant;
  // The shortest number with an area code, 2-123-4567, has 8 digits; short codes are never written with a country code.
  return significant.length < 8 ? null : `0${significant}`;
}

/** Empty for a text that is too long. */
function withoutSeparators(text: string): string {
  if (text.length > longestSpelling) return "";
  if (onlyDigits.test(text)) return text;
  return text.normalize("NFKC").replace(white, "").replace(hyphens, "");
}
