/** What a request tells of the person who opens the window. */

export type Language = "ko" | "en";

/** `android` stands for every phone that is no iPhone, `desktop` for whatever is no phone, or does not say so. */
export type Platform = "android" | "ios" | "desktop";

/**
 * The better of Korean and English by Accept-Language. Whoever asks for neither gets English; whoever does not say gets
 * Korean, since all numbers are Korean. Weight 0 says which it is not to be.
 */
export function languageOf(acceptLanguage: string | undefined): Language {
  let best: { language: Language; weight: number } | undefined;
  let isKoreanUnwanted = false;
  for (const range of (acceptLanguage ?? "").split(",")) {
    const [tag = "", ...parameters] = range.split(";").map((part) => part.trim().toLowerCase());
    const weight = Number(parameters.find((parameter) => parameter.startsWith("q="))?.slice(2) ?? 1);
    const [primary = ""] = tag.split("-");
    if (!/^([a-z]+|\*)$/.test(primary)) continue;
    const language = primary === "ko" || primary === "*" ? "ko" : "en";
    if (weight === 0 && tag === "ko") isKoreanUnwanted = true;
    if (!(weight > 0)) continue;
    // Another language counts as a wish for English, after those for the two there are.
    const effective = primary === "ko" || primary === "en" ? weight : weight / 1000;
    if (best === undefined || effective > best.weight) best = { language, weight: effective };
  }
  return isKoreanUnwanted ? "en" : (best?.language ?? "ko");
}

/**
 * A tablet or a television has no SIM that sends SMS: it is shown the QR code, as a desktop is. Of those with Android only phones
 * call themselves mobile, and an iPad says which it is.
 */
export function platformOf(userAgent: string | undefined): Platform {
  if (userAgent === undefined) return "desktop";
  if (/iPhone|iPod/.test(userAgent)) return "ios";
  return /Mobile|Opera Mini/.test(userAgent) && !userAgent.includes("iPad") ? "android" : "desktop";
}

/**
 * A link that opens the SMS app with number and text filled in. iOS takes the body after `&`, Android after `?`; what may be
 * either is given both. All want %20 for a space, and `#` of a short number encoded.
 */
const separators: Readonly<Record<Platform, string>> = { ios: "&", android: "?", desktop: "?&" };

export function smsLink(platform: Platform, destination: string, text: string): string {
  const separator = separators[platform];
  return `sms:${encodeURIComponent(destination)}${separator}body=${encodeURIComponent(text)}`;
}
