import type { Locator, Page, Route } from "playwright-core";
import { expect, test } from "vitest";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { startTestService } from "../harness/service.ts";
import { letExpire } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { startBrowser } from "./chromium.ts";
import { createWindow, type OpenWindow } from "./open-window.ts";
import { complaintsOf, inSteps, merchantSite, person, result, stopClock } from "./person.ts";

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
  // Its first event would take off the time that the page took to load, perhaps only after the look at what remains.
  await page.route("**/events", (route) => route.abort());
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
  expect(await popup.getByText("이 창은 닫아도 돼요.").isVisible()).toBe(true);
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
  await stopClock(page);
  await page.goto(window.url);
  await send(window);
  const announced = page.getByText("잠시 후 달빛상점 Moonlight Shop 화면으로 돌아가요.");
  // Shown for three seconds before the redirect.
  await expect.poll(inSteps(page, () => announced.isVisible())).toBe(true);
  await page.clock.runFor(3_000);
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
  // The page is not left before it has been looked at.
  await stopClock(page);
  await page.goto(window.url);
  await page.evaluate(`var heard = [];
    const region = document.querySelector("[data-returning]");
    new MutationObserver(() => heard.push([region.checkVisibility(), region.textContent])).observe(region, { childList: true });`);
  await send(window);
  await expect.poll(inSteps(page, () => page.evaluate("heard"))).toEqual([
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
  // Only a change is brought into view: a page that is loaded begins where the browser says.
  expect(await page.evaluate("document.activeElement.tagName")).toBe("BODY");
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

test.for([
  "Meta",
  "Shift",
] as const)("a click with %s, which opens a tab or a window on some systems, prevents the automatic redirect and its announcement", async (key) => {
  const window = await live({ return_url: returnUrl });
  await send(window);
  const page = await (await person(browser, "desktop")).newPage();
  await stopClock(page);
  await page.goto(window.url);
  await page.evaluate(
    "var ways = 0; addEventListener('click', (event) => { ways += 1; event.preventDefault(); })",
  );
  const link = page.getByRole("link", { name: "달빛상점 Moonlight Shop 화면으로 가기" });
  await link.click({ modifiers: [key] });
  expect(await page.locator("[data-returning]").isVisible()).toBe(false);
  await page.clock.runFor(60_000);
  expect(await page.evaluate("ways")).toBe(1);
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
    await expect.poll(inSteps(page, () => page.locator("[data-feedback]").textContent())).toBe("복사됨");
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
    await expect.poll(inSteps(page, () => page.evaluate("heard"))).toEqual(heard);
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
  await expect.poll(inSteps(page, () => page.getByText("직접 복사해 주세요").isVisible())).toBe(true);
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
  const refusal = { status: 429, json: { error: { code: "rate_limited" } } };
  await page.route("**/messages?*", (route) => route.fulfill(refusal));
  // Emptied before, so that a screen reader repeats it.
  await listen(page, "[data-receipt]");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await expect.poll(() => page.evaluate("heard")).toEqual(["", failed]);
});
