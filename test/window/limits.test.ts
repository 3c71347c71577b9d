import { expect, test } from "vitest";
import { startTestService } from "../harness/service.ts";
import { createWindow, getPage, openStream } from "./open-window.ts";

const service = await startTestService({ TRUSTED_PROXIES: "127.0.0.1" });
const project = await service.createProject();

/** As a request from there, by way of a proxy. */
const from = (address: string) => ({ "x-forwarded-for": address });

test("tokens cannot be tried: an address that has missed too often is told to wait, and its valid ones go on", async () => {
  const window = await createWindow(service, project);
  const wrong = (attempt: number) => `${service.httpUrl}/v/${String(attempt).padStart(22, "A")}`;
  const misses = await Promise.all(
    Array.from({ length: 70 }, (_, attempt) => getPage(wrong(attempt), from("192.0.2.1"))),
  );
  expect(misses.filter(({ status }) => status === 404)).toHaveLength(60);
  const refused = misses.find(({ status }) => status === 429);
  expect(Number(refused?.headers.get("retry-after"))).toBeGreaterThan(0);
  expect(refused?.text).toContain("잠시만 기다려 주세요");
  expect((await window.get("", from("192.0.2.1"))).status).toBe(200);
  expect((await getPage(wrong(1), from("192.0.2.2"))).status).toBe(404);
});

test("where no proxy is trusted, what a client says of its address is not believed", async () => {
  const direct = await startTestService({ ROLES: "api" });
  const misses = await Promise.all(
    Array.from({ length: 61 }, (_, host) =>
      getPage(`${direct.httpUrl}/v/${String(host).padStart(22, "C")}`, from(`203.0.113.${host}`)),
    ),
  );
  expect(misses.filter(({ status }) => status === 429)).toHaveLength(1);
});

test("an IPv6 host has one allowance for all addresses of its network", async () => {
  const statuses = await Promise.all(
    Array.from({ length: 61 }, async (_, host) => {
      const token = String(host).padStart(22, "B");
      return (await getPage(`${service.httpUrl}/v/${token}`, from(`2001:db8::${host.toString(16)}`))).status;
    }),
  );
  expect(statuses.filter((status) => status === 429)).toHaveLength(1);
  expect((await getPage(`${service.httpUrl}/v/none`, from("2001:db8:0:1::1"))).status).toBe(404);
});

test("a window answers so many requests a minute, wherever they come from", async () => {
  const [window, another] = [await createWindow(service, project), await createWindow(service, project)];
  const asked = await Promise.all(
    Array.from({ length: 130 }, (_, host) => window.get("/status", from(`198.51.100.${host}`))),
  );
  expect(asked.filter(({ status }) => status === 200)).toHaveLength(120);
  expect(asked.filter(({ status }) => status === 429)).toHaveLength(10);
  expect((await another.get("/status", from("198.51.100.1"))).status).toBe(200);
});

test("an address asks so many times a minute, of whichever windows, and another is not kept from them", async () => {
  const windows = await Promise.all(Array.from({ length: 26 }, () => createWindow(service, project)));
  let refused = 0;
  for (const window of windows) {
    const asked = await Promise.all(
      Array.from({ length: 116 }, () => window.get("/status", from("192.0.2.7"))),
    );
    refused += asked.filter(({ status }) => status === 429).length;
  }
  expect(refused).toBe(26 * 116 - 3_000);
  expect((await windows[0]?.get("/status", from("192.0.2.8")))?.status).toBe(200);
});

test("the played phone sends so many messages a minute", async () => {
  const window = await createWindow(service, project);
  const answers = await Promise.all(
    Array.from({ length: 31 }, (_, attempt) => window.play({ text: `안녕하세요 ${attempt}` })),
  );
  expect(answers.filter(({ status }) => status === 429)).toHaveLength(1);
});

test("a window has so many streams, and a closed one makes room", async () => {
  const window = await createWindow(service, project);
  const streams = await Promise.all(Array.from({ length: 10 }, () => openStream(window.url)));
  const refused = await window.get("/events");
  expect(refused.status).toBe(429);
  streams[0]?.close();
  // Not too often: to be refused takes from the window's requests, too.
  await expect
    .poll(
      () =>
        openStream(window.url).then(
          () => "open",
          () => "refused",
        ),
      { interval: 500 },
    )
    .toBe("open");
});
