/** How an open window learns what happened, whatever networks, proxies, browsers and devices do. */

import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import type { Route } from "playwright-core";
import { expect, onTestFinished, test } from "vitest";
import { moveExpiry } from "../harness/expiry.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { uuidOf } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { startBrowser } from "./chromium.ts";
import { createWindow, type OpenWindow } from "./open-window.ts";
import { complaintsOf, inSteps, person, result, stopClock } from "./person.ts";

const service = await startTestService();
const project = await service.createProject();
const browser = await startBrowser();
const cli = smsSource(service);

/** Keeps the page's event streams in `streams`. */
const keptStreams = `const Stream = EventSource;
  window.streams = [];
  window.EventSource = class extends Stream {
    constructor(...given) {
      super(...given);
      window.streams.push(this);
    }
  };`;

/**
 * Counts the window's status requests in `asked`, and those whose answer it has read in `answered`. Counted in the page, which asks
 * while its clock runs: the request may reach a route later. The window reads the body of an answer with status 200, and asks again
 * only after that.
 */
const countedPolls = `globalThis.asked = 0;
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
  };`;

const live = (request: object = {}) => createWindow(service, project, request, "live");
const send = (window: OpenWindow, from = "010-1234-5678", text = window.text) =>
  cli.send({ to: window.to, from, text, carrier: "SKT" });

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
      window.streams = [];
      window.EventSource = class extends Stream {
        constructor(...given) {
          super(...given);
          window.streams.push(this);
        }
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
  // The browser would otherwise open it again each time that the service has ended it.
  await page.clock.runFor(3_000);
  expect(await page.evaluate("streams.every(({ readyState }) => readyState === 2)")).toBe(true);
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
  await page.addInitScript({ content: countedPolls + keptStreams });
  const opened: Route[] = [];
  await page.route("**/events", (route) => void opened.push(route));
  await stopClock(page);
  await page.goto(window.url);
  await expect.poll(() => opened.length).toBe(1);
  await page.evaluate("streams[0].addEventListener('error', () => { window.isBroken = true; })");
  await page.clock.runFor(36_000);
  await opened[0]?.fulfill({
    contentType: "text/event-stream",
    body: "retry: 600000\n\nevent: beat\ndata: {}\n\n",
  });
  await expect.poll(() => page.evaluate("window.isBroken === true")).toBe(true);
  // While one is unanswered, it would ask no more.
  await expect.poll(() => page.evaluate("asked - answered")).toBe(0);
  const asked = await page.evaluate<number>("asked");
  await page.clock.runFor(8_000);
  expect(await page.evaluate("asked")).toBeGreaterThan(asked);
  expect(await page.evaluate("streams.map(({ readyState }) => readyState)")).toEqual([0]);
});

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

test("a window that is hidden polls the status from then on, and shows the result although nobody sees it", async () => {
  const window = await live();
  const page = await (await person(browser, "desktop")).newPage();
  await page.addInitScript({ content: keptStreams });
  await stopClock(page);
  await page.goto(window.url);
  await expect.poll(() => page.evaluate("streams[0].readyState")).toBe(1);
  await page.evaluate(visibility("hidden"));
  await send(window);
  await page.clock.runFor(3_000);
  await result(page, "verified").waitFor();
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
  await page.evaluate("dispatchEvent(new Event('online'))");
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
  await page.addInitScript({ content: countedPolls });
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
  const hint = page.locator("[data-hint]");
  await expect.poll(inSteps(page, () => hint.textContent())).toContain("다른 번호");
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
  // A second after the expiry: without a connection, no result can be on its way.
  await page.clock.fastForward(568_000);
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
  // Not less than a minute, but nothing.
  expect(await page.locator("[data-running-out]").textContent()).toBe("");
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

/** Marks the page once its event stream has told the state: what still arrives counts as a sign of life. */
const connectedMark = `const Stream = EventSource;
  window.EventSource = class extends Stream {
    constructor(...given) {
      super(...given);
      this.addEventListener("state", () => document.documentElement.setAttribute("data-connected", ""));
    }
  };`;

test("a device that is said to be offline, and is not, is found to be connected within some seconds", async () => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await page.addInitScript({ content: connectedMark });
  await stopClock(page);
  await page.goto(window.url);
  await page.locator("html[data-connected]").waitFor();
  const connection = page.locator("[data-connection]");
  await page.evaluate("dispatchEvent(new Event('offline'))");
  expect(await connection.textContent()).toContain("다시 연결하고 있어요");
  const asked = page.waitForResponse("**/status");
  await page.clock.runFor(3_000);
  await asked;
  await expect.poll(() => connection.textContent()).toBe("");
});

test("a window whose event stream does no more than beat neither polls nor opens another", async () => {
  const window = await live();
  const page = await (await person(browser, "android")).newPage();
  await page.addInitScript({ content: keptStreams });
  await stopClock(page);
  let asked = 0;
  await page.route("**/status", () => {
    asked += 1;
  });
  await page.goto(window.url);
  await expect.poll(() => page.evaluate("streams[0].readyState")).toBe(1);
  for (let beat = 0; beat < 4; beat++) {
    await page.evaluate("streams[0].dispatchEvent(new Event('beat'))");
    await page.clock.runFor(30_000);
  }
  expect([asked, await page.evaluate("streams.length")]).toEqual([0, 1]);
});

test("a window that hears its event stream says no more that it reconnects, though it cannot ask for the status", async () => {
  const window = await live({ mode: "match", expected_phone: newPhone() });
  const page = await (await person(browser, "android")).newPage();
  await page.addInitScript({ content: connectedMark });
  await stopClock(page);
  await page.route("**/status", () => {});
  await page.goto(window.url);
  await page.locator("html[data-connected]").waitFor();
  const connection = page.locator("[data-connection]");
  await page.evaluate("dispatchEvent(new Event('offline'))");
  expect(await connection.textContent()).toContain("다시 연결하고 있어요");
  await send(window);
  await expect.poll(() => connection.textContent()).toBe("");
});

test("a device that goes offline shows that at once, and is updated as soon as it is online", async () => {
  const window = await live();
  const context = await person(browser, "android");
  const page = await context.newPage();
  await page.addInitScript({ content: connectedMark });
  // The window does not poll by itself.
  await stopClock(page);
  await page.goto(window.url);
  const connection = page.locator("[data-connection]");
  await page.locator("html[data-connected]").waitFor();
  await context.setOffline(true);
  await expect.poll(() => connection.textContent()).toContain("다시 연결하고 있어요");
  await send(window);
  await context.setOffline(false);
  await result(page, "verified").waitFor();
});
