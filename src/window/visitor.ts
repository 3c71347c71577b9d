/** What a request reveals about the visitor: language and platform. */

/**
 * The members of a list in a header, each split into its value and parameters, in lower case. Browsers send a dozen at most; a
 * header has room for thousands, which anybody can send, and which take milliseconds.
 */
export function membersOf(header = ""): string[][] {
  return header.split(",", 32).map((member) => member.split(";", 8).map((part) => part.trim().toLowerCase()));
}

export type Language = "ko" | "en";

/** `android` stands for every phone that is not an iPhone, `desktop` for everything else. */
export type Platform = "android" | "ios" | "desktop";

/**
 * Korean or English, by Accept-Language. Visitors who accept only other languages get English; without the header it is Korean,
 * since all numbers are Korean. `ko;q=0` excludes Korean.
 */
export function languageOf(acceptLanguage: string | undefined): Language {
  let best: { language: Language; weight: number } | undefined;
  let isKoreanUnwanted = false;
  for (const [tag = "", ...parameters] of membersOf(acceptLanguage)) {
    const weight = Number(parameters.find((parameter) => parameter.startsWith("q="))?.slice(2) ?? 1);
    const [primary = ""] = tag.split("-", 1);
    if (!/^([a-z]+|\*)$/.test(primary)) continue;
    const language = primary === "ko" || primary === "*" ? "ko" : "en";
    if (weight === 0 && tag === "ko") isKoreanUnwanted = true;
    if (!(weight > 0)) continue;
    // Any other language counts as a preference for English, ranked below explicit Korean and English.
    const effective = primary === "ko" || primary === "en" ? weight : weight / 1000;
    if (best === undefined || effective > best.weight) best = { language, weight: effective };
  }
  return isKoreanUnwanted ? "en" : (best?.language ?? "ko");
}

/**
 * Tablets and televisions have no SIM that sends SMS, so they get the QR code, like a desktop. Of Android devices only phones
 * put `Mobile` into their user agent, but foldable phones (Samsung's are `SM-F…`) only while they are folded. An iPad's contains
 * `iPad`, inside apps such as Instagram and Facebook besides `iPhone`.
 */
export function platformOf(userAgent: string | undefined): Platform {
  if (userAgent === undefined || userAgent.includes("iPad")) return "desktop";
  if (userAgent.includes("iPhone")) return "ios";
  return /Mobile|Opera Mini|\bSM-F\d/.test(userAgent) ? "android" : "desktop";
}

/**
 * What precedes the body in a link that opens the SMS app with number and text filled in: `&` on iOS, `?` on Android, both
 * where it may be either. All platforms want %20 for a space, and the `#` of a short number encoded.
 */
const separators: Readonly<Record<Platform, string>> = { ios: "&", android: "?", desktop: "?&" };

export function smsLink(platform: Platform, destination: string, text: string): string {
  const separator = separators[platform];
  return `sms:${encodeURIComponent(destination)}${separator}body=${encodeURIComponent(text)}`;
}
