/**
 * Appearance and accessibility of the window, and of the API reference. With SCREENSHOTS=<folder> it also writes a screenshot of
 * each of the window's states there, to be looked at: `SCREENSHOTS=.cache/screenshots npm test -- test/window/looks`.
 */
import path from "node:path";
import axe from "axe-core";
import { expect, test } from "vitest";
import { contractCodes } from "../../src/failures.ts";
import { CodeFormat } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { startTestService } from "../harness/service.ts";
import { letExpire } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { startBrowser } from "./chromium.ts";
import { createWindow, type OpenWindow } from "./open-window.ts";
import { complaintsOf, type Device, person } from "./person.ts";

const service = await startTestService();
const returnUrl = "https://shop.example/back";
const project = await service.createProject({
  name: "달빛상점 Moonlight Shop",
  returnUrl,
  smsTemplate: "[달빛상점] 번호확인 {code} 타인이 요청하면 보내지 마세요",
});
const browser = await startBrowser();
const cli = smsSource(service);

const { SCREENSHOTS: screenshots } = process.env;

const live = (request: object = {}) => createWindow(service, project, request, "live");
const send = ({ to, text }: OpenWindow, from = "010-1234-5678") =>
  cli.send({ to, from, text, carrier: "SKT" });

const phone = newPhone();
const expecting = await live({ mode: "match", expected_phone: phone });
await send(expecting, newPhone());
const played = await createWindow(service, project, { mode: "match", expected_phone: phone });
await played.receipt({ text: "[Web발신] 안녕" });
const [verified, expired, cancelled] = [await live({ return_url: returnUrl }), await live(), await live()];
await send(verified);
await letExpire(service.db, expired.id);
await cancelled.cancel();
const states: { state: string; url: string }[] = [
  { state: "pending", url: (await live()).url },
  { state: "hint", url: expecting.url },
  { state: "test", url: played.url },
  { state: "gate", url: `${(await live()).url}?via=qr` },
  { state: "verified", url: `${verified.url}?via=qr` },
  { state: "expired", url: expired.url },
  { state: "cancelled", url: cancelled.url },
  { state: "not-found", url: `${service.httpUrl}/v/none` },
];
/** The language changes only texts, and the device only what is shown: each of both once. */
test.for<{ language: string; locale: string; device: Device }>([
  { language: "ko", locale: "ko-KR", device: "android" },
  { language: "en", locale: "en-US", device: "desktop" },
])("every state is accessible in $language on $device, in both colour schemes", async ({
  language,
  locale,
  device,
}) => {
  const context = await person(browser, device, { locale });
  await Promise.all(
    states.map(async ({ state, url }) => {
      const page = await context.newPage();
      const complaints = complaintsOf(page);
      await page.goto(url);
      await page.evaluate(axe.source);
      for (const colorScheme of ["light", "dark"] as const) {
        await page.emulateMedia({ colorScheme });
        const name = `${state}-${language}-${device}-${colorScheme}`;
        if (screenshots)
          await page.screenshot({ path: path.join(screenshots, `${name}.png`), fullPage: true });
        // A colour scheme changes only colours.
        const rules = colorScheme === "dark" ? '{ runOnly: ["color-contrast"] }' : "{}";
        const { violations } = await page.evaluate<axe.AxeResults>(`axe.run(${rules})`);
        expect.soft(violations.map(({ id, nodes }) => `${name}: ${id} ${nodes[0]?.html}`)).toEqual([]);
      }
      expect.soft(await page.getAttribute("html", "lang")).toBe(language);
      const allowed = state === "not-found" ? complaints.filter((text) => !text.includes("404")) : complaints;
      expect.soft(allowed).toEqual([]);
    }),
  );
});

test("nothing is wider than the screen or than what it is in: at 320 px, at 200 % zoom, with text twice as large", async () => {
  const screens = [
    { viewport: { width: 320, height: 568 }, textSize: "100%" },
    { viewport: { width: 640, height: 400 }, textSize: "100%" },
    { viewport: { width: 640, height: 800 }, textSize: "200%" },
    { viewport: { width: 320, height: 568 }, textSize: "200%" },
  ];
  // English has the longer words.
  for (const { device, locale } of [
    { device: "android", locale: "en-US" },
    { device: "desktop", locale: "ko-KR" },
  ] as const) {
    const context = await person(browser, device, { isMobile: false, locale });
    const page = await context.newPage();
    for (const { state, url } of states) {
      await page.goto(url);
      for (const { viewport, textSize } of screens) {
        await page.setViewportSize(viewport);
        const where = `${state} on ${device} at ${viewport.width} px, text at ${textSize}`;
        const excess = await page.evaluate(
          `document.documentElement.style.fontSize = "${textSize}";
          document.documentElement.scrollWidth - document.documentElement.clientWidth`,
        );
        expect(excess, where).toBe(0);
        const stickingOut = await page.evaluate(
          `const right = (element) => Math.floor(element.getBoundingClientRect().right);
          [...document.querySelectorAll("body *:not(.unseen)")]
            .filter((element) => right(element) > right(element.parentElement))
            .map((element) => element.outerHTML)`,
        );
        expect(stickingOut, where).toEqual([]);
      }
    }
  }
});

test("on a small phone neither the number nor the code is broken over two lines", async () => {
  const shop = await service.createProject({
    codeFormat: CodeFormat.ALPHANUMERIC,
    codeLength: 12,
    smsTemplate: "번호확인 {code} 보내기",
  });
  await service.db.query("UPDATE destination_number SET number = '050700001234' WHERE number = $1", [
    shop.liveNumber,
  ]);
  const window = await createWindow(service, shop, {}, "live");
  const page = await (await person(browser, "android", { viewport: { width: 320, height: 568 } })).newPage();
  await page.goto(window.url);
  await page.getByRole("button", { name: "받는 번호 복사" }).waitFor();
  for (const unbroken of [window.to, window.text.split(" ")[1] ?? ""]) {
    const lines = await page.evaluate(
      `const value = [...document.querySelectorAll("[data-value]")].find((one) => one.textContent.includes("${unbroken}"));
      const range = new Range();
      const start = value.textContent.indexOf("${unbroken}");
      range.setStart(value.firstChild, start);
      range.setEnd(value.firstChild, start + ${unbroken.length});
      range.getClientRects().length`,
    );
    expect(lines, unbroken).toBe(1);
  }
});

test("nothing moves when the remaining time loses a digit, however wide the screen is", async () => {
  const page = await (await person(browser, "android")).newPage();
  await page.goto(states[0]?.url ?? "");
  await page.locator("[data-countdown]").waitFor();
  const moves = await page.evaluate(
    `const remaining = document.querySelector("[data-remaining]");
    const heightAt = (time) => {
      remaining.textContent = time;
      return document.querySelector(".waiting").offsetHeight;
    };
    Array.from({ length: 200 }, (_, more) => 280 + more).filter((width) => {
      document.body.style.width = width + "px";
      return heightAt("10:00") !== heightAt("9:59");
    })`,
  );
  expect(moves).toEqual([]);
});

test("nothing moves by itself for more than five seconds", async () => {
  const page = await (await person(browser, "android", { reducedMotion: "no-preference" })).newPage();
  await page.goto(states[0]?.url ?? "");
  const durations = await page.evaluate<number[]>(
    "document.getAnimations().map((animation) => animation.effect.getComputedTiming().activeDuration)",
  );
  expect(Math.max(...durations)).toBeGreaterThan(0);
  expect(Math.max(...durations)).toBeLessThanOrEqual(5_000);
});

test("the API reference is accessible and no wider than a small phone, and its examples need no scrolling", async () => {
  const page = await (await person(browser, "android", { viewport: { width: 320, height: 568 } })).newPage();
  for (const path of ["/docs", "/docs/ko", ...contractCodes.map((code) => `/docs/errors/${code}`)]) {
    await page.goto(service.httpUrl + path);
    const excess = await page.evaluate(
      `Array.from(document.querySelectorAll("html, pre"), (one) => one.scrollWidth - one.clientWidth).filter((more) => more > 0)`,
    );
    expect.soft(excess, path).toEqual([]);
    if (path.includes("/errors/")) continue;
    // Its messages are in English on the Korean page, too.
    expect.soft(await page.locator("pre:has-text('request_id')").getAttribute("lang"), path).toBe("en");
    await page.evaluate(axe.source);
    const { violations } = await page.evaluate<axe.AxeResults>("axe.run()");
    expect.soft(violations.map(({ id, nodes }) => `${path}: ${id} ${nodes[0]?.html}`)).toEqual([]);
  }
});
