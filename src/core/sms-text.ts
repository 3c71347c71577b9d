import iconv from "iconv-lite";
import { type CodeLengths, codeLengthRange } from "./code.ts";
import { codeCandidates, isWebSent, normaliseText } from "./message-text.ts";
import type { CodeFormat } from "./project.ts";

/**
 * "[merchant] number check CODE, do not send it if somebody else asks you to." Relay phishing is the main threat, so the SMS
 * that the user sends contains the merchant's name and the warning. It does not say 본인확인, which in Korean law is the
 * identification of a person by a designated agency. With the longest numeric code (10) this leaves 19 Hangul
 * syllables or 35 ASCII characters for the name, with the longest alphanumeric one (12) 18 or 33. The code stands between
 * Hangul, so that no character of a name can join it.
 */
export const defaultSmsTemplate = "[{project}] 번호확인 {code} 타인이 요청하면 보내지 마세요";

/** The size of one Korean SMS, in bytes of CP949. */
const smsByteLimit = 90;
/** The size of one SMS in UCS-2, the encoding handsets use for text that is not pure ASCII. */
const smsUnicodeLimit = 70;

export interface SmsTextSettings {
  readonly template: string;
  readonly projectName: string;
  readonly codeFormat: CodeFormat;
  readonly codeLength: number;
}

/** `field` is the project setting that has to change. */
export interface SmsTextViolation {
  readonly field: "sms_template" | "name";
  readonly message: string;
}

/** How many forbidden characters a violation lists, so that it stays short and readable. */
const shownCharacters = 10;

/** Replaces in one pass, so that a project name containing `{code}` stays as it is. */
export function renderSmsText(template: string, projectName: string, code: string): string {
  return template.replace(/\{(code|project)\}/g, (_, placeholder: string) =>
    placeholder === "code" ? code : projectName,
  );
}

/**
 * Checks that every text rendered with these settings is one SMS from which its code can be extracted again. Runs when the
 * template, the name, or the code's format or length is saved, with the longest code the format allows: codes get longer when a
 * number runs out of free ones, and the text must still fit then.
 */
export function checkSmsTemplate(settings: SmsTextSettings): SmsTextViolation[] {
  const { template, projectName, codeFormat, codeLength } = settings;
  const violations: SmsTextViolation[] = [];
  const violate = (field: SmsTextViolation["field"], message: string) => violations.push({ field, message });

  const fixedText = template.replace(/\{(?:code|project)\}/g, "");
  const codes = template.split("{code}").length - 1;
  const projects = template.split("{project}").length - 1;
  if (codes !== 1) violate("sms_template", "must contain {code} exactly once");
  if (projects > 1) violate("sms_template", "must contain {project} at most once");
  if (/[{}]/.test(fixedText)) {
    violate("sms_template", "must not contain braces other than {code} and {project}");
  }
  checkCharacters("sms_template", fixedText);
  if (projects > 0) checkCharacters("name", projectName);
  if (violations.length > 0) return violations;

  const longestCode = "0".repeat(codeLengthRange(codeFormat).max);
  const longest = renderSmsText(template, projectName, longestCode);
  // The default template can only fail because of the name, and the project's owner may not know that there is a template.
  const isDefault = template === defaultSmsTemplate;
  const violateText = (fault: string) =>
    isDefault
      ? violate(
          "name",
          `with the default template, results in a text ${fault}: choose another name, or set sms_template`,
        )
      : violate("sms_template", `results in a text ${fault}`);
  const bytes = cp949ByteLength(longest) ?? Number.POSITIVE_INFINITY;
  if (bytes > smsByteLimit) {
    violateText(`of ${bytes} bytes with the longest code, but one SMS holds ${smsByteLimit}`);
  } else if (longest.length > smsUnicodeLimit && !isAscii(longest)) {
    violateText(
      `of ${longest.length} characters with the longest code, but one SMS that is not pure ASCII holds ${smsUnicodeLimit}`,
    );
  }
  if (isWebSent(normaliseText(longest))) violateText("that would be recognised as sent from the web");
  if (!matchesBack()) {
    violateText("in which the code cannot be distinguished from the letters and digits around it");
  }
  return violations;

  function checkCharacters(field: SmsTextViolation["field"], text: string): void {
    if (/[^\P{Cc}\n]/u.test(text) || (field === "name" && text.includes("\n"))) {
      violate(field, "must not contain control characters");
      return;
    }
    const outside = new Set([...text].filter((character) => cp949ByteLength(character) === null));
    if (outside.size > 0) {
      const shown = [...outside].slice(0, shownCharacters).join(" ");
      const more = outside.size > shownCharacters ? ` and ${outside.size - shownCharacters} more` : "";
      violate(field, `must not contain characters that a Korean SMS cannot carry: ${shown}${more}`);
    }
  }

  function matchesBack(): boolean {
    const longestLength = codeLengthRange(codeFormat).max;
    for (let length = codeLength; length <= longestLength; length++) {
      for (const digits of sampleDigits) {
        const code = digits.slice(0, length);
        const text = normaliseText(renderSmsText(template, projectName, code));
        const { candidates, capped } = codeCandidates(text, allCodeLengths);
        if (capped || !candidates.includes(code)) return false;
      }
    }
    return true;
  }
}

/**
 * The candidates for the code in a text rendered with settings like these: groups in the settings' code format that the
 * template and name do not contain themselves. If the settings have changed since, there may be several or none.
 */
export function codesIn(
  smsText: string,
  { template, projectName, codeFormat }: Omit<SmsTextSettings, "codeLength">,
): string[] {
  const lengths = { numeric: [], alphanumeric: [], [codeFormat]: allCodeLengths[codeFormat] };
  const candidatesOf = (text: string) => codeCandidates(normaliseText(text), lengths).candidates;
  const around = candidatesOf(renderSmsText(template, projectName, ","));
  return candidatesOf(smsText).filter((candidate) => !around.includes(candidate));
}

/** The text's length in bytes of CP949; null if it has a character outside CP949, which encoders would silently replace. */
export function cp949ByteLength(text: string): number | null {
  const encoded = iconv.encode(text, "cp949");
  return iconv.decode(encoded, "cp949") === text ? encoded.length : null;
}

/**
 * All lengths, because a number is shared by projects with any settings: a text's code must be extractable among all of these.
 */
const allCodeLengths: CodeLengths = {
  numeric: lengthsOf("numeric"),
  alphanumeric: lengthsOf("alphanumeric"),
};

function lengthsOf(format: CodeFormat): number[] {
  const { min, max } = codeLengthRange(format);
  return Array.from({ length: max - min + 1 }, (_, index) => min + index);
}

/**
 * Digits 2 to 9 are in both alphabets, so a code made of them joins with adjacent characters more readily than any other. Two
 * samples, in case the text itself happens to contain one of them.
 */
const sampleDigits = ["234567892345", "987654329876"];

function isAscii(text: string): boolean {
  return /^[\x00-\x7f]*$/.test(text);
}
