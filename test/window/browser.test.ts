import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import type { Locator, Page, Route } from "playwright-core";
import { expect, onTestFinished, test } from "vitest";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { letExpire, uuidOf } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { startBrowser } from "./chromium.ts";
import { createWindow, type OpenWindow } from "./open-window.ts";
import { complaintsOf, merchantSite, person, stopClock } from "./person.ts";

const service = await startTestService();
const site = await merchantSite();
const elsewhere = await merchantSite();
const returnUrl = `${site.origin}/back?order=7`;
const project = await service.createProject({
  name: "달빛상점 Moonlight Shop",
  parentOrigin: site.origin,
  returnUrl,
  smsTemplate: "[달빛상점] 번호확인 {code} 타인이 요청하면 보내지 마세요",
});
const browser = await startBrowser();
const cli = smsSource(service);

const live = (request: object = {}) => createWindow(service, project, request, "live");
const send = (window: OpenWindow, from = "010-1234-5678", text = window.text) =>
  cli.send({ to: window.to, from, text, carrier: "SKT" });
/** From now on, records in `heard` what is put into a live region. */
const listen = (page: Page, region: string) =>
  page.evaluate(`var heard = [];
    const region = document.querySelector("${region}");
    new MutationObserver(() => heard.push(region.textContent)).observe(region, { childList: true });`);
const result = (page: Page, status: string) => page.locator(`section[data-status=${status}] h1`);

test.for([
  { device: "desktop", width: 1366, height: 650 },
  { device: "android", width: 320, height: 568 },
  { device: "iphone", width: 390, height: 844 },
] as const)("on $device of $width by $height the warning precedes the action, and the status and the remaining time are visible without scrolling", async ({
  device,
  width,
  height,
}) => {
  const window = await live({ mode: "match", expected_phone: newPhone() });
  const bottomOf = async (page: Page, selector: string) => {
    const box = await page.locator(selector).boundingBox();
    return box ? box.y + box.height : Number.POSITIVE_INFINITY;
  };
  for (const javaScriptEnabled of [false, true]) {
    const options = { javaScriptEnabled, viewport: { width, height } };
    const page = await (await person(browser, device, options)).newPage();
    for (const language of ["en", "ko"]) {
      await page.goto(`${window.url}?lang=${language}`);
      const time = page.locator(javaScriptEnabled ? "[data-remaining]" : "[data-until]");
      await expect.poll(() => time.textContent()).toMatch(/\d:\d\d/);
      expect(await page.getAttribute("html", "lang")).toBe(language);
      expect(await time.isVisible()).toBe(true);
      expect(await bottomOf(page, ".waiting")).toBeLessThanOrEqual(height);
      // On larger screens the number and the text are visible, too.
      if (height > 568 && javaScriptEnabled) expect(await bottomOf(page, "dl")).toBeLessThanOrEqual(height);
    }
    if (!javaScriptEnabled) continue;
    const top = async (selector: string) => (await page.locator(selector).first().boundingBox())?.y ?? -1;
    const action = device === "desktop" ? ".qr" : "a.button";
    expect(await top(".warning")).toBeGreaterThan(await top(".asker"));
    expect(await top(action)).toBeGreaterThan(await top(".warning"));
    // Not only on the screen, but in the document, too.
    const order = await page.evaluate(
      `document.querySelector(".warning").compareDocumentPosition(document.querySelector("${action}"))`,
    );
    expect(order).toBe(4);
    // A hint takes room above the status.
    await send(window);
    await expect.poll(() => page.locator("[data-hint]").textContent()).toContain("다른 번호");
    expect(await bottomOf(page, ".waiting")).toBeLessThanOrEqual(height);
  }
});

test("the desktop shows the result when the SMS arrives, by the event stream alone", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  // The page would otherwise also ask for the status.
  await page.route("**/status", () => {});
  await page.goto(window.url);
  await expect.poll(() => page.locator("[data-remaining]").textContent()).toMatch(/^\d+:\d\d$/);
  // The time at which it ends would only repeat it.
  expect(await page.locator("[data-until]").count()).toBe(0);
  // Where the script runs, nobody has to refresh the page.
  expect(await page.getByText("저절로 바뀌지 않아요").count()).toBe(0);
  await send(window);
  await result(page, "verified").waitFor();
  const phone = page.locator("main .phone");
  expect([await phone.isVisible(), await phone.textContent()]).toEqual([true, "010-****-5678 SKT"]);
  expect(await page.title()).toBe("인증됐어요 · 달빛상점 Moonlight Shop");
  expect(await page.evaluate("document.activeElement.textContent")).toBe("인증됐어요");
  expect(await page.locator(".qr").isVisible()).toBe(false);
  await page.close();
});

test.for([
  { name: "another number", from: "010-9999-8888", text: (text: string) => text, hintText: "다른 번호" },
  {
    name: "sent from the web",
    from: undefined,
    text: (text: string) => `[Web발신] ${text}`,
    hintText: "웹에서",
  },
  { name: "without the code", from: undefined, text: () => "보냈어요", hintText: "코드가 없는" },
])("a hint appears without a reload, and stays after one: $name", async ({ from, text, hintText }) => {
  const phone = newPhone();
  const window = await live({ mode: "match", expected_phone: phone });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  expect(await page.locator("[data-hint]").textContent()).toBe("");
  await send(window, from ?? phone, text(window.text));
  await expect.poll(() => page.locator("[role=status][data-hint]").textContent()).toContain(hintText);
  await page.reload();
  expect(await page.locator("[data-hint]").textContent()).toContain(hintText);
  expect(await page.content()).not.toMatch(/(?:010|8210)-?(?:9999|\*{4})-?8888/);
  await send(window, phone);
  await result(page, "verified").waitFor();
  expect(await page.locator("[data-hint]").isVisible()).toBe(false);
});

test("the result is in view however far the page was scrolled, also where focus does not scroll, as in WebKit", async () => {
  // In the test environment the page stays long at the end.
  const window = await createWindow(service, project);
  const viewport = { width: 568, height: 320 };
  const page = await (await person(browser, "iphone", { viewport })).newPage();
  await page.addInitScript(`
    const { focus } = HTMLElement.prototype;
    HTMLElement.prototype.focus = function () { focus.call(this, { preventScroll: true }); };`);
  await page.goto(window.url);
  await page.locator("footer").scrollIntoViewIfNeeded();
  expect(await page.evaluate("scrollY")).toBeGreaterThan(viewport.height);
  await window.receipt({});
  await result(page, "verified").waitFor();
  const heading = await result(page, "verified").boundingBox();
  expect(heading?.y).toBeGreaterThanOrEqual(0);
  expect(heading && heading.y + heading.height).toBeLessThanOrEqual(viewport.height);
});

test("a browser of 2018 understands the script, and shows a hint and the result without a reload", async () => {
  const phone = newPhone();
  const window = await live({ mode: "match", expected_phone: phone });
  const page = await (await person(browser, "android")).newPage();
  // What such a browser lacks.
  await page.addInitScript(`
    for (const { prototype } of [Element, Document, DocumentFragment]) delete prototype.replaceChildren;
    for (const { prototype } of [Array, String]) delete prototype.at;
    delete String.prototype.replaceAll;
    delete Object.fromEntries;
    delete Object.hasOwn;
    delete Promise.allSettled;
    delete Promise.any;
    delete globalThis.structuredClone;
    delete AbortSignal.timeout;
    delete crypto.randomUUID;`);
  const script = page.waitForResponse(/\/window-\w+\.js$/);
  await page.goto(window.url);
  // No syntax newer than ES2017: browsers that do not know it run nothing of the script.
  expect(await (await script).text()).not.toMatch(
    /\d_\d|\?\.\D|\?\?|[?|&]{2}=|catch\s*\{|\bstatic\s*\{|\.#|\{\s*\.\.\./,
  );
  await send(window, newPhone());
  await expect.poll(() => page.locator("[data-hint]").textContent()).toContain("다른 번호");
  await send(window, phone);
  await result(page, "verified").waitFor();
});

test("if the same reason occurs again, the hint is emptied before, so that a screen reader repeats it", async () => {
  const window = await live({ mode: "match", expected_phone: newPhone() });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  await send(window);
  await expect.poll(() => page.locator("[data-hint]").textContent()).toContain("다른 번호");
  await listen(page, "[data-hint]");
  await send(window, newPhone());
  await expect.poll(() => page.evaluate("heard")).toEqual(["", expect.stringContaining("다른 번호")]);
});

test("after a minute without a message the window advises what to check, until there is a hint", async () => {
  const phone = newPhone();
  const window = await live({ mode: "match", expected_phone: phone });
  const page = await (await person(browser, "android")).newPage();
  await stopClock(page);
  await page.goto(window.url);
  const advice = page.locator("[role=status][data-advice]");
  await page.clock.runFor(59_000);
  expect(await advice.textContent()).toBe("");
  await page.clock.runFor(2_000);
  expect(await advice.textContent()).toContain("받는 번호와 내용이 이 화면과 똑같은지");
  await send(window, phone, "보냈어요");
  await expect.poll(() => advice.textContent()).toBe("");
  // Where there is a hint from the beginning, it stays alone.
  await page.reload();
  await page.clock.runFor(61_000);
  expect(await page.locator("[data-hint]").textContent()).toContain("코드가 없는");
  expect(await advice.textContent()).toBe("");
});

test("a screen reader is told once that less than a minute is left", async () => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await stopClock(page);
  await page.goto(window.url);
  const remaining = page.locator("[data-remaining]");
  await expect.poll(() => remaining.textContent()).toMatch(/\d:\d\d/);
  await listen(page, "[role=status][data-running-out]");
  const [minutes = 0, seconds = 0] = ((await remaining.textContent()) ?? "").split(":").map(Number);
  await page.clock.fastForward((minutes * 60 + seconds - 62) * 1_000);
  await page.clock.runFor(1_000);
  expect(await page.evaluate("heard")).toEqual([]);
  await page.clock.runFor(3_000);
  expect(await page.evaluate("heard")).toEqual(["1분이 채 남지 않았어요."]);
  await page.clock.runFor(20_000);
  expect(await page.evaluate("heard")).toHaveLength(1);
});

test.for([
  { status: "expired", end: (window: OpenWindow) => letExpire(service.db, window.id) },
  { status: "cancelled", end: (window: OpenWindow) => window.cancel() },
])("$status is shown without a reload", async ({ status, end }) => {
  const window = await live();
  const page = await (await person(browser, "iphone")).newPage();
  await page.goto(window.url);
  await end(window);
  // The worker expires what the test has moved into the past.
  await result(page, status).waitFor();
});

test("an opener with the registered origin receives the result, and the window can be closed by its button", async () => {
  const window = await live({
    parent_origin: site.origin,
    return_url: returnUrl,
    client_reference: "order-7",
    state: "s",
  });
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(`${site.origin}/shop`);
  const [popup] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate(`void open("${window.url}")`),
  ]);
  await popup.waitForLoadState();
  await send(window);
  await expect.poll(() => page.evaluate("received")).toHaveLength(1);
  const data = {
    type: "phone_verification.result",
    version: 1,
    verification_id: window.id,
    status: "verified",
    client_reference: "order-7",
    state: "s",
  };
  expect(await page.evaluate("received")).toEqual([{ data, origin: new URL(window.url).origin }]);
  // The window cannot know whether the opener received the message, so it also offers the link back.
  await popup.locator("[data-return]").waitFor();
  // The link back is not a button.
  expect(await popup.locator(".button:visible").allTextContents()).toEqual(["창 닫기"]);
  const button = popup.getByRole("button", { name: "창 닫기" });
  await button.waitFor();
  const [above, below] = await Promise.all([
    popup.locator("[data-return]").boundingBox(),
    button.boundingBox(),
  ]);
  expect((below?.y ?? 0) - (above?.y ?? 0) - (above?.height ?? 0)).toBeGreaterThanOrEqual(8);
  const closed = popup.waitForEvent("close");
  // The window may close before the click has returned.
  await Promise.all([closed, button.click().catch(() => {})]);
});

test("an opener with another origin receives nothing", async () => {
  const window = await live({ parent_origin: site.origin });
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(`${elsewhere.origin}/shop`);
  const [popup] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate(`void open("${window.url}")`),
  ]);
  await popup.waitForLoadState();
  await send(window);
  await result(popup, "verified").waitFor();
  // Any message of the window would have arrived before this one.
  await popup.evaluate('opener.postMessage("after", "*")');
  await expect.poll(() => page.evaluate("received.map(({ data }) => data)")).toEqual(["after"]);
});

test("a window for which no parent_origin is given redirects to return_url, also if it has an opener", async () => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(`${site.origin}/shop`);
  const [popup] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate(`void open("${window.url}")`),
  ]);
  await popup.waitForLoadState();
  await send(window);
  await popup.waitForURL(`${returnUrl}&**`);
  expect(await page.evaluate("received")).toEqual([]);
});

test("without an opener the window redirects to return_url, with the result appended to its query", async () => {
  const window = await live({ return_url: returnUrl, parent_origin: site.origin, state: "a b" });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  // Shown for three seconds before the redirect.
  const announced = page.getByText("잠시 후 달빛상점 Moonlight Shop 화면으로 돌아가요.").waitFor();
  await Promise.all([announced, send(window)]);
  await page.waitForURL(`${returnUrl}&verification_id=${window.id}&status=verified&state=a%20b`);
  expect(site.visits.at(-1)).toBe(`/back?order=7&verification_id=${window.id}&status=verified&state=a%20b`);
});

test("a window that is its own opener, as in an app that opens popups in place of the page, redirects to return_url", async () => {
  const window = await live({ return_url: returnUrl, parent_origin: site.origin });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(`${site.origin}/shop`);
  // As an Android web view without several windows answers every `open`: with the same window, of which it is the opener.
  await page.evaluate(`name = "here"; open("", "here").location = "${window.url}"`);
  await page.waitForURL(window.url);
  expect(await page.evaluate("opener === window")).toBe(true);
  const complaints = complaintsOf(page);
  await send(window);
  await page.waitForURL(`${returnUrl}&**`);
  expect(complaints).toEqual([]);
});

test("that the window redirects is put into a region which is shown already, so that a screen reader reads it", async () => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  await page.evaluate(`var heard = [];
    const region = document.querySelector("[data-returning]");
    new MutationObserver(() => heard.push([region.checkVisibility(), region.textContent])).observe(region, { childList: true });`);
  await send(window);
  await expect
    .poll(() => page.evaluate("heard"))
    .toEqual([
      [true, ""],
      [true, expect.stringContaining("화면으로 돌아가요")],
    ]);
});

test("after Back the window does not redirect again, and offers a link", async () => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  await send(window);
  await page.waitForURL(({ origin }) => origin === site.origin);
  await page.goBack();
  await page.getByRole("link", { name: "달빛상점 Moonlight Shop 화면으로 가기" }).waitFor();
  // If it were to redirect, it would announce that together with the link.
  expect(await page.locator("[data-returning]").isVisible()).toBe(false);
  expect(page.url()).toBe(window.url);
});

test("after Back the page in the other language does not redirect either", async () => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  await send(window);
  await page.waitForURL(({ origin }) => origin === site.origin);
  await stopClock(page);
  await page.goBack();
  for (const [link, way] of [
    ["English", "Go to 달빛상점 Moonlight Shop"],
    ["한국어", "달빛상점 Moonlight Shop 화면으로 가기"],
  ] as const) {
    await page.getByRole("link", { name: link }).click();
    await page.getByRole("link", { name: way }).waitFor();
    await page.clock.runFor(60_000);
    expect(new URL(page.url()).pathname).toBe(new URL(window.url).pathname);
    expect(await page.locator("[data-returning]").isVisible()).toBe(false);
  }
});

test("after Back a page that is shown as it was left, not loaded again, says no more that it redirects, nor does it", async () => {
  const window = await live({ return_url: returnUrl });
  await send(window);
  const page = await (await person(browser, "android")).newPage();
  await stopClock(page);
  await page.goto(window.url);
  // The packaged browser loads every page again, so the page is left without leaving it, and told that it is back.
  await page.evaluate(
    "var ways = 0; addEventListener('click', (event) => { ways += 1; event.preventDefault(); })",
  );
  const comeBack = () =>
    page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))");
  // From another page than the merchant's, it still redirects.
  await comeBack();
  expect(await page.locator("[data-returning]").isVisible()).toBe(true);
  await page.clock.runFor(60_000);
  expect(await page.evaluate("ways")).toBe(1);
  expect(await page.locator("[data-returning]").isVisible()).toBe(true);
  await comeBack();
  expect(await page.locator("[data-returning]").isVisible()).toBe(false);
  expect(await page.locator("[data-return]").isVisible()).toBe(true);
  expect(await page.getByRole("link", { name: "English" }).getAttribute("href")).toMatch(/#stay$/);
});

test("following the link at once prevents the automatic redirect, however long the other page takes", async () => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "android")).newPage();
  await stopClock(page);
  await page.goto(window.url);
  // The other page never loads.
  await page.evaluate(
    "var ways = 0; addEventListener('click', (event) => { ways += 1; event.preventDefault(); })",
  );
  await send(window);
  await page.getByRole("link", { name: "달빛상점 Moonlight Shop 화면으로 가기" }).click();
  await page.clock.runFor(60_000);
  expect(await page.evaluate("ways")).toBe(1);
});

test("a result that arrives by the event stream and by a status answer is sent to the opener once", async () => {
  const window = await live({ parent_origin: site.origin });
  const context = await person(browser, "desktop");
  const page = await context.newPage();
  const { promise: asked, resolve } = Promise.withResolvers<Route>();
  await context.route("**/status", resolve);
  await page.goto(`${site.origin}/shop`);
  const [popup] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate(`void open("${window.url}")`),
  ]);
  await popup.waitForLoadState();
  await popup.evaluate("dispatchEvent(new Event('online'))");
  const question = await asked;
  await send(window);
  await result(popup, "verified").waitFor();
  const answer = popup.waitForResponse("**/status");
  await question.continue();
  await (await answer).finished();
  // Any message of the window would have arrived before this one.
  await popup.evaluate('new Promise((sent) => setTimeout(() => sent(opener.postMessage("after", "*")), 50))');
  await expect
    .poll(() => page.evaluate("received.map(({ data }) => data.status ?? data)"))
    .toEqual(["verified", "after"]);
});

test("a look into the link's menu does not prevent the automatic redirect", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  const window = await live({ return_url: returnUrl });
  await stopClock(page);
  await page.goto(window.url);
  await send(window);
  await page.getByRole("link", { name: "달빛상점 Moonlight Shop 화면으로 가기" }).click({ button: "right" });
  await page.clock.runFor(60_000);
  await page.waitForURL(`${returnUrl}&**`);
});

test.for([
  { name: "after it", endsAway: false },
  { name: "before it", endsAway: true },
])("a window reached by Back redirects if the verification ends $name, and only once", async ({
  endsAway,
}) => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  await page.goto(`${elsewhere.origin}/shop`);
  if (endsAway) await send(window);
  await page.goBack();
  if (!endsAway) await send(window);
  await page.waitForURL(`${returnUrl}&**`);
  await stopClock(page);
  await page.goBack();
  await result(page, "verified").waitFor();
  await page.clock.runFor(60_000);
  expect(page.url()).toBe(window.url);
  expect(await page.locator("[data-returning]").isVisible()).toBe(false);
  expect(await page.locator("[data-return]").isVisible()).toBe(true);
});

test("a phone that scanned the QR code is asked to confirm first, and is not redirected at the end", async () => {
  const window = await live({ return_url: returnUrl, state: "by-qr" });
  const page = await (await person(browser, "android")).newPage();
  await stopClock(page);
  await page.goto(`${window.url}?via=qr`);
  expect(await page.getByText(window.to).count()).toBe(0);
  await page.getByRole("link", { name: "네, 방금 제가 시작했어요" }).click();
  await page.getByRole("link", { name: "문자 앱 열기" }).waitFor();
  await send(window);
  await result(page, "verified").waitFor();
  await page.clock.runFor(60_000);
  expect(new URL(page.url()).pathname).toBe(new URL(window.url).pathname);
  expect(await page.getByText("처음 시작한 기기에서 계속하세요").isVisible()).toBe(true);
  expect(await page.locator("[data-return]").getAttribute("href")).toContain("state=by-qr");
});

test.for([
  { name: "a window", query: "", says: "이 창은 닫아도 돼요." },
  {
    name: "a phone that scanned the QR code",
    query: "?via=qr&started=yes",
    says: "처음 시작한 기기에서 계속하세요. 이 페이지는 닫아도 돼요.",
  },
])("where nothing leads back, $name says once that it may be closed", async ({ query, says }) => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url + query);
  await send(window);
  await result(page, "verified").waitFor();
  expect(await page.locator("[data-after] p:visible").allTextContents()).toEqual([says]);
});

test("following the link into a new tab prevents the automatic redirect, which is no more announced", async () => {
  const window = await live({ return_url: returnUrl });
  await send(window);
  const ways: Parameters<Locator["click"]>[0][] = [{ modifiers: ["ControlOrMeta"] }, { button: "middle" }];
  for (const way of ways) {
    const page = await (await person(browser, "desktop")).newPage();
    await stopClock(page);
    await page.goto(window.url);
    const link = page.getByRole("link", { name: "달빛상점 Moonlight Shop 화면으로 가기" });
    await Promise.all([page.context().waitForEvent("page"), link.click(way)]);
    expect(await page.locator("[data-returning]").isVisible()).toBe(false);
    await page.clock.runFor(60_000);
    expect(new URL(page.url()).pathname).toBe(new URL(window.url).pathname);
    await page.context().close();
  }
});

test("number and text are each copied with one tap", async () => {
  const window = await live();
  const context = await person(browser, "android");
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await context.newPage();
  // The confirmation is shown for two seconds.
  await stopClock(page);
  await page.goto(window.url);
  for (const [button, value] of [
    ["받는 번호 복사", window.to],
    ["문자 내용 복사", window.text],
  ] as const) {
    await page.getByRole("button", { name: button }).tap();
    await expect.poll(() => page.evaluate("navigator.clipboard.readText()")).toBe(value);
    await expect
      .poll(async () => {
        await page.clock.runFor(50);
        return page.locator("[data-feedback]").textContent();
      })
      .toBe("복사됨");
  }
  // A second tap is confirmed for as long as the first, on either button.
  const copy = page.locator("[data-copy]").last();
  const feedback = page.locator("[data-feedback]");
  await page.clock.runFor(1_500);
  await page.evaluate("navigator.clipboard.writeText('')");
  await copy.tap();
  await expect.poll(() => page.evaluate("navigator.clipboard.readText()")).toBe(window.text);
  await page.clock.runFor(1_500);
  expect([await copy.textContent(), await feedback.textContent()]).toEqual(["복사됨", "복사됨"]);
  await page.clock.runFor(1_500);
  expect([await copy.textContent(), await feedback.textContent()]).toEqual(["복사", ""]);
  await page.locator("[data-copy]").first().tap();
  await expect.poll(() => page.evaluate("navigator.clipboard.readText()")).toBe(window.to);
  await page.clock.runFor(1_500);
  await copy.tap();
  await expect.poll(() => page.evaluate("navigator.clipboard.readText()")).toBe(window.text);
  await page.clock.runFor(1_500);
  expect(await feedback.textContent()).toBe("복사됨");
});

test("after each copy a screen reader is told that it succeeded, also if it was just told so", async () => {
  const window = await live();
  const context = await person(browser, "desktop");
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await context.newPage();
  // The first confirmation is not removed before the second copy.
  await stopClock(page);
  await page.goto(window.url);
  await listen(page, "[data-feedback]");
  for (const [button, heard] of [
    ["받는 번호 복사", ["복사됨"]],
    ["문자 내용 복사", ["복사됨", "", "복사됨"]],
  ] as const) {
    await page.getByRole("button", { name: button }).click();
    await expect
      .poll(async () => {
        await page.clock.runFor(50);
        return page.evaluate("heard");
      })
      .toEqual(heard);
  }
});

test("if copying fails, the text is selected and the window asks the person to copy it", async () => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await page.addInitScript({
    content: `Object.defineProperty(navigator, "clipboard", { value: undefined });
      document.execCommand = () => false;`,
  });
  await stopClock(page);
  await page.goto(window.url);
  const button = page.getByRole("button", { name: "문자 내용 복사" });
  await button.tap();
  await expect
    .poll(async () => {
      await page.clock.runFor(50);
      return page.getByText("직접 복사해 주세요").isVisible();
    })
    .toBe(true);
  expect(await button.textContent()).toBe("복사");
  // Unlike the word that a value was copied, this stays.
  await page.clock.runFor(60_000);
  expect(await page.getByText("직접 복사해 주세요").isVisible()).toBe(true);
  // For everybody, not only for screen readers, whose texts take a single pixel.
  expect((await page.locator("[data-feedback]").boundingBox())?.height).toBeGreaterThan(10);
  expect(await page.evaluate("getSelection().toString()")).toBe(window.text);
});

test("without a clipboard API, as in many web views, what is selected is copied", async () => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await page.addInitScript({
    content: `Object.defineProperty(navigator, "clipboard", { value: undefined });
      globalThis.commands = [];
      document.execCommand = (name) => {
        commands.push(name + " " + getSelection());
        return true;
      };`,
  });
  await page.goto(window.url);
  await page.getByRole("button", { name: "문자 내용 복사" }).tap();
  await page.locator("[data-feedback]").getByText("복사됨").waitFor({ state: "attached" });
  expect(await page.evaluate("commands")).toEqual([`copy ${window.text}`]);
});

test("with the keyboard the SMS link is the first stop, and after the result the close button is the next", async () => {
  const window = await live({ parent_origin: site.origin });
  const page = await (await person(browser, "android")).newPage();
  await page.goto(`${site.origin}/shop`);
  const [popup] = await Promise.all([
    page.waitForEvent("popup"),
    page.evaluate(`void open("${window.url}")`),
  ]);
  await popup.waitForLoadState();
  await popup.keyboard.press("Tab");
  expect(await popup.evaluate("document.activeElement.href")).toMatch(/^sms:/);
  await send(window);
  await result(popup, "verified").waitFor();
  await popup.keyboard.press("Tab");
  expect(await popup.evaluate("document.activeElement.textContent")).toBe("창 닫기");
  // The window may close before the key press has returned.
  await Promise.all([popup.waitForEvent("close"), popup.keyboard.press("Enter").catch(() => {})]);
});

test("on a desktop number and text are copied with Tab and Enter each", async () => {
  const context = await person(browser, "desktop");
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const window = await live();
  const page = await context.newPage();
  await page.goto(window.url);
  for (const value of [window.to, window.text]) {
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.evaluate("navigator.clipboard.readText()")).toBe(value);
  }
});

test("without JavaScript everything can be read, and a link to refresh shows the status", async () => {
  const window = await live({ return_url: returnUrl });
  const page = await (await person(browser, "android", { javaScriptEnabled: false })).newPage();
  await page.goto(window.url);
  expect(await page.getByText(window.to, { exact: true }).isVisible()).toBe(true);
  expect(await page.getByText(window.text, { exact: true }).isVisible()).toBe(true);
  expect(await page.getByRole("link", { name: "문자 앱 열기" }).getAttribute("href")).toMatch(/^sms:/);
  expect(await page.getByRole("button").count()).toBe(0);
  expect(await page.getByText(/^한국 시각 (오전|오후) \d+:\d\d까지$/).isVisible()).toBe(true);
  expect(await page.getByText("남은 시간").isVisible()).toBe(false);
  expect(await page.getByText("이 페이지는 저절로 바뀌지 않아요.").isVisible()).toBe(true);
  await send(window);
  await page.getByRole("link", { name: "결과 보기" }).click();
  await result(page, "verified").waitFor();
  expect(await page.getByRole("link", { name: "화면으로 가기" }).isVisible()).toBe(true);
});

test.for([
  { how: "does not load", answer: (route: Route) => route.abort() },
  {
    how: "cannot be parsed",
    answer: (route: Route) => route.fulfill({ body: "let const", contentType: "text/javascript" }),
  },
])("if the script $how, a link to refresh shows the status", async ({ answer }) => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await page.route("**/*.js", answer);
  await page.goto(window.url);
  await send(window);
  await page.getByRole("link", { name: "결과 보기" }).click();
  await result(page, "verified").waitFor();
});

test("a phone in desktop mode is offered the link to its SMS app; a desktop is not", async () => {
  const window = await live();
  const desktop = await (await person(browser, "desktop")).newPage();
  await desktop.goto(window.url);
  await expect.poll(() => desktop.locator("[data-remaining]").textContent()).toMatch(/^\d+:\d\d$/);
  expect(await desktop.locator("[data-on-this-device]").isVisible()).toBe(false);
  const phone = await (await person(browser, "desktop", { hasTouch: true, isMobile: true })).newPage();
  await phone.goto(window.url);
  await phone.locator("[data-on-this-device] a").waitFor();
});

test("a Samsung phone in desktop mode, which says that its touch screen can hover, is offered the link, too", async () => {
  const options = { hasTouch: true, isMobile: true };
  const page = await (await person(browser, "desktop", options)).newPage();
  await page.addInitScript(`
    const match = matchMedia;
    window.matchMedia = (query) => match(query.replace("hover: none", "hover: hover"));`);
  await page.goto((await live()).url);
  expect(await page.evaluate("matchMedia('(hover: none)').matches")).toBe(false);
  await page.locator("[data-on-this-device] a").waitFor();
});

test("after an erasure the result page shows no phone", async () => {
  const window = await live();
  const phone = newPhone();
  await send(window, phone);
  const page = await (await person(browser, "android")).newPage();
  await page.goto(window.url);
  await page.locator(".phone").waitFor();
  await Array.fromAsync(service.client(ErasureService).erasePhone({ phone }));
  await page.reload();
  await result(page, "verified").waitFor();
  expect(await page.locator(".phone").isVisible()).toBe(false);
});

test("the window survives a restart of the service", async () => {
  const [port] = await freePorts(1);
  const first = await service.startAnother({ ROLES: "api", PORT: String(port) });
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(window.url.replace(new URL(window.url).host, `localhost:${port}`));
  await expect.poll(() => page.locator("[data-remaining]").textContent()).toMatch(/^\d+:\d\d$/);
  await first.close();
  await page.getByText("다시 연결하고 있어요").waitFor();
  await send(window);
  const second = await service.startAnother({ ROLES: "api", PORT: String(port) });
  await result(page, "verified").waitFor();
  await second.close();
});

test("if no event stream gets through, the window polls the status, also in browsers that cannot give up a request", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript("delete globalThis.AbortController");
  await page.route("**/events", (route) => route.abort());
  await page.goto(window.url);
  await send(window);
  await result(page, "verified").waitFor();
});

test.for([
  { name: "knows no event streams", script: "delete globalThis.EventSource" },
  {
    name: "refuses to open one",
    script: "globalThis.EventSource = class { constructor() { throw new Error('refused'); } }",
  },
])("in a browser that $name, the window polls the status", async ({ script }) => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  const complaints = complaintsOf(page);
  await page.addInitScript(script);
  await page.goto(window.url);
  await page.locator("[data-countdown]").waitFor();
  await send(window);
  await result(page, "verified").waitFor();
  expect(complaints).toEqual([]);
});

test("a window still open when its token expires shows that it can no longer be opened", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.route("**/events", (route) => route.abort());
  await stopClock(page);
  await page.goto(window.url);
  await moveExpiry(service.db, {
    expiresAt: "expires_at - interval '25 hours'",
    where: "id = $1",
    values: [uuidOf(window.id)],
  });
  await page.clock.runFor(3_000);
  await page.getByText("열 수 없는 페이지예요").waitFor();
  expect(await page.getByText(window.to).count()).toBe(0);
});

test("behind a proxy that passes on the stream's headers but not its body, the window polls the status", async () => {
  const window = await live();
  const proxy = http.createServer((request, response) => {
    const { url = "", headers, method } = request;
    http.get(new URL(url, service.httpUrl), { headers, method }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      if (url.endsWith("/events")) {
        response.flushHeaders();
        answer.resume();
      } else answer.pipe(response);
    });
  });
  onTestFinished(() => void proxy.close().closeAllConnections());
  await once(proxy.listen(0, "127.0.0.1"), "listening");
  const { port } = proxy.address() as AddressInfo;
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  const opened = page.waitForResponse("**/events");
  await page.goto(window.url.replace(new URL(window.url).host, `localhost:${port}`));
  await opened;
  await send(window);
  await page.clock.runFor(6_000);
  // If the headers counted as a sign of life, it would poll only after forty seconds.
  await result(page, "verified").waitFor();
});

test("if the event stream falls silent without ending, the window polls the status after forty seconds", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript({
    content: `const Stream = EventSource;
      window.EventSource = class extends Stream {
        addEventListener(type, listener) {
          super.addEventListener(type, (event) => {
            if (document.documentElement.hasAttribute("data-silent")) return;
            listener(event);
            if (type === "state") document.documentElement.setAttribute("data-told", "");
          });
        }
      };`,
  });
  await stopClock(page);
  await page.goto(window.url);
  await page.locator("html[data-told]").waitFor();
  await page.evaluate("document.documentElement.setAttribute('data-silent', '')");
  await send(window);
  await page.clock.runFor(45_000);
  await result(page, "verified").waitFor();
});

test("if the event stream falls silent without ending, as after a change of networks, the window opens another", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  // Of the first stream nothing is heard after its first event.
  await page.addInitScript({
    content: `const Stream = EventSource;
      window.streams = [];
      window.EventSource = class extends Stream {
        constructor(...given) {
          super(...given);
          window.streams.push(this);
        }
        addEventListener(type, listener) {
          super.addEventListener(type, (event) => {
            if (this === window.streams[0] && this.wasHeard) return;
            this.wasHeard = true;
            listener(event);
          });
        }
      };`,
  });
  await stopClock(page);
  await page.goto(window.url);
  const streams = (of: string) => page.evaluate(`window.streams.filter((stream) => ${of}).length`);
  await expect.poll(() => streams("stream.wasHeard")).toBe(1);
  await page.clock.runFor(45_000);
  await expect.poll(() => streams("stream.wasHeard")).toBe(2);
  expect(await streams("true")).toBe(2);
  expect(await streams("stream.readyState === EventSource.OPEN")).toBe(1);
});

test("a stream that breaks is left to the browser, which opens it again after the pause that the service asks for", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript({
    content: `const Stream = EventSource;
      window.EventSource = class extends Stream {
        constructor(...given) {
          super(...given);
          super.addEventListener("error", () => { window.isBroken = true; });
        }
      };`,
  });
  const asked: Route[] = [];
  await page.route("**/events", (route) => void asked.push(route));
  await stopClock(page);
  await page.goto(window.url);
  await expect.poll(() => asked.length).toBe(1);
  await page.clock.runFor(36_000);
  await asked[0]?.fulfill({
    contentType: "text/event-stream",
    body: "retry: 600000\n\nevent: beat\ndata: {}\n\n",
  });
  await expect.poll(() => page.evaluate("window.isBroken === true")).toBe(true);
  const { promise: polled, resolve } = Promise.withResolvers<void>();
  await page.route("**/status", async (route) => {
    await route.continue();
    resolve();
  });
  await page.clock.runFor(8_000);
  await polled;
  expect(asked).toHaveLength(1);
});

/** Keeps the page's event streams in `streams`. */
const keptStreams = `const Stream = EventSource;
  window.streams = [];
  window.EventSource = class extends Stream {
    constructor(...given) {
      super(...given);
      window.streams.push(this);
    }
  };`;
const visibility = (value: "hidden" | "visible") =>
  `Object.defineProperty(document, "visibilityState", { value: "${value}", configurable: true });
   document.dispatchEvent(new Event("visibilitychange"));`;

test("a window that nobody sees keeps no event stream, and is updated as soon as it is seen", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript({ content: keptStreams });
  const open = () => page.evaluate("streams.filter(({ readyState }) => readyState !== 2).length");
  await stopClock(page);
  await page.goto(window.url);
  await expect.poll(() => page.evaluate("streams[0].readyState")).toBe(1);
  await page.evaluate(visibility("hidden"));
  expect(await open()).toBe(0);
  await send(window);
  await page.evaluate(visibility("visible"));
  await result(page, "verified").waitFor();
  await expect.poll(open).toBe(0);
  // Nothing more can happen to it.
  await page.evaluate(visibility("visible"));
  await page.evaluate("dispatchEvent(new Event('online'))");
  expect(await page.evaluate("streams.length")).toBe(2);
});

test("a window opened in the background has no event stream until it is seen", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript({ content: keptStreams + visibility("hidden") });
  await stopClock(page);
  await page.goto(window.url);
  const asked = page.waitForResponse("**/status");
  await page.clock.runFor(3_000);
  await asked;
  expect(await page.evaluate("streams.length")).toBe(0);
  await page.evaluate(visibility("visible"));
  expect(await page.evaluate("streams.length")).toBe(1);
});

test("the remaining time never grows, whatever a late answer says", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.route("**/events", (route) => route.abort());
  await stopClock(page);
  await page.goto(window.url);
  await page.route("**/status", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), remainingMs: 3_000_000 } });
  });
  const answered = page.waitForResponse("**/status");
  await page.clock.runFor(3_000);
  await (await answered).finished();
  await page.clock.runFor(3_000);
  expect(await page.locator("[data-remaining]").textContent()).toMatch(/^\d:\d\d$/);
  // A later poll may be on its way through the route when the page closes.
  await page.unrouteAll({ behavior: "wait" });
});

test.for([
  { name: "refused", answer: { status: 503 } },
  {
    name: "answered with another page, as by a network that wants a login",
    answer: { status: 200, contentType: "text/html", body: "<p>Log in" },
  },
])("$name again and again, the window asks less and less often, down to every half minute", async ({
  answer,
}) => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  await page.route("**/events", (route) => route.abort());
  await page.route("**/status", (route) => route.fulfill(answer));
  // Counted in the page, which asks while its clock runs: the request may get here later. The window reads the body of an answer
  // with status 200, and asks again only after that.
  await page.addInitScript(`globalThis.asked = 0;
    globalThis.answered = 0;
    const count = () => answered++;
    const { json } = Response.prototype;
    Response.prototype.json = function () {
      const body = json.call(this);
      body.then(count, count);
      return body;
    };
    const send = fetch;
    globalThis.fetch = (...request) => {
      const answer = send(...request);
      if (request[0].endsWith("/status")) {
        asked++;
        answer.then(({ ok }) => ok || count(), count);
      }
      return answer;
    };`);
  await page.goto(window.url);
  await page.evaluate(`var said = [];
    const connection = document.querySelector("[data-connection]");
    new MutationObserver(() => said.push(connection.textContent)).observe(connection, { childList: true });`);
  const asked = () => page.evaluate<number>("asked");
  const askedIn = async (steps: number, stepSeconds: number) => {
    const before = await asked();
    for (let step = 0; step < steps; step++) {
      await page.clock.runFor(stepSeconds * 1_000);
      await expect.poll(() => page.evaluate("asked - answered"), { interval: 5 }).toBe(0);
    }
    return (await asked()) - before;
  };
  expect(await askedIn(30, 3)).toBeLessThan(10);
  expect(await askedIn(10, 33)).toBeGreaterThanOrEqual(9);
  // A screen reader would read it again and again.
  expect(await page.evaluate("said")).toEqual([expect.stringContaining("다시 연결하고 있어요")]);
  // After an answer, the next refusal counts as the first.
  await page.unroute("**/status");
  await askedIn(1, 33);
  await page.route("**/status", (route) => route.fulfill(answer));
  expect(await askedIn(3, 3)).toBeGreaterThanOrEqual(2);
});

test("while a status request is unanswered the window makes no other", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  const asked: Route[] = [];
  await page.route("**/events", (route) => route.abort());
  await page.route("**/status", (route) => void asked.push(route));
  await page.goto(window.url);
  await page.clock.runFor(3_000);
  await expect.poll(() => asked.length).toBe(1);
  await page.evaluate("dispatchEvent(new Event('online'))");
  await page.clock.runFor(30_000);
  // Requests are made in order, so one that the page made before is known when this one is answered.
  await page.evaluate("fetch('/openapi.json').then((answer) => answer.text())");
  expect(asked).toHaveLength(1);
  await send(window);
  await page.unroute("**/status");
  await asked[0]?.continue();
  await result(page, "verified").waitFor();
});

test("a status request that stays unanswered for forty seconds is given up, and another is made", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  await page.route("**/events", (route) => route.abort());
  let asked = 0;
  await page.route("**/status", async (route) => {
    asked += 1;
    if (asked > 1) await route.continue();
  });
  await page.goto(window.url);
  await page.clock.runFor(3_000);
  await expect.poll(() => asked).toBe(1);
  await send(window);
  const connection = page.locator("[data-connection]");
  expect(await connection.textContent()).toBe("");
  await page.clock.runFor(40_000);
  await expect.poll(() => connection.textContent()).toContain("다시 연결하고 있어요");
  await page.clock.runFor(6_000);
  await result(page, "verified").waitFor();
});

test("a status request that is given up does not count as a lost connection if a stream is heard meanwhile", async () => {
  const window = await live({ mode: "match", expected_phone: newPhone() });
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  const asked: Route[] = [];
  await page.route("**/events", (route) => route.abort());
  await page.route("**/status", (route) => void asked.push(route));
  await page.goto(window.url);
  await page.clock.runFor(3_000);
  await expect.poll(() => asked.length).toBe(1);
  await page.unroute("**/events");
  await page.clock.runFor(3_000);
  await send(window, newPhone());
  const hint = async () => {
    await page.clock.runFor(50);
    return page.locator("[data-hint]").textContent();
  };
  await expect.poll(hint).toContain("다른 번호");
  const failed = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/status"));
  await page.clock.runFor(38_000);
  await failed;
  expect(await page.locator("[data-connection]").textContent()).toBe("");
});

test.for([
  429, 503,
])("with %i answers the window says that it reconnects, honours Retry-After, and later says that time may be up", async (status) => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript({ content: keptStreams });
  await stopClock(page);
  let asked = 0;
  const streams = () => page.evaluate("streams.length");
  await page.route("**/events", (route) => route.fulfill({ status }));
  await page.route("**/status", (route) => {
    asked += 1;
    return route.fulfill({ status, headers: { "retry-after": "20" } });
  });
  await page.goto(window.url);
  // A stream that is still being opened would not be opened again.
  await expect.poll(() => page.evaluate("streams[0].readyState")).toBe(2);
  const connection = page.locator("[data-connection]");
  await page.clock.runFor(3_000);
  await expect.poll(() => connection.textContent()).toContain("다시 연결하고 있어요");
  await page.evaluate(`var changes = 0;
    const watched = document.querySelector("[data-connection]");
    new MutationObserver(() => { changes += 1; }).observe(watched, { childList: true, characterData: true, subtree: true });`);
  // Not before Retry-After is over, whatever the person does meanwhile.
  expect(await streams()).toBe(2);
  for (const event of ["online", "visibilitychange"]) {
    await page.evaluate(
      `(${event === "online" ? "window" : "document"}).dispatchEvent(new Event("${event}"))`,
    );
    await page.clock.runFor(6_000);
  }
  expect([asked, await streams()]).toEqual([1, 2]);
  await page.clock.runFor(18_000);
  await expect.poll(() => asked).toBe(2);
  // A screen reader would repeat the same text at each change.
  expect(await page.evaluate("changes")).toBe(0);
  await page.clock.fastForward(600_000);
  await expect.poll(() => connection.textContent()).toContain("시간이 지난 것 같아요");
  await page.unroute("**/status");
  await send(window);
  await page.clock.runFor(60_000);
  await result(page, "verified").waitFor();
});

test("a window that is still pending some seconds after its expiry, though connected, says that time is probably up", async () => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await stopClock(page);
  await page.goto(window.url);
  const remaining = page.locator("[data-remaining]");
  const connection = page.locator("[data-connection]");
  await page.clock.fastForward(601_000);
  await expect.poll(() => remaining.textContent()).toBe("0:00");
  expect(await connection.textContent()).toBe("");
  await page.clock.runFor(6_000);
  await expect.poll(() => connection.textContent()).toContain("시간이 지난 것 같아요");
  await send(window);
  await page.clock.runFor(6_000);
  await result(page, "verified").waitFor();
});

test("temporary 404 answers of a proxy do not replace the page", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  let asked = 0;
  const nothingHere = (route: Route) => {
    asked += 1;
    return route.fulfill({ status: 404, body: "404 page not found" });
  };
  await page.route("**/events", nothingHere);
  await page.goto(window.url);
  await page.route(/\/(status|v\/[^/]+)$/, nothingHere);
  await page.clock.runFor(3_000);
  await expect.poll(() => page.locator("[data-connection]").textContent()).toContain("다시 연결하고 있어요");
  expect(asked).toBeGreaterThan(1);
  await page.unrouteAll();
  await send(window);
  await page.clock.runFor(40_000);
  await result(page, "verified").waitFor();
});

test("a status answer that arrives late does not remove a newer hint", async () => {
  const window = await live({ mode: "match", expected_phone: newPhone() });
  const page = await (await person(browser, "android")).newPage();
  const late = Promise.withResolvers<void>();
  const answered = Promise.withResolvers<void>();
  await page.route("**/status", async (route) => {
    const response = await route.fetch();
    answered.resolve();
    await late.promise;
    await route.fulfill({ response });
  });
  const opened = page.waitForResponse("**/events");
  await page.goto(window.url);
  await opened;
  // As when the page becomes visible again: the stream is reopened, and the status is requested.
  await page.evaluate(`dispatchEvent(new Event("online"))`);
  await answered.promise;
  await send(window, newPhone());
  const hint = page.locator("[data-hint]");
  await expect.poll(() => hint.textContent()).toContain("다른 번호에서 보낸 문자");
  const statusAnswer = page.waitForResponse("**/status");
  late.resolve();
  await (await statusAnswer).finished();
  // A new hint is inserted a moment after the old one was removed.
  await page.evaluate("new Promise((resolve) => setTimeout(resolve, 200))");
  expect(await hint.textContent()).toContain("다른 번호에서 보낸 문자");
});

test("a device that goes offline shows that at once, and is updated as soon as it is online", async () => {
  const window = await live();
  const context = await person(browser, "android");
  const page = await context.newPage();
  await page.addInitScript({
    content: `const Stream = EventSource;
      window.EventSource = class extends Stream {
        constructor(...given) {
          super(...given);
          this.addEventListener("state", () => document.documentElement.setAttribute("data-connected", ""));
        }
      };`,
  });
  // The window does not poll by itself.
  await stopClock(page);
  await page.goto(window.url);
  const connection = page.locator("[data-connection]");
  // Whatever still arrived on the stream would count as a sign of life.
  await page.locator("html[data-connected]").waitFor();
  await context.setOffline(true);
  await expect.poll(() => connection.textContent()).toContain("다시 연결하고 있어요");
  await send(window);
  await context.setOffline(false);
  await result(page, "verified").waitFor();
});

test("the simulated phone shows each receipt, and the window its effect", async () => {
  const window = await createWindow(service, project, { mode: "match", expected_phone: "010-2222-3333" });
  const page = await (await person(browser, "desktop", { locale: "en-US" })).newPage();
  const complaints = complaintsOf(page);
  await page.goto(window.url);
  const receipt = page.locator("[data-receipt]");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await expect.poll(() => receipt.textContent()).toContain("SENDER_MISMATCH");
  await expect.poll(() => page.locator("[data-hint]").textContent()).toContain("another number");
  await page.getByRole("button", { name: "Web-sent" }).click();
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await expect.poll(() => page.locator("[data-hint]").textContent()).toContain("from the web");
  await page.getByRole("button", { name: "As asked" }).click();
  await page.getByLabel("Sender").fill("010-2222-3333");
  await page.getByLabel("Carrier").selectOption("LGU+");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await result(page, "verified").waitFor();
  expect(await page.locator("main .phone").textContent()).toBe("010-****-3333 LGU+");
  expect(complaints).toEqual([]);
  await page.route("**/messages?*", (route) => route.abort());
  await page.getByRole("button", { name: "Send", exact: true }).click();
  const failed = "It could not be sent. Try again in a moment.";
  await expect.poll(() => receipt.textContent()).toBe(failed);
  // Emptied before, so that a screen reader repeats it.
  await listen(page, "[data-receipt]");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await expect.poll(() => page.evaluate("heard")).toEqual(["", failed]);
});
