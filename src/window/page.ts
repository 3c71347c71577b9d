/**
 * Renders the complete page, which works without its script; the script only adds live updates. All four states are in the page
 * and one is shown, so that a change of state needs no request.
 */

import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { VerificationWindow } from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { InboundMessageOutcome } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { Environment, VerificationMode } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import type { AssetPaths } from "./assets.ts";
import type { WindowState } from "./browser/state.ts";
import { type Html, html } from "./html.ts";
import { qrCode } from "./qr-code.ts";
import { windowState } from "./state.ts";
import { named, type OutcomeName, type Texts, texts } from "./texts.ts";
import { type Language, type Platform, smsLink } from "./visitor.ts";

/** How the window was opened. */
export interface View {
  readonly language: Language;
  /** The language was chosen in the URL, and links keep it. */
  readonly languageChosen: boolean;
  readonly platform: Platform;
  /** Opened by the QR code, on another device than the one that shows the window. */
  readonly viaQr: boolean;
  /** The user has confirmed that they started the verification themselves. */
  readonly started: boolean;
  /** The simulated phone's last receipt, for browsers without scripts. */
  readonly simulatedReceipt: { readonly outcome: OutcomeName; readonly duplicate: boolean } | null;
}

export interface WindowPage {
  readonly window: VerificationWindow;
  readonly token: string;
  /** The `verification_url`, which the QR code contains. */
  readonly address: string;
  readonly view: View;
  readonly assets: AssetPaths;
}

export function renderWindow({ window, token, address, view, assets }: WindowPage): string {
  const words = texts[view.language];
  const name = window.projectName;
  const state = windowState(window);
  const gated = view.viaQr && !view.started;
  const title = (heading: string) => `${heading} · ${name}`;
  const body = html`
<main data-state="${JSON.stringify(state)}" data-via="${view.viaQr && "qr"}" data-copied="${words.copied}" data-not-copied="${words.notCopied}" data-reconnecting="${words.reconnecting}" data-time-probably-up="${words.timeProbablyUp}" data-last-minute="${words.lastMinute}">
<section data-status="pending" data-title="${title(words.pageTitle)}"${hiddenUnless(state.status === "pending")}>
${state.status === "pending" && (gated ? gate(name, view, words) : pending(window, state, address, view, words))}
</section>
<section data-status="verified" data-title="${title(words.verified)}" class="result good"${hiddenUnless(state.status === "verified")}>
${marks.check}<h1 tabindex="-1">${words.verified}</h1>
<p>${words.verifiedMore}</p>
<p class="phone"${hiddenUnless(state.phone !== null)}><span data-phone>${state.phone}</span> <span data-carrier>${state.carrier}</span></p>
</section>
<section data-status="expired" data-title="${title(words.expired)}" class="result"${hiddenUnless(state.status === "expired")}>
${marks.clock}<h1 tabindex="-1">${words.expired}</h1>
<p>${named(words.expiredMore, name)}</p>
</section>
<section data-status="cancelled" data-title="${title(words.cancelled)}" class="result"${hiddenUnless(state.status === "cancelled")}>
${marks.cross}<h1 tabindex="-1">${words.cancelled}</h1>
<p>${named(words.cancelledMore, name)}</p>
</section>
${after(window, state, view, words)}
</main>
${window.environment === Environment.TEST && !(gated && state.status === "pending") && simulatedPhonePanel(window, token, view, words)}`;
  return document({ title: titleOf(state, words, title), body, view, words, assets });
}

function titleOf(state: WindowState, words: Texts, title: (heading: string) => string): string {
  return title(state.status === "pending" ? words.pageTitle : words[state.status]);
}

const mark = (path: string) =>
  html`<svg class="mark" width="48" height="48" fill="none" stroke="currentColor" viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="21.5"/><path d="${path}"/></svg>`;

const marks = {
  check: mark("m14.5 24.5 6.5 6.5 12.5-13.5"),
  clock: mark("M24 12v12l7.5 5"),
  cross: mark("m17 17 14 14m0-14-14 14"),
};

/** Asks a user who came by the QR code for confirmation before number and text are shown: it may be somebody else's code. */
function gate(name: string, view: View, words: Texts): Html {
  return html`
<h1>${named(words.gateHeading, name)}</h1>
<p class="warning"><strong>${words.warning}</strong> ${words.warningMore}</p>
<p><a class="button" href="${queryOf({ ...view, started: true })}">${words.gateYes}</a></p>
<p class="quiet">${words.gateNo}</p>`;
}

function pending(
  window: VerificationWindow,
  state: WindowState,
  address: string,
  view: View,
  words: Texts,
): Html {
  const { destination, smsText, projectName } = window;
  return html`
<p class="asker">${named(words.asker, projectName)}</p>
<h1>${words.heading}</h1>
<p class="warning"><strong>${words.warning}</strong> ${words.warningMore}</p>
<div role="status" class="hint" data-hint>${state.hint && words.hints[state.hint]}</div>
${hintTexts(words)}
<div class="ways">
<div>
${view.platform === "desktop" && !view.viaQr ? byQrCode(address, smsLink(view.platform, destination, smsText), words) : bySmsApp(view.platform, destination, smsText, words)}
<p class="waiting"><span class="pulse" aria-hidden="true"></span><span>${words.waiting}</span>
<span class="quiet" data-until>${until(window, view.language, words)}</span>
<span class="quiet" data-countdown hidden>${words.timeLeft} <span role="timer" data-remaining></span></span></p>
<div role="status" class="unseen" data-running-out></div>
<p class="quiet" role="status" data-connection></p>
<p class="quiet" role="status" data-advice></p>
<template data-advice-text>${words.advice}</template>
<div class="late" data-without-script><p class="quiet">${words.withoutScript} <a href="${queryOf(view)}">${words.refresh}</a></p></div>
</div>
<div>
<h2>${words.byHand}</h2>
<dl>
<div><dt>${words.number}</dt><dd><span class="value" data-value translate="no">${destination}</span>
<button type="button" data-copy hidden aria-label="${words.copyNumber}">${words.copy}</button></dd></div>
<div><dt>${words.text}</dt><dd><span class="value" data-value${languageOfSms(smsText)} translate="no">${smsText}</span>
<button type="button" data-copy hidden aria-label="${words.copyText}">${words.copy}</button></dd></div>
</dl>
<div role="status" class="unseen" data-feedback></div>
</div>
</div>
<p class="quiet">${words.whichPhones} ${named(words.price, projectName)}</p>`;
}

/** Of a text without Hangul nothing is known but that it is not Korean. */
function languageOfSms(smsText: string): Html | false {
  return /\p{Script=Hangul}/u.test(smsText) && html` lang="ko"`;
}

/** Templates from which the script fills the hint: screen readers announce only what is inserted into a live region. */
function hintTexts(words: Texts): Html[] {
  return Object.entries(words.hints).map(
    ([hint, text]) => html`<template data-hint-text="${hint}">${text}</template>`,
  );
}

/**
 * Also for a desktop browser that came by the QR code: it must be a phone, and showing it another QR code would lead nowhere.
 */
function bySmsApp(platform: Platform, destination: string, smsText: string, words: Texts): Html {
  return html`<p><a class="button" href="${smsLink(platform, destination, smsText)}">${words.openSmsApp}</a></p>
<p class="quiet centred">${words.filledIn}</p>`;
}

/**
 * A browser that claims to be no phone may be one in desktop mode: the script recognises its touch screen and shows the SMS
 * link.
 */
function byQrCode(address: string, sms: string, words: Texts): Html {
  return html`<figure>${qrCode(`${address}?via=qr`, words.qrLabel)}
<figcaption><strong>${words.scan}</strong> ${words.scanMore}</figcaption></figure>
<p class="quiet centred" data-on-this-device hidden>${words.onThisDevice} <a href="${sms}">${words.openSmsApp}</a></p>`;
}

/** Shown instead of the countdown if there is no script: the time zone is unknown then, so it is Korea's. */
function until(window: VerificationWindow, language: Language, words: Texts): string {
  if (window.expiresAt === undefined) return "";
  const time = new Intl.DateTimeFormat(language, {
    hour: "numeric",
    minute: "2-digit",
    timeZone: "Asia/Seoul",
  }).format(timestampDate(window.expiresAt));
  return words.until.replace("{time}", time);
}

/**
 * Shown once the verification is over. With the script, either the opener is notified or the return link is used; without it,
 * the link is shown.
 */
function after(window: VerificationWindow, state: WindowState, view: View, words: Texts): Html {
  const { projectName } = window;
  const link = html`<a${!view.viaQr && html` class="button"`} data-return href="${state.returnUrl}"${hiddenUnless(state.returnUrl !== null)}>${named(words.returnNow, projectName)}</a>`;
  return html`
<section data-after${hiddenUnless(state.status !== "pending")}>
<p data-returning hidden role="status">${named(words.returning, projectName)}</p>
<p${hiddenUnless(view.viaQr)}>${words.goOnThere}</p>
<p data-may-close hidden>${words.mayClose}</p>
<p>${link}<button type="button" class="button" data-close hidden>${words.close}</button></p>
</section>`;
}

const simulatedCarriers = ["SKT", "KT", "LGU+"];

/** Single digits that, joined to codes of whatever length, make more candidates than a message may have. */
const manyCodes = Array.from({ length: 80 }, (_, index) => 2 + (((index * index * 7) % 61) % 8)).join(" ");

function simulatedPhonePanel(window: VerificationWindow, token: string, view: View, words: Texts): Html {
  const { play } = words;
  const isMatch = window.mode === VerificationMode.MATCH;
  const presets = [
    [play.asAsked, window.smsText],
    [play.webSent, `[Web발신]\n${window.smsText}`],
    [play.twoCodes, `${window.smsText}, ${manyCodes}`],
    [play.withoutCode, "확인해 주세요"],
  ] as const;
  return html`
<aside aria-labelledby="play">
<h2 id="play">${play.heading}</h2>
<p class="quiet">${play.more}</p>
<form method="post" action="${token}/messages${queryOf(view)}" data-failed="${play.failed}">
<label>${play.sender}<input name="from" value="010-1234-5678" inputmode="tel" autocomplete="off" maxlength="64" required${isMatch && html` aria-describedby="play-sender"`}></label>
${isMatch && html`<p class="quiet" id="play-sender">${play.senderMore}</p>`}
<label>${play.carrier}<select name="carrier">${simulatedCarriers.map((carrier) => html`<option>${carrier}</option>`)}<option value="">${play.unknownCarrier}</option></select></label>
<label>${play.text}<textarea name="text" rows="3" maxlength="2000" required${languageOfSms(window.smsText)}>${window.smsText}</textarea></label>
<div class="presets" role="group" aria-label="${play.presets}" hidden>${presets.map(
    ([label, text]) => html`<button type="button" data-preset="${text}">${label}</button>`,
  )}</div>
<button>${play.send}</button>
<p role="status" data-receipt>${view.simulatedReceipt && simulatedReceiptText(view.simulatedReceipt, view.language)}</p>
</form>
</aside>`;
}

/** `SENDER_MISMATCH: …`, for a developer, who will find the same word in receipts. */
export function simulatedReceiptText(
  { outcome, duplicate }: { readonly outcome: OutcomeName; readonly duplicate: boolean },
  language: Language,
): string {
  const { play } = texts[language];
  const sentences = [`${outcome}: ${play.outcomes[outcome]}`];
  if (duplicate) sentences.push(play.duplicate);
  return sentences.join(" ");
}

export const outcomeNames = Object.keys(InboundMessageOutcome) as readonly OutcomeName[];

export function outcomeName(outcome: InboundMessageOutcome): OutcomeName {
  return outcomeNames.find((name) => InboundMessageOutcome[name] === outcome) ?? "UNSPECIFIED";
}

/**
 * The page shown if a window cannot be shown. It does not depend on what was requested. With a link where trying again may help: a
 * popup, and browsers inside apps, may have no button to reload.
 */
export function renderRefusal(
  kind: "notFound" | "tooMany" | "unavailable",
  view: View,
  assets: AssetPaths,
  windowPath: string,
): string {
  const words = texts[view.language];
  const body = html`
<main>
<section class="result">
${marks[kind === "notFound" ? "cross" : "clock"]}<h1>${words[kind]}</h1>
<p>${words[`${kind}More`]}</p>
${kind !== "notFound" && html`<p><a class="button" href="${windowPath}${queryOf(view)}">${words.openAgain}</a></p>`}
</section>
</main>`;
  return document({ title: words[kind], body, view, words, assets });
}

function document(page: {
  readonly title: string;
  readonly body: Html;
  readonly view: View;
  readonly words: Texts;
  readonly assets: AssetPaths;
}): string {
  const { title, body, view, words, assets } = page;
  const other = view.language === "ko" ? "en" : "ko";
  return html`<!doctype html>
<html lang="${view.language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="format-detection" content="telephone=no">
<meta name="robots" content="noindex">
<title>${title}</title>
<link rel="stylesheet" href="${assets.style}">
<link rel="icon" type="image/svg+xml" href="${assets.icon}">
<script type="module" src="${assets.script}"></script>
</head>
<body>${body}
<footer><a href="${queryOf({ ...view, language: other, languageChosen: true })}" lang="${other}" hreflang="${other}">${words.otherLanguage}</a></footer>
</body>
</html>
`.markup;
}

function hiddenUnless(shown: boolean): Html | false {
  return !shown && html` hidden`;
}

/** A relative link to the same page with these options. Never empty: an empty link would keep the current query. */
function queryOf({ language, languageChosen, viaQr, started }: View): string {
  const query = new URLSearchParams();
  if (viaQr) query.set("via", "qr");
  if (started) query.set("started", "yes");
  if (languageChosen) query.set("lang", language);
  return `?${query}`;
}
