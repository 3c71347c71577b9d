import { expect, test } from "vitest";
import { exchange } from "../gateway/raw-http.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { startTestService } from "../harness/service.ts";
import { uuidOf } from "../service/pending.ts";
import { createWindow, getPage, openStream } from "./open-window.ts";

const service = await startTestService({ TRUSTED_PROXIES: "127.0.0.1" });
const project = await service.createProject();

/** The headers of a request that a proxy forwards from this address. */
const from = (address: string) => ({ "x-forwarded-for": address });

const wrong = (attempt: number) => `${service.httpUrl}/v/${String(attempt).padStart(22, "A")}`;

/** Requests the paths from this address and returns the statuses in their order. */
async function statusesOf(paths: readonly string[], address: string): Promise<number[]> {
  const perConnection = 350;
  const statuses: number[] = [];
  for (let first = 0; first < paths.length; first += perConnection) {
    const some = paths.slice(first, first + perConnection);
    const head = `Host: x\r\nX-Forwarded-For: ${address}\r\n\r\n`;
    const requests = some.map((path) => `GET ${path} HTTP/1.1\r\n${head}`).join("");
    const answers = await exchange(service.httpUrl, requests, { answers: some.length });
    statuses.push(...answers.map(({ status }) => status));
  }
  return statuses;
}

/** Requests windows with `count` wrong tokens and returns the statuses. */
const tryTokens = (count: number, address: string) =>
  statusesOf(
    Array.from({ length: count }, (_, attempt) => new URL(wrong(attempt)).pathname),
    address,
  );

test("tokens cannot be guessed: after 60 misses an address gets 429 for wrong tokens, and valid ones still open", async () => {
  const window = await createWindow(service, project);
  const misses = await tryTokens(70, "192.0.2.1");
  expect(misses.filter((status) => status === 404)).toHaveLength(60);
  const refused = await getPage(wrong(71), from("192.0.2.1"));
  expect(refused.status).toBe(429);
  const retryAfter = Number(refused.headers.get("retry-after"));
  expect(retryAfter).toBeGreaterThan(0);
  expect(retryAfter).toBeLessThanOrEqual(60);
  expect(refused.text).toContain("잠시만 기다려 주세요");
  expect(refused.text).toMatch(/<a class="button" href="\?[^"]*">다시 열기<\/a>/);
  expect((await window.get("", from("192.0.2.1"))).status).toBe(200);
  expect((await getPage(wrong(1), from("192.0.2.2"))).status).toBe(404);
});

test("wrong tokens are misses whatever is asked of them", async () => {
  const requests = [
    { path: "", method: "GET" },
    { path: "/status", method: "GET" },
    { path: "/events", method: "GET" },
    { path: "/messages", method: "POST" },
  ];
  const statuses: number[] = [];
  for (let attempt = 0; attempt < 64; attempt++) {
    const { path = "", method = "" } = requests[attempt % requests.length] ?? {};
    statuses.push((await fetch(wrong(attempt) + path, { method, headers: from("192.0.2.9") })).status);
  }
  expect(statuses).toEqual(Array.from({ length: 64 }, (_, attempt) => (attempt < 60 ? 404 : 429)));
});

test("however many wrong tokens come from an address, windows that are open there keep working", async () => {
  const windows = await Promise.all(Array.from({ length: 5 }, () => createWindow(service, project)));
  for (const window of windows) await window.get("", from("192.0.2.3"));
  expect(await tryTokens(3_010, "192.0.2.3")).toContain(429);
  for (const window of windows) {
    for (const path of ["", "/status"]) expect((await window.get(path, from("192.0.2.3"))).status).toBe(200);
    const message = new URLSearchParams({ from: "010-1234-5678", text: "안녕하세요", carrier: "SKT" });
    const played = await fetch(`${window.url}/messages`, {
      method: "POST",
      body: message,
      headers: { accept: "application/json", ...from("192.0.2.3") },
    });
    expect(played.status).toBe(200);
  }
});

test("a 404 below a valid token does not count as a guess", async () => {
  const window = await createWindow(service, project, {}, "live");
  for (let asked = 0; asked < 3; asked++) {
    expect((await window.get("", from("192.0.2.4"))).status).toBe(200);
    // Only the test environment has a simulated phone.
    const played = await fetch(`${window.url}/messages`, { method: "POST", headers: from("192.0.2.4") });
    expect(played.status).toBe(404);
  }
  const misses = await tryTokens(70, "192.0.2.4");
  expect(misses.filter((status) => status === 404)).toHaveLength(60);
});

test("an outdated token counts as a guess, except for its first request", async () => {
  const window = await createWindow(service, project);
  expect((await window.get("", from("192.0.2.5"))).status).toBe(200);
  await window.cancel();
  await service.db.query(
    "UPDATE event SET occurred_at = occurred_at - interval '1 day' WHERE verification_id = $1",
    [uuidOf(window.id)],
  );
  const asked = await Promise.all(Array.from({ length: 62 }, () => window.get("/status", from("192.0.2.5"))));
  expect(asked.filter(({ status }) => status === 404)).toHaveLength(61);
  expect((await getPage(wrong(1), from("192.0.2.5"))).status).toBe(429);
});

test("while the database is away, the visitors of windows do not count as guessing", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({
    DATABASE_URL: proxy.databaseUrl,
    TRUSTED_PROXIES: "127.0.0.1",
  });
  const { token } = await createWindow(service, project);
  const ask = (path: string) =>
    fetch(`${distant.httpUrl}/v/${token}${path}`, {
      method: path === "/messages" ? "POST" : "GET",
      headers: from("192.0.2.10"),
    });
  proxy.cut();
  const statuses: number[] = [];
  for (let asked = 0; asked < 16; asked++) {
    for (const path of ["", "/status", "/events", "/messages"]) statuses.push((await ask(path)).status);
  }
  expect(statuses).toEqual(statuses.map(() => 503));
  proxy.restore();
  await expect.poll(async () => (await ask("/status")).status, { interval: 1_000 }).toBe(200);
});

test("a window opens for a visitor on an interface of any name", async () => {
  for (const zone of ["eth0", "eth0.100", "br-lan"]) {
    const window = await createWindow(service, project);
    expect((await window.get("", from(`fe80::1%${zone}`))).status).toBe(200);
  }
});

test("without a trusted proxy X-Forwarded-For is ignored", async () => {
  const direct = await startTestService({ ROLES: "api" });
  const misses = await Promise.all(
    Array.from({ length: 61 }, (_, host) =>
      getPage(`${direct.httpUrl}/v/${String(host).padStart(22, "C")}`, from(`203.0.113.${host}`)),
    ),
  );
  expect(misses.filter(({ status }) => status === 429)).toHaveLength(1);
});

test("all addresses of an IPv6 /64 network share one limit", async () => {
  const statuses = await Promise.all(
    Array.from({ length: 61 }, async (_, host) => {
      const token = String(host).padStart(22, "B");
      return (await getPage(`${service.httpUrl}/v/${token}`, from(`2001:db8::${host.toString(16)}`))).status;
    }),
  );
  expect(statuses.filter((status) => status === 429)).toHaveLength(1);
  expect((await getPage(`${service.httpUrl}/v/none`, from("2001:db8:0:1::1"))).status).toBe(404);
});

test("a window answers 120 requests a minute, streams and messages among them, from all addresses together", async () => {
  const [window, another] = [await createWindow(service, project), await createWindow(service, project)];
  await openStream(window.url);
  expect((await window.play({ text: "안녕하세요" })).status).toBe(200);
  const asked = await Promise.all(
    Array.from({ length: 130 }, (_, host) => window.get("/status", from(`198.51.100.${host}`))),
  );
  expect(asked.filter(({ status }) => status === 200)).toHaveLength(118);
  expect(asked.filter(({ status }) => status === 429)).toHaveLength(12);
  expect((await another.get("/status", from("198.51.100.1"))).status).toBe(200);
});

test("an address can open 3,000 new windows a minute; those keep working, and other addresses are not affected", async () => {
  const window = await createWindow(service, project);
  const tokens = Array.from({ length: 3_010 }, (_, index) => String(index).padStart(22, "D"));
  // More windows of one verification, because to create each over the API takes ten times as long.
  await service.db.query(
    `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, window_digest)
     SELECT destination, token, code_format, verification_id, expires_at, sha256(token::bytea)
     FROM live_code, unnest($2::text[]) AS token WHERE verification_id = $1`,
    [uuidOf(window.id), tokens],
  );
  const askAll = (asked: readonly string[], address = "192.0.2.7") =>
    statusesOf(
      asked.map((token) => `/v/${token}/status`),
      address,
    );
  const statuses = await askAll(tokens);
  expect(statuses).toEqual(tokens.map((_, index) => (index < 3_000 ? 200 : 429)));
  expect(new Set(await askAll(tokens.filter((_, index) => index < 3_000 && index % 10 === 0)))).toEqual(
    new Set([200]),
  );
  expect(await askAll(tokens.slice(-1), "192.0.2.8")).toEqual([200]);
});

test("the simulated phone sends 30 messages a minute", async () => {
  const window = await createWindow(service, project);
  const answers = await Promise.all(
    Array.from({ length: 31 }, (_, attempt) => window.play({ text: `안녕하세요 ${attempt}` })),
  );
  expect(answers.filter(({ status }) => status === 429)).toHaveLength(1);
});

test("a window has at most 10 streams, and closing one makes room", async () => {
  const window = await createWindow(service, project);
  const streams = await Promise.all(Array.from({ length: 10 }, () => openStream(window.url)));
  const refused = await window.get("/events");
  expect(refused.status).toBe(429);
  expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
  streams[0]?.close();
  // Not too often, because refused requests count towards the window's limit, too.
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
