/** Browser contexts of a person on a phone or a desktop. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import type { Browser, BrowserContext, BrowserContextOptions, Page } from "playwright-core";
import { afterEach } from "vitest";
import { atFileEnd } from "../harness/endings.ts";
import { android, iphone } from "./open-window.ts";

const devices = {
  android: { userAgent: android, viewport: { width: 360, height: 780 }, isMobile: true, hasTouch: true },
  iphone: { userAgent: iphone, viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true },
  desktop: { viewport: { width: 1280, height: 900 } },
} satisfies Record<string, BrowserContextOptions>;

export type Device = keyof typeof devices;

const contexts: BrowserContext[] = [];

afterEach(async () => {
  await Promise.all(contexts.splice(0).map((context) => context.close()));
});

/** Closed at the end of the test. */
export async function person(
  browser: Browser,
  device: Device,
  options: BrowserContextOptions = {},
): Promise<BrowserContext> {
  const context = await browser.newContext({
    locale: "ko-KR",
    reducedMotion: "reduce",
    ...devices[device],
    ...options,
  });
  context.setDefaultTimeout(45_000);
  contexts.push(context);
  return context;
}

/** From the next page on, only the test moves the page's clock, however long the steps take. */
export async function stopClock(page: Page): Promise<void> {
  await page.clock.install();
  await page.clock.pauseAt(Date.now() + 60_000);
}

/** What the page shows after each step of its stopped clock: it announces a text only some milliseconds after it knows it. */
export const inSteps =
  <T>(page: Page, look: () => Promise<T>) =>
  async (): Promise<T> => {
    await page.clock.runFor(50);
    return look();
  };

/** Collects the browser's errors and warnings about the page, such as CSP violations and uncaught exceptions. */
export function complaintsOf(page: Page): string[] {
  const complaints: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(error.message));
  return complaints;
}

/** A merchant's site, with a page at every path that records the messages it receives. Closed at the end of the file. */
export async function merchantSite(): Promise<{ readonly origin: string; readonly visits: string[] }> {
  const visits: string[] = [];
  const server = createServer((request, response) => {
    if (request.url !== "/favicon.ico") visits.push(request.url ?? "");
    response
      .writeHead(200, { "content-type": "text/html" })
      .end(`<!doctype html><title>Merchant</title><script>
      const received = [];
      addEventListener("message", ({ data, origin }) => received.push({ data, origin }));
    </script>`);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  atFileEnd(() => {
    server.closeAllConnections();
    server.close();
  });
  return { origin: `http://localhost:${(server.address() as AddressInfo).port}`, visits };
}

/** The heading of the result that the page shows. */
export const result = (page: Page, status: string) => page.locator(`section[data-status=${status}] h1`);
