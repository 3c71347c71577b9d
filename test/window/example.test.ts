/** Runs examples/merchant against a service with a project "Demo". */
import { once } from "node:events";
import path from "node:path";
import type { Page } from "playwright-core";
import { expect, test, vi } from "vitest";
import { answerOf, type Running, startNode, towards } from "../cli/command.ts";
import { atFileEnd } from "../harness/endings.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { startBrowser } from "./chromium.ts";
import { person } from "./person.ts";

const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
const { projectId } = await service.createProject({ name: "Demo" });
const [port] = await freePorts(1);
const shop = `http://localhost:${port}`;
const lines = await startExample();
const browser = await startBrowser();

const popupButton = (page: Page) => page.getByRole("button", { name: "Verify in a popup" });
/** The simulated phone's. */
const sendButton = (window: Page) => window.getByRole("button", { name: "보내기", exact: true });
const shown = (page: Page) => page.locator("#result").textContent();

async function openPopup(page: Page): Promise<Page> {
  const popup = page.waitForEvent("popup");
  await popupButton(page).click();
  return popup;
}

test("the popup's result is confirmed by the merchant's server, the webhook arrives, and the window does not have the session's secret", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const popup = await openPopup(page);
  await sendButton(popup).click();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
  await expect.poll(() => lines.join("")).toContain("webhook verification.verified for vrf_");
  // Others may see the window.
  const session = (await page.context().cookies(shop)).find(({ name }) => name === "session");
  expect(session?.value).toMatch(/./);
  const whatItSays = await (await fetch(popup.url())).text();
  expect(whatItSays).toContain("client_reference");
  expect(whatItSays).not.toContain(session?.value);
});

test("with a keyboard the focus is where it was once the popup is closed, and nothing is told twice", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  await page.evaluate(`var told = [];
    const result = document.querySelector("#result");
    new MutationObserver(() => told.push(result.textContent)).observe(result, { childList: true });`);
  await page.keyboard.press("Tab");
  const opened = page.waitForEvent("popup");
  await page.keyboard.press("Enter");
  const popup = await opened;
  await sendButton(popup).waitFor();
  expect(await page.evaluate("document.activeElement.id")).toBe("popup");
  await page.route("**/attempts/mine", (route) => route.abort());
  await popup.close();
  for (let failed = 0; failed < 3; failed++) {
    await page.waitForEvent("requestfailed", (request) => request.url().endsWith("/attempts/mine"));
  }
  expect(await page.evaluate("told")).toEqual(["…", expect.stringContaining("cannot be read")]);
  expect(await page.evaluate("document.activeElement.id")).toBe("popup");
});

test("a closed popup can be opened again, and the page shows the result", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const popup = await openPopup(page);
  await sendButton(popup).waitFor();
  await popup.close();
  const link = page.getByRole("link", { name: "Open the window again" });
  const [again] = await Promise.all([page.context().waitForEvent("page"), link.click()]);
  await sendButton(again).click();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
});

test("a page that was reloaded while its popup was open goes on with the attempt, and shows the result on each reload", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const popup = await openPopup(page);
  await sendButton(popup).waitFor();
  await page.reload();
  expect(await page.getByRole("link", { name: "Open the window again" }).getAttribute("href")).toBe(
    popup.url(),
  );
  await sendButton(popup).click();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
  await page.reload();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
});

test("a page offers the window of the attempt that another tab has started since", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const popup = await openPopup(page);
  await sendButton(popup).waitFor();
  await popup.close();
  const offered = () => page.getByRole("link", { name: "Open the window again" }).getAttribute("href");
  expect(await offered()).toBe(popup.url());
  const other = await page.context().newPage();
  await other.goto(shop);
  await other.getByRole("button", { name: "Verify on its own page" }).click();
  await sendButton(other).waitFor();
  await expect.poll(offered).toBe(other.url());
});

test("a second click replaces the popup, which Firefox would leave behind the page", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const first = await openPopup(page);
  await sendButton(first).waitFor();
  const closed = first.waitForEvent("close");
  const second = await openPopup(page);
  await closed;
  await sendButton(second).click();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
});

test("a double click begins one attempt", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  let begun = 0;
  page.on("request", (request) => {
    if (request.method() === "POST") begun += 1;
  });
  const button = popupButton(page);
  const popup = page.waitForEvent("popup");
  await button.evaluate((element) => {
    (element as unknown as { click(): void }).click();
    (element as unknown as { click(): void }).click();
  });
  await sendButton(await popup).click();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
  expect(begun).toBe(1);
  expect(await button.isEnabled()).toBe(true);
});

test("two tabs share the pending attempt, whichever of their windows the person uses", async () => {
  const context = await person(browser, "desktop");
  const open = async () => {
    const page = await context.newPage();
    await page.goto(shop);
    const popup = await openPopup(page);
    await sendButton(popup).waitFor();
    return { page, popup };
  };
  const first = await open();
  const second = await open();
  await sendButton(first.popup).click();
  for (const { page } of [first, second]) {
    await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
  }
  expect(second.popup.url()).toBe(first.popup.url());
});

test("after the end of an attempt, and for the other way to open the window, another one begins", async () => {
  const first = await beginWith("popup");
  const other = await beginWith("redirect", first.cookie);
  expect(other.id).not.toBe(first.id);
  await answerOf(["verification", "cancel", other.id], towards(service));
  const next = await beginWith("redirect", other.cookie);
  expect(next.id).not.toBe(other.id);
});

test("a session that a stranger has put into the browser does not get the result", async () => {
  const strangers = await beginWith("popup");
  const persons = await beginWith("popup", strangers.cookie);
  expect(persons.id).toBe(strangers.id);
  const mine = ({ cookie }: { cookie: string }) => fetch(`${shop}/attempts/mine`, { headers: { cookie } });
  expect(await (await mine(strangers)).json()).toEqual({ status: "none" });
  expect(await (await mine(persons)).json()).toEqual({
    status: "pending",
    phone: null,
    verification_url: persons.url,
  });
});

/** What the page does when a button is pressed. */
async function beginWith(style: string, before = "") {
  const body = JSON.stringify({ style });
  const begun = await fetch(`${shop}/attempts`, { method: "POST", body, headers: { cookie: before } });
  const { verification_id: id = "", verification_url: url } = (await begun.json()) as Record<string, string>;
  const [cookie = ""] = begun.headers.get("set-cookie")?.split(";") ?? [];
  return { id, url, cookie };
}

test("an attempt goes on if the next one cannot be started", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const button = popupButton(page);
  const popup = await openPopup(page);
  const send = sendButton(popup);
  await send.waitFor();
  const address = popup.url();
  await page.route("**/attempts", (route) => route.abort());
  await button.click();
  const result = page.locator("#result");
  // The click has closed the first popup, whose attempt goes on: both are said.
  await expect
    .poll(() => result.textContent())
    .toMatch(/cannot be started at the moment.*Open the window again/);
  // Nor does a result that cannot be read replace it. By the second such answer, the first has been shown.
  await page.route("**/attempts/mine", (route) => route.abort());
  for (let failed = 0; failed < 2; failed++) {
    await page.waitForEvent("requestfailed", (request) => request.url().endsWith("/attempts/mine"));
  }
  await page.unroute("**/attempts/mine");
  expect(await result.textContent()).toMatch(/cannot be started at the moment.*Open the window again/);
  const again = await page.context().newPage();
  await again.goto(address);
  await sendButton(again).click();
  await expect.poll(() => result.textContent()).toBe("Verified: 01012345678");
});

test("a first visit leaves no error in the browser's console", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  const errors: string[] = [];
  page.on("console", (message) => void errors.push(`${message.text()} ${message.location().url}`));
  await page.goto(shop, { waitUntil: "networkidle" });
  expect(errors).toEqual([]);
});

test("after an erasure the page says so, and after the loss of the verification another one begins", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  const popup = await openPopup(page);
  await sendButton(popup).click();
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
  await answerOf(["erase", "--phone", "01012345678", "--yes"], towards(service));
  await page.reload();
  await expect.poll(() => shown(page)).toContain("was erased");
  const first = await beginWith("popup");
  await service.db.query("TRUNCATE verification CASCADE");
  const other = await beginWith("popup", first.cookie);
  expect(other.id).toMatch(/^vrf_/);
  expect(other.id).not.toBe(first.id);
});

test("a browser that keeps no cookies is told so, and the shop is not asked again", async () => {
  const page = await (await person(browser, "desktop")).newPage();
  await page.goto(shop);
  await page.route("**/attempts", async (route) => {
    const answer = await route.fetch();
    // As if the browser had refused the cookie.
    await page.context().clearCookies();
    await route.fulfill({ response: answer, headers: { "content-type": "application/json" } });
    await page.context().clearCookies();
  });
  let questions = 0;
  page.on("request", (request) => {
    if (request.url().endsWith("/attempts/mine")) questions += 1;
  });
  const popup = await openPopup(page);
  await sendButton(popup).waitFor();
  await page.clock.install();
  await popup.close();
  await expect.poll(() => shown(page)).toContain("Allow its cookies");
  await page.clock.fastForward(60_000);
  expect(questions).toBe(1);
});

test("opened as 127.0.0.1, the shop redirects to localhost, where sessions and window messages work", async () => {
  const { status, headers } = await fetch(`http://127.0.0.1:${port}/?from=bookmark`, { redirect: "manual" });
  expect([status, headers.get("location")]).toEqual([307, `${shop}/?from=bookmark`]);
});

test("invalid JSON is answered with 400", async () => {
  for (const body of ["{", "null"]) {
    expect((await fetch(`${shop}/attempts`, { method: "POST", body })).status).toBe(400);
  }
});

test("a form on another site begins nothing, and does not replace the session", async () => {
  for (const origin of ["https://other.example", "null", shop.replace("localhost", "127.0.0.1")]) {
    const begun = await fetch(`${shop}/attempts`, { method: "POST", body: "{}", headers: { origin } });
    expect([begun.status, begun.headers.get("set-cookie")], origin).toEqual([403, null]);
  }
});

test("the redirect returns to the session that started the verification", async () => {
  const page = await (await person(browser, "android")).newPage();
  await page.goto(shop);
  await page.getByRole("button", { name: "Verify on its own page" }).click();
  await sendButton(page).click();
  await page.waitForURL(`${shop}/#returned`);
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
});

test.for([
  { name: "nothing", device: "desktop", script: "window.open = () => null" },
  {
    name: "an empty page in place of the shop's, as a browser inside an app does",
    device: "android",
    script: "window.open = () => { location = 'about:blank'; return window; }",
  },
] as const)("where the browser opens $name for a popup, the window takes the page's place and returns to it", async ({
  device,
  script,
}) => {
  const page = await (await person(browser, device)).newPage();
  await page.addInitScript(script);
  await page.goto(shop);
  await popupButton(page).click();
  await sendButton(page).click();
  await page.waitForURL(`${shop}/#returned`);
  await expect.poll(() => shown(page)).toBe("Verified: 01012345678");
});

test("a session gets no phone from the webhook of another session's verification", async () => {
  const begin = async () => {
    const begun = await fetch(`${shop}/attempts`, { method: "POST", body: "{}" });
    const { verification_url: url, verification_id: id } = (await begun.json()) as Record<string, string>;
    return { url, id, headers: { cookie: begun.headers.get("set-cookie") ?? "" } };
  };
  const [waiting, verified] = [await begin(), await begin()];
  const page = await (await fetch(verified.url ?? "")).text();
  const [, text = ""] = /<textarea[^>]*>([^<]+)</.exec(page) ?? [];
  const body = new URLSearchParams({ from: "010-1234-5678", text, carrier: "SKT" });
  await fetch(`${verified.url}/messages`, { method: "POST", body, redirect: "manual" });
  await expect.poll(() => lines.join("")).toContain(`webhook verification.verified for ${verified.id}`);
  const phoneOf = async ({ headers }: typeof waiting) =>
    ((await (await fetch(`${shop}/attempts/mine`, { headers })).json()) as { phone: string | null }).phone;
  expect(await Promise.all([phoneOf(verified), phoneOf(waiting)])).toEqual(["01012345678", null]);
});

test("another session's result and a forged webhook are refused", async () => {
  const begun = await fetch(`${shop}/attempts`, { method: "POST", body: "{}" });
  const { state } = (await begun.json()) as { state: string };
  const cookie = begun.headers.get("set-cookie") ?? "";
  expect(cookie).toMatch(/^session=[\w-]+; HttpOnly; SameSite=Lax; Path=\/$/);
  const back = async (query: string, headers = {}) =>
    (await fetch(`${shop}/back?status=verified&state=${query}`, { redirect: "manual", headers })).status;
  expect(await back(state, { cookie })).toBe(303);
  expect(await back("another", { cookie })).toBe(400);
  expect(await back(state)).toBe(400);
  const forged = {
    "webhook-id": "evt_1",
    "webhook-timestamp": String(Math.floor(Date.now() / 1000)),
    "webhook-signature": "v1,AAAA",
  };
  expect((await fetch(`${shop}/webhook`, { method: "POST", body: "{}", headers: forged })).status).toBe(401);
});

test("a port that is in use or invalid: exits with one line that names the setting, and changes nothing in the project", async () => {
  const demo = async () => {
    const answers: unknown[] = [];
    for (const command of [
      ["project", "show", projectId],
      ["key", "list", "--project", projectId],
      ["webhook", "show", "--project", projectId, "--environment", "test"],
    ]) {
      answers.push(await answerOf(command, towards(service)));
    }
    // The time of the last use is recorded later.
    return JSON.stringify(answers, (name, value) => (name === "last_used_at" ? undefined : value));
  };
  const before = await demo();
  const invalid = "MERCHANT_PORT must be a port from 1 to 65535";
  for (const [given, message] of [
    [String(port), `MERCHANT_PORT: port ${port} on 127.0.0.1 is in use by another program`],
    ["0", invalid],
    ["65536", invalid],
    ["1e4", invalid],
  ] as const) {
    expect(await runExample(given).finished, given).toEqual({
      code: 2,
      stdout: "",
      stderr: `phoneproof: ${message}\n`,
    });
  }
  expect(await demo()).toBe(before);
});

function runExample(merchantPort: string): Running {
  const file = path.join(import.meta.dirname, "../../examples/merchant/run.ts");
  return startNode([file], {
    ...towards(service),
    PUBLIC_BASE_URL: service.httpUrl,
    MERCHANT_PORT: merchantPort,
  });
}

/** Starts the example and returns what it prints, as a growing list. */
async function startExample(): Promise<string[]> {
  const { child } = runExample(String(port));
  const exited = once(child, "exit");
  atFileEnd(async () => {
    child.kill();
    await exited;
  });
  const printed: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on("data", (text: string) => printed.push(text));
  }
  await vi.waitUntil(() => printed.join("").includes("The shop is open"), { timeout: 45_000 });
  return printed;
}
