import iconv from "iconv-lite";
import { type CodeLengths, codeLengthRange } from "./code.ts";
import { codeCandidates, isWebSent, normaliseText } from "./message-text.ts";
import type { CodeFormat } from "./project.ts";

/**
 * "[merchant] identity check CODE, do not send it if somebody else asks you to." Relay phishing is the
 * main threat, so the merchant and the warning are in what the person sends. With the longest numeric
 * code (10) it leaves 19 Hangul syllables or 35 ASCII characters for the name, with the longest
 * alphanumeric one (12) 18 or 33. The code stands between Hangul: nothing in a name can join it.
 */
export const defaultSmsTemplate = "[{project}] 본인확인 {code} 타인이 요청하면 보내지 마세요";

/** One Korean SMS, in CP949. */
const smsByteLimit = 90;
/** One SMS in UCS-2, as which handsets send what is not pure ASCII. */
const smsUnicodeLimit = 70;

export interface SmsTextSettings {
  readonly template: string;
  readonly projectName: string;
  readonly codeFormat: CodeFormat;
  readonly codeLength: number;
}

/** `field` is the project setting to change. */
export interface SmsTextViolation {
  readonly field: "sms_template" | "name";
  readonly message: string;
}

/** Of those that a message may not contain: what a person can read, and a refusal can carry. */
const shownCharacters = 10;

/** In one pass: a name that reads `{code}` stays what it is. */
export function renderSmsText(template: string, projectName: string, code: string): string {
  return template.replace(/\{(code|project)\}/g, (_, placeholder: string) =>
    placeholder === "code" ? code : projectName,
  );
}

/**
 * Whether every text made with these settings is one SMS that matches back to its code. Checked when
 * the template, the name or the code's format or length is saved, with the longest code that the format
 * allows: codes grow where space runs short, and a text must not stop fitting then.
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
  // What the default makes can only be the name's doing, and its owner may not know that there is a template.
  const isDefault = template === defaultSmsTemplate;
  const violateText = (fault: string) =>
    isDefault
      ? violate(
          "name",
          `makes, with the default template, a text ${fault}: choose another name, or set sms_template`,
        )
      : violate("sms_template", `makes a text ${fault}`);
  const bytes = cp949ByteLength(longest) ?? Number.POSITIVE_INFINITY;
  if (bytes > smsByteLimit) {
    violateText(`of ${bytes} bytes with the longest code, where one SMS holds ${smsByteLimit}`);
  } else if (longest.length > smsUnicodeLimit && !isAscii(longest)) {
    violateText(
      `of ${longest.length} characters with the longest code, where one SMS that is not pure ASCII holds ${smsUnicodeLimit}`,
    );
  }
  if (isWebSent(normaliseText(longest))) violateText("that reads as sent from the web");
  if (!matchesBack()) {
    violateText("in which the code cannot be told from the letters and digits around it");
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
 * What may be the code in a text that was made with settings like these: it is in the settings' format and not in what they
 * put around it. Where they have changed since it was made there may be more of them, or none.
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

/** Bytes of the text in CP949, or null where it has a character outside it (which encoders silently replace). */
export function cp949ByteLength(text: string): number | null {
  const encoded = iconv.encode(text, "cp949");
  return iconv.decode(encoded, "cp949") === text ? encoded.length : null;
}

/** A number's verifications may be of projects with any settings, so a text has to hold among all of them. */
const allCodeLengths: CodeLengths = {
  numeric: lengthsOf("numeric"),
  alphanumeric: lengthsOf("alphanumeric"),
};

function lengthsOf(format: CodeFormat): number[] {
  const { min, max } = codeLengthRange(format);
  return Array.from({ length: max - min + 1 }, (_, index) => min + index);
}

/**
 * Digits 2 to 9 are in both alphabets, so a code of these joins with whatever is beside it more readily
 * than any other does. There are two, lest a text that happens to hold one pass by it.
 */
const sampleDigits = ["234567892345", "987654329876"];

function isAscii(text: string): boolean {
  return /^[\x00-\x7f]*$/.test(text);
}
