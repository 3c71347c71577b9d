import { once } from "node:events";
import { createServer } from "node:http";
import net from "node:net";
import { setImmediate as nextTurn } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import fastify, { type FastifyInstance } from "fastify";
import { expect, onTestFinished, test, vi } from "vitest";
import { ownCounts } from "../../src/admission/counts.ts";
import { createWindowLimits } from "../../src/admission/window-limits.ts";
import type { VerificationWindowService } from "../../src/core/service.ts";
import { Failure } from "../../src/failures.ts";
import { WatchVerificationWindowResponseSchema } from "../../src/gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { VerificationStatus } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { createEventStreams, type EventStream } from "../../src/window/event-streams.ts";
import { verificationWindow, type WindowParts } from "../../src/window/window.ts";
import { startDatabaseProxy } from "../faults/database-proxy.ts";
import { moveExpiry } from "../harness/expiry.ts";
import type { TestProject } from "../harness/service.ts";
import { startTestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { knownProject } from "../service/known-project.ts";
import { codeIn, letExpire, uuidOf } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { createWindow, getPage, openStream } from "./open-window.ts";

const service = await startTestService();
const other = await service.startAnother({ ROLES: "api" });
const project = await knownProject([service, other]);
const workerless = await startTestService({ ROLES: "api" });
const workerlessProject = await workerless.createProject();
const cli = smsSource(service);

test("a stream starts with the current state", async () => {
  const window = await createWindow(service, project);
  const stream = await openStream(window.url);
  const first = await stream.next();
  expect(first?.state).toMatchObject({
    status: "pending",
    hint: null,
    phone: null,
    notice: null,
    returnUrl: null,
  });
  expect(first?.state.remainingMs).toBeGreaterThan(500_000);
  expect(stream.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
  expect(stream.headers.get("cache-control")).toContain("no-store");
  expect(stream.headers.get("x-request-id")).toMatch(/^req_/);
});

test("a stream tells proxies to pass each event on at once, neither buffered nor compressed", async () => {
  const window = await createWindow(service, project);
  const { headers } = await openStream(window.url);
  expect(headers.get("x-accel-buffering")).toBe("no");
  // It is written past the framework, but has what every answer under /v has.
  expect(headers.get("referrer-policy")).toBe("no-referrer");
  expect(headers.get("x-content-type-options")).toBe("nosniff");
  expect(headers.get("cross-origin-resource-policy")).toBe("same-origin");
  expect(headers.get("cache-control")).toBe("no-store, no-transform");
});

test("streams that end together are not all opened again at the same moment", async () => {
  const { url } = await createWindow(service, project);
  const pauses = await Promise.all(
    Array.from({ length: 5 }, async () => {
      const { body } = await fetch(`${url}/events`);
      const reader = body?.getReader();
      const value = (await reader?.read())?.value;
      await reader?.cancel();
      return Number(/^retry: (\d+)\n\n/.exec(new TextDecoder().decode(value))?.[1]);
    }),
  );
  expect(new Set(pauses).size).toBeGreaterThan(1);
  for (const pause of pauses) expect(pause >= 1_000 && pause < 3_000).toBe(true);
});

test("opening a stream reads the window once, and once more when it is followed", async () => {
  // Not where streams of other tests may still be read for.
  const alone = await service.startAnother({ ROLES: "api" });
  const window = await createWindow(alone, project);
  const looks = async () =>
    (await scrape(alone.opsUrl)).sum("phoneproof_batch_size_sum", { operation: "window" });
  const before = await looks();
  const stream = await openStream(window.url);
  await stream.next();
  await expect.poll(looks).toBe(before + 2);
});

test("the end arrives by its notice, also on another process, and ends the stream", async () => {
  const window = await createWindow(service, project);
  const stream = await openStream(
    window.url.replace(service.httpUrl.replace("127.0.0.1", "localhost"), other.httpUrl),
  );
  await stream.next();
  await cli.send({ to: window.to, text: window.text, from: "010-1234-5678", carrier: "KT" });
  // Without the notice, the stream would look again only when the verification expires, which no test waits for.
  expect((await stream.next())?.state).toMatchObject({
    status: "verified",
    phone: "010-****-5678",
    carrier: "KT",
  });
  expect(await stream.next()).toBeNull();
});

test.for([
  { name: "without other activity", at: service, shop: project },
  { name: "also without a worker", at: workerless, shop: workerlessProject },
])("an expiry is streamed when it is due, $name", async ({ at, shop }) => {
  // If it was over before the stream was open, try again with more time.
  for (let [milliseconds, seen] = [300, ""]; seen !== "pending"; milliseconds *= 3) {
    const window = await createWindow(at, shop);
    await moveExpiry(at.db, {
      expiresAt: "clock_timestamp() + make_interval(secs => $2)",
      where: "status = 'pending' AND sms_text = $1",
      values: [window.text, milliseconds / 1000],
    });
    const stream = await openStream(window.url);
    seen = (await stream.next())?.state.status ?? "";
    if (seen === "pending") expect((await stream.next())?.state.status).toBe("expired");
    else expect(seen).toBe("expired");
  }
});

test("a cancellation is streamed with the message for the opener and the return URL", async () => {
  const returnUrl = "https://shop.example/back";
  const shop = await knownProject([service, other], { returnUrl, parentOrigin: "https://shop.example" });
  const window = await createWindow(service, shop, {
    return_url: returnUrl,
    parent_origin: "https://shop.example",
    client_reference: "order-7",
    state: "s t",
  });
  const stream = await openStream(window.url);
  await stream.next();
  await window.cancel();
  const message = {
    type: "phone_verification.result",
    version: 1,
    verification_id: window.id,
    status: "cancelled",
    client_reference: "order-7",
    state: "s t",
  };
  expect((await stream.next())?.state).toMatchObject({
    status: "cancelled",
    notice: { origin: "https://shop.example", message },
    returnUrl: `${returnUrl}?verification_id=${window.id}&status=cancelled&state=s%20t`,
  });
});

test("an erasure that cancels is streamed at once", async () => {
  const window = await createWindow(service, project);
  const stream = await openStream(window.url);
  await stream.next();
  await service.client(ErasureService).eraseVerification({ verificationId: window.id });
  expect((await stream.next())?.state.status).toBe("cancelled");
});

/** Opens the stream of a new verification that expects a phone. */
async function expecting(shop: TestProject = project, phone = newPhone()) {
  const window = await createWindow(service, shop, { mode: "match", expected_phone: phone });
  const stream = await openStream(window.url);
  await stream.next();
  const hint = async () => (await stream.next())?.state.hint;
  /** Fails if a message sent before this has given a hint. */
  const silent = async () => {
    await cli.send({ to: window.to, text: `[Web발신] ${window.text}`, from: newPhone() });
    expect(await hint()).toBe("web_sent");
  };
  return { window, phone, stream, hint, silent, code: codeIn(window.text) };
}

test("hint another_number: the code came from another number", async () => {
  const { window, hint } = await expecting();
  const receipt = await cli.send({ to: window.to, text: window.text, from: newPhone() });
  expect(receipt.outcome).toBe("SENDER_MISMATCH");
  expect(await hint()).toBe("another_number");
});

test("hint web_sent: the code was sent from the web", async () => {
  const { window, phone, hint } = await expecting();
  const text = `[Web발신]\n${window.text}`;
  expect((await cli.send({ to: window.to, text, from: phone })).outcome).toBe("WEB_SENT");
  expect(await hint()).toBe("web_sent");
});

test("hint two_codes: the message had two codes, and both windows get the hint", async () => {
  const [one, two] = [await expecting(), await expecting()];
  const text = `${one.code}, ${two.code}`;
  expect((await cli.send({ to: one.window.to, text, from: one.phone })).outcome).toBe("AMBIGUOUS");
  expect(await one.hint()).toBe("two_codes");
  expect(await two.hint()).toBe("two_codes");
});

test("hint without_code: the expected sender's message had no code", async () => {
  const { window, phone, hint } = await expecting();
  expect((await cli.send({ to: window.to, text: "확인해 주세요", from: phone })).outcome).toBe("NO_MATCH");
  expect(await hint()).toBe("without_code");
});

test("hint without_code: all windows that expect the sender get the hint", async () => {
  const older = await expecting();
  const newer = await expecting(project, older.phone);
  expect(newer.window.to).toBe(older.window.to);
  await cli.send({ to: older.window.to, text: "확인해 주세요", from: older.phone });
  for (const { window } of [newer, older]) {
    const { text } = await window.get("/status");
    expect(JSON.parse(text)).toMatchObject({ status: "pending", hint: "without_code" });
  }
});

test.for([
  { name: "another window's code", others: 1, outcome: "SENDER_MISMATCH" },
  { name: "two other windows' codes", others: 2, outcome: "AMBIGUOUS" },
  { name: "more codes than are looked up", others: 0, outcome: "AMBIGUOUS" },
])("hint without_code: the expected sender's message had $name", async ({ others, outcome }) => {
  const { window, phone, hint } = await expecting();
  const holders = await Promise.all(Array.from({ length: others }, () => expecting()));
  const many = Array.from({ length: 40 }, (_, n) => String(10_000_000 + n));
  const text = (others > 0 ? holders.map(({ code }) => code) : many).join(", ");
  expect((await cli.send({ to: window.to, text, from: phone })).outcome).toBe(outcome);
  expect(await hint()).toBe("without_code");
  for (const holder of holders) expect(await holder.hint()).toBe(others > 1 ? "two_codes" : "another_number");
});

test("a muted sender with another window's code: its own window gets hint muted, the other another_number", async () => {
  const [own, another] = [await expecting(), await expecting()];
  await mute(own.phone, (await knownProject([service, other])).testNumber);
  const { outcome } = await cli.send({ to: own.window.to, text: another.window.text, from: own.phone });
  expect(outcome).toBe("MUTED");
  expect(await own.hint()).toBe("muted");
  // That the number is muted does not concern the person at the other window.
  expect(await another.hint()).toBe("another_number");
});

test("hint without_code: of 101 windows that expect the sender the newest gets the hint", async () => {
  const shop = await service.createProject({ rateLimitPerMinute: 1_000 });
  const phone = newPhone();
  const before = { mode: "match", expected_phone: phone };
  await Promise.all(Array.from({ length: 100 }, () => createWindow(service, shop, before)));
  const { window, hint } = await expecting(shop, phone);
  await cli.send({ to: window.to, text: "확인해 주세요", from: phone });
  expect(await hint()).toBe("without_code");
});

/** Mutes a sender with five different wrong messages. */
async function mute(from: string, to: string): Promise<void> {
  for (let miss = 0; miss < 5; miss++) {
    expect((await cli.send({ to, text: `틀린 문자 ${miss} ${from}`, from })).outcome).toBe("NO_MATCH");
  }
}

test("hint muted: the sender of the code is muted", async () => {
  const window = await createWindow(service, project);
  const stream = await openStream(window.url);
  await stream.next();
  const phone = newPhone();
  await mute(phone, window.to);
  expect((await cli.send({ to: window.to, text: window.text, from: phone })).outcome).toBe("MUTED");
  expect((await stream.next())?.state.hint).toBe("muted");
});

test("hint muted: the expected sender is muted, whether or not the message has the code", async () => {
  const { window, phone, hint, silent } = await expecting();
  await mute(phone, (await knownProject([service, other])).testNumber);
  const stranger = newPhone();
  await mute(stranger, window.to);
  await cli.send({ to: window.to, text: "안녕하세요", from: stranger });
  await silent();
  expect((await cli.send({ to: window.to, text: "또 보내요", from: phone })).outcome).toBe("MUTED");
  expect(await hint()).toBe("muted");
  expect((await cli.send({ to: window.to, text: window.text, from: phone })).outcome).toBe("MUTED");
  expect(await hint()).toBe("muted");
});

test("hint muted for the expected sender takes precedence over other hints of the same batch", async () => {
  const { window, phone, hint } = await expecting();
  const { to, text } = window;
  await mute(phone, (await knownProject([service, other])).testNumber);
  // The first message is a batch of its own; the others form the next one.
  const receipts = await cli.sendAll([
    { to, text: "안녕하세요" },
    { to, text },
    { to, text: "또 보내요", from: phone },
    { to, text: `[Web발신] ${text}` },
  ]);
  expect(receipts.map(({ outcome }) => outcome)).toEqual([
    "NO_MATCH",
    "SENDER_MISMATCH",
    "MUTED",
    "WEB_SENT",
  ]);
  expect(await hint()).toBe("muted");
});

test("a hint of an earlier read that another process writes later does not replace a newer one", async () => {
  const held = await createWindow(service, project);
  const { window, hint } = await expecting();
  const { to, text } = window;
  // The sender has a miss, so that its message takes the path that reads first and stores later.
  const from = newPhone();
  await cli.send({ to: held.to, text: "안녕하세요", from });
  const holder = await service.db.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("BEGIN");
  await holder.query("SELECT FROM verification WHERE id = $1 FOR UPDATE", [uuidOf(held.id)]);
  // The second and third message are one batch, which has read its rows and waits for the lock.
  const first = cli.sendAll([
    { to, text: "안녕하세요" },
    { to: held.to, text: held.text, from },
    { to, text },
  ]);
  await untilWaiting(service.db, 1);
  await untilNextMillisecond();
  await smsSource(other).send({ to, text: `[Web발신] ${text}` });
  expect(await hint()).toBe("web_sent");
  await holder.query("ROLLBACK");
  const outcomes = (await first).map(({ outcome }) => outcome);
  expect(outcomes).toEqual(["NO_MATCH", "VERIFIED", "SENDER_MISMATCH"]);
  expect((await (await openStream(window.url)).next())?.state.hint).toBe("web_sent");
});

/** Waits until the next millisecond by the database's clock. */
async function untilNextMillisecond(): Promise<void> {
  const now = async () => {
    const { rows } = await service.db.query(
      "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now",
    );
    return rows[0].now;
  };
  const before = await now();
  await vi.waitUntil(async () => (await now()) > before, { interval: 1, timeout: 45_000 });
}

test("hint without_code: the expected sender's message had an old code", async () => {
  const { window, phone, hint } = await expecting();
  const old = await createWindow(service, project);
  await old.cancel();
  expect((await cli.send({ to: window.to, text: old.text, from: phone })).outcome).toBe("NOT_PENDING");
  expect(await hint()).toBe("without_code");
});

test("messages that concern other verifications give no hint", async () => {
  const { window, phone, silent } = await expecting();
  const elsewhere = await knownProject([service, other]);
  const theirs = await createWindow(service, project);
  await cli.send({ to: window.to, text: "안녕하세요", from: newPhone() });
  await cli.send({ to: elsewhere.testNumber, text: "안녕하세요", from: phone });
  await cli.send({ to: window.to, text: "[Web발신] 안녕하세요", from: phone });
  await cli.send({ to: window.to, text: theirs.text, from: newPhone() });
  await silent();
});

test("in discover mode a message without a code gives no hint", async () => {
  const phone = newPhone();
  const window = await createWindow(service, project);
  const stream = await openStream(window.url);
  await stream.next();
  await cli.send({ to: window.to, text: "확인해 주세요", from: phone });
  await cli.send({ to: window.to, text: window.text, from: phone });
  expect((await stream.next())?.state.status).toBe("verified");
});

test("messages of a source that may not deliver to the number give no hint", async () => {
  const { window, phone, silent } = await expecting();
  const numbers = [(await knownProject([service, other])).testNumber];
  const token = await service.createToken({ scope: "ingest", source: "elsewhere", numbers });
  const outsider = smsSource(service, token);
  await outsider.send({ to: window.to, text: "확인해 주세요", from: phone });
  await outsider.send({ to: window.to, text: window.text, from: newPhone() });
  await silent();
});

test("of several messages in a batch the one with the code determines the hint", async () => {
  const { window, phone, hint } = await expecting();
  await cli.sendAll([
    // The first message of a request is a batch of its own.
    { to: window.to, text: "hello", from: newPhone() },
    { to: window.to, text: window.text, from: newPhone() },
    { to: window.to, text: "확인해 주세요", from: phone },
  ]);
  expect(await hint()).toBe("another_number");
});

test("a hint is still shown after a reload and on another device, and removed at the end", async () => {
  const { window, phone, stream, hint } = await expecting();
  await cli.send({ to: window.to, text: window.text, from: newPhone() });
  await hint();
  const page = await window.get();
  expect(page.text).toContain("data-hint>다른 번호에서 보낸 문자가 왔어요");
  expect((await (await openStream(window.url)).next())?.state.hint).toBe("another_number");
  await cli.send({ to: window.to, text: window.text, from: phone });
  expect((await stream.next())?.state).toMatchObject({ status: "verified", hint: null });
});

test("hints noticed within one second differ in their versions, by which a page knows the newer one", async () => {
  const { window, hint } = await expecting();
  await cli.send({ to: window.to, text: window.text, from: newPhone() });
  await hint();
  const versionAt = async (milliseconds: number): Promise<string> => {
    await service.db.query(
      `UPDATE pending_hint SET noticed_at = date_trunc('second', noticed_at) + make_interval(secs => $2::float8 / 1000)
       WHERE verification_id = $1`,
      [uuidOf(window.id), milliseconds],
    );
    return JSON.parse((await window.get("/status")).text).version;
  };
  const [first, second] = [await versionAt(120), await versionAt(121)];
  expect([first, second]).toEqual([
    expect.stringMatching(/^pending\.\d+120$/),
    expect.stringMatching(/^pending\.\d+121$/),
  ]);
});

test("a reopened stream starts with the state and the remaining time, even if nothing has changed", async () => {
  const { window } = await expecting();
  const first = await (await openStream(window.url)).next();
  const again = await (await openStream(window.url)).next();
  expect(again?.state).toEqual({ ...first?.state, remainingMs: again?.state.remainingMs });
  expect(again?.state.remainingMs).toBeLessThanOrEqual(first?.state.remainingMs ?? 0);
});

test("a stream opened after the end gets the final status, each time", async () => {
  const window = await createWindow(service, project);
  await cli.send({ to: window.to, text: window.text, carrier: "LGU+" });
  for (const _ of ["first", "again"]) {
    const { state } = (await (await openStream(window.url)).next()) ?? {};
    expect(state).toMatchObject({ status: "verified", carrier: "LGU+" });
  }
});

test("a hint whose notice is lost with the database connection arrives nevertheless", async () => {
  const { window, hint } = await expecting();
  await service.db.query(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'phoneproof-notices' AND datname = current_database()",
  );
  await cli.send({ to: window.to, text: window.text, from: newPhone() });
  expect(await hint()).toBe("another_number");
});

test("the end arrives even if the connection for notices stays open but carries nothing any more", async () => {
  const url = new URL(service.databaseUrl);
  const proxy = await startDatabaseProxy({ host: url.hostname, port: Number(url.port) });
  onTestFinished(() => proxy.close());
  url.host = `127.0.0.1:${proxy.port}`;
  const distant = await service.startAnother({ ROLES: "api", DATABASE_NOTICES_URL: url.href });
  onTestFinished(() => distant.close());
  const window = await createWindow(service, project);
  const stream = await openStream(distant.httpUrl + new URL(window.url).pathname);
  await stream.next();
  // Connections that were open before stay silent; new ones work again.
  await proxy.setState("dead");
  await proxy.setState("fine");
  await cli.send({ to: window.to, text: window.text });
  expect((await stream.next())?.state.status).toBe("verified");
});

test("notices contain no phone, no text and no hint", async () => {
  const client = await service.db.connect();
  const payloads: string[] = [];
  try {
    client.on("notification", ({ payload }) => payloads.push(payload ?? ""));
    await client.query("LISTEN phoneproof_hint; LISTEN phoneproof_transition");
    const { window, phone, hint } = await expecting();
    await cli.send({ to: window.to, text: "확인해 주세요", from: phone });
    await hint();
    await vi.waitUntil(() => payloads.length > 0, { timeout: 45_000 });
    for (const payload of payloads) expect(payload).toMatch(/^[0-9a-f-]{36}(:\w+)?(,[0-9a-f-]{36}(:\w+)?)*$/);
  } finally {
    client.removeAllListeners("notification");
    await client.query("UNLISTEN *");
    client.release();
  }
});

test("the status can be read without a stream, and is not charged to the merchant", async () => {
  const window = await createWindow(service, project);
  const calls =
    "SELECT calls FROM usage WHERE project_id = (SELECT project_id FROM verification WHERE sms_text = $1)";
  const before = (await service.db.query(calls, [window.text])).rows;
  await letExpire(service.db, window.id);
  const answer = await window.get("/status");
  expect(JSON.parse(answer.text)).toMatchObject({ status: "expired", remainingMs: 0 });
  expect(answer.headers.get("cache-control")).toBe("no-store");
  expect(answer.headers.get("x-usage-calls")).toBeNull();
  expect((await service.db.query(calls, [window.text])).rows).toEqual(before);
});

test("a stopping process ends its streams at once, and the window continues on another", async () => {
  const stopping = await service.startAnother({ ROLES: "api" });
  const window = await createWindow(service, project);
  const path = new URL(window.url).pathname;
  const stream = await openStream(stopping.httpUrl + path);
  expect((await stream.next())?.state.status).toBe("pending");
  // The timeout after which it would cut remaining streams.
  suppressTimers(5_000);
  await stopping.close();
  expect(await stream.next()).toBeNull();
  await window.cancel();
  const next = await openStream(service.httpUrl + path);
  expect((await next.next())?.state.status).toBe("cancelled");
});

test("clients that disconnect before their stream starts do not count towards the window's streams", async () => {
  const window = await createWindow(service, project);
  const { hostname, port, pathname } = new URL(`${window.url}/events`);
  const lock = await service.db.connect();
  onTestFinished(() => lock.release(true));
  await lock.query("BEGIN; LOCK TABLE pending_hint");
  const blocked = async () => {
    const { rows } = await service.db.query(
      "SELECT count(*)::int AS count FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%pending_hint%'",
    );
    return rows[0].count;
  };
  const sockets = Array.from({ length: 10 }, () => {
    const socket = net.connect(Number(port), hostname);
    socket.write(`GET ${pathname} HTTP/1.1\r\nHost: x\r\n\r\n`);
    return socket;
  });
  await vi.waitUntil(async () => (await blocked()) > 0, { timeout: 45_000 });
  for (const socket of sockets) socket.resetAndDestroy();
  await lock.query("ROLLBACK");
  await vi.waitUntil(async () => (await blocked()) === 0, { timeout: 45_000 });
  const room = await Promise.all(Array.from({ length: 10 }, () => openStream(window.url)));
  expect(room).toHaveLength(10);
});

const windowAt = ({ url = "" }: { url?: string | undefined }, projectId = "prj_one") => ({
  token: url,
  projectId,
});

test("a client that does not read its stream is disconnected at the next heartbeat; others continue", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  let open = 0;
  const streams = createEventStreams({ opened: () => open++, closed: () => open-- });
  const server = createServer((request, response) => {
    const stream = streams.open(response, windowAt(request), {});
    // More than any system buffers.
    if (request.url === "/slow") stream?.send("state", "x".repeat(64 * 1024 * 1024));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const follow = (path: string) => {
    const socket = net.connect(port, "127.0.0.1").on("error", () => {});
    socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`);
    onTestFinished(() => void socket.destroy());
    return socket;
  };
  follow("/slow").pause();
  let received = "";
  follow("/prompt")
    .setEncoding("utf8")
    .on("data", (text: string) => {
      received += text;
    });
  const beats = () => received.split("event: beat").length - 1;
  await expect.poll(() => open).toBe(2);
  await expect.poll(() => received).toContain("retry: ");
  for (const beat of [1, 2]) {
    vi.advanceTimersByTime(15_000);
    await expect.poll(beats).toBe(beat);
    await expect.poll(() => open).toBe(1);
  }
});

test("a client that half-closes its stream has left, though it could still read", async () => {
  const window = await createWindow(service, project);
  const { hostname, port, pathname } = new URL(`${window.url}/events`);
  const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true });
  onTestFinished(() => void socket.destroy());
  const closed = once(socket, "close");
  socket.write(`GET ${pathname} HTTP/1.1\r\nHost: x\r\n\r\n`);
  await once(socket, "data");
  socket.resume().end();
  await closed;
});

test("clients that leave before their stream is open hold no place of its window", async () => {
  // Without heartbeats, which find such clients out later.
  suppressTimers(15_000);
  const alone = await service.startAnother({ ROLES: "api" });
  const window = await createWindow(alone, project);
  const { hostname, port, pathname } = new URL(`${window.url}/events`);
  const lock = await service.db.connect();
  await lock.query("BEGIN; LOCK TABLE pending_hint");
  for (let left = 0; left < 10; left++) {
    const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true });
    onTestFinished(() => void socket.destroy());
    socket.on("error", () => {});
    socket.resume().end(`GET ${pathname} HTTP/1.1\r\nHost: x\r\n\r\n`);
  }
  await untilWaiting(service.db, 1);
  await lock.query("COMMIT");
  lock.release();
  const leavers = async () =>
    (await scrape(alone.opsUrl)).sum("phoneproof_http_request_duration_seconds_count", {
      route: "/v/:token/events",
      status: "none",
    });
  await expect.poll(leavers, { timeout: 45_000 }).toBe(10);
  // Nor does anybody count as refused because of too many streams.
  expect((await scrape(alone.opsUrl)).sum("phoneproof_refusals_total", { code: "rate_limited" })).toBe(0);
  expect((await openStream(window.url)).headers.get("content-type")).toMatch(/^text\/event-stream/);
});

test("one project's windows leave room for those of others, and all of it can be used", async () => {
  let open = 0;
  const observer = { opened: () => open++, closed: () => open-- };
  const streams = createEventStreams(observer, { inAll: 50, each: 10, perFree: 4 });
  const projects = ["one", "other", "third"] as const;
  const server = createServer((request, response) => {
    const [, project] = (request.url ?? "").split("/");
    if (streams.open(response, windowAt(request, project), {}) === null) response.writeHead(429).end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.closeAllConnections());
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const leaving = new AbortController();
  const status = async (project: (typeof projects)[number], signal: AbortSignal | null = null) =>
    (await fetch(`http://127.0.0.1:${port}/${project}/${crypto.randomUUID()}`, { signal })).status;
  const openAll = async (project: (typeof projects)[number], signal: AbortSignal | null = null) => {
    for (let count = 0; ; count++) if ((await status(project, signal)) === 429) return count;
  };
  expect(await openAll("one", leaving.signal)).toBe(40);
  expect(await openAll("other")).toBe(8);
  expect(await openAll("third")).toBe(2);
  leaving.abort();
  await expect.poll(() => open).toBe(10);
  expect(await openAll("one")).toBe(32);
});

/** Serves the windows of such a core, and returns the URL of one. */
async function serveWindow(
  gateway: FastifyInstance,
  windows: Partial<VerificationWindowService>,
  onFault: WindowParts["onFault"] = () => {},
): Promise<string> {
  const window = verificationWindow({
    windows: windows as VerificationWindowService,
    limits: createWindowLimits(ownCounts),
    publicBase: { url: "http://window.example" },
    onFault,
    streams: { opened() {}, closed() {} },
  });
  return `${await gateway.register(window, { prefix: "/v" }).listen({ host: "127.0.0.1", port: 0 })}/v/one`;
}

test("a window is not followed any more once its client has left, nor for a stream that is refused", async () => {
  let followed = 0;
  const windows: Pick<VerificationWindowService, "watchVerificationWindow"> = {
    async *watchVerificationWindow(_request, signal) {
      followed += 1;
      try {
        yield create(WatchVerificationWindowResponseSchema, {
          window: { status: VerificationStatus.PENDING },
        });
        if (!signal.aborted) await once(signal, "abort");
      } finally {
        followed -= 1;
      }
    },
  };
  const gateway = fastify({ forceCloseConnections: true });
  onTestFinished(() => gateway.close());
  const url = await serveWindow(gateway, windows);
  const streams = await Promise.all(Array.from({ length: 10 }, () => openStream(url)));
  const refused = await getPage(`${url}/events`);
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "10"]);
  expect(followed).toBe(10);
  for (const stream of streams) stream.close();
  await expect.poll(() => followed).toBe(0);
});

test("a change that comes just when the process stops is not written to a stream that has ended", async () => {
  const offered = Promise.withResolvers<void>();
  // More than any system buffers, so that the stream, which is not read, has not left when the change comes.
  const [status, state] = [VerificationStatus.VERIFIED, "x".repeat(64 * 1024 * 1024)];
  const windows: Pick<VerificationWindowService, "watchVerificationWindow"> = {
    async *watchVerificationWindow(_request, signal) {
      const window = { status, parentOrigin: "https://shop.example", state };
      yield create(WatchVerificationWindowResponseSchema, { window });
      await once(signal, "abort");
      yield create(WatchVerificationWindowResponseSchema, { window: { status } });
      offered.resolve();
    },
  };
  const gateway = fastify();
  const faults: unknown[] = [];
  gateway.addHook("onRequest", async (_request, { raw }) => {
    // Without a listener an error would end the process.
    raw.on("error", (error) => faults.push(error));
  });
  await openStream(await serveWindow(gateway, windows));
  const closed = gateway.close();
  await offered.promise;
  await nextTurn();
  expect(faults).toEqual([]);
  gateway.server.closeAllConnections();
  await closed;
});

test("a stream whose window has been read only when the process is stopping gets 503, and not that there are too many", async () => {
  const [asked, read] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const windows: Pick<VerificationWindowService, "watchVerificationWindow"> = {
    async *watchVerificationWindow() {
      asked.resolve();
      await read.promise;
      yield create(WatchVerificationWindowResponseSchema, {
        window: { status: VerificationStatus.PENDING },
      });
    },
  };
  const gateway = fastify();
  const url = await serveWindow(gateway, windows);
  const late = getPage(`${url}/events`, { accept: "application/json" });
  await asked.promise;
  const closed = gateway.close();
  await vi.waitUntil(() => !gateway.server.listening, { timeout: 45_000, interval: 5 });
  read.resolve();
  const { status, text } = await late;
  expect([status, JSON.parse(text).error.code]).toEqual([503, "service_unavailable"]);
  gateway.server.closeAllConnections();
  await closed;
});

test.for([
  { code: "service_unavailable", status: 503 },
  { code: "rate_limited", status: 429 },
] as const)("however many look-ups of windows are refused with $code, their tokens do not count as guesses", async ({
  code,
  status,
}) => {
  let refusal = new Failure(code, { retryAfterSeconds: 7 });
  const gateway = fastify();
  onTestFinished(() => gateway.close());
  const url = await serveWindow(gateway, {
    getVerificationWindow: () => Promise.reject(refusal),
  });
  const answers = await Promise.all(
    Array.from({ length: 61 }, (_, token) =>
      getPage(`${url}${token}/status`, { accept: "application/json" }),
    ),
  );
  const told = answers.map(({ status, headers }) => `${status} ${headers.get("retry-after")}`);
  expect(new Set(told)).toEqual(new Set([`${status} 7`]));
  refusal = new Failure("not_found");
  expect((await getPage(url)).status).toBe(404);
});

test("a look-up whose connection to the database breaks is a fault: its client has not left", async () => {
  const faults: unknown[] = [];
  const gateway = fastify();
  onTestFinished(() => gateway.close());
  const broken = Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET" });
  const onFault: WindowParts["onFault"] = (_request, _reply, { cause }) => faults.push(cause);
  const url = await serveWindow(gateway, { getVerificationWindow: () => Promise.reject(broken) }, onFault);
  expect((await getPage(url)).status).toBe(503);
  expect(faults).toEqual([broken]);
});

test("all streams are closed at once, also one that is not read, and one requested later is not opened", async () => {
  const streams = createEventStreams({ opened() {}, closed() {} });
  const opened: EventStream[] = [];
  const server = createServer((request, response) => {
    const stream = streams.open(response, windowAt(request), {});
    if (stream === null) return void response.writeHead(503).end();
    opened.push(stream);
    if (request.url === "/unread") stream.send("state", "x".repeat(64 * 1024 * 1024));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const unread = net
    .connect(port, "127.0.0.1")
    .on("error", () => {})
    .pause();
  onTestFinished(() => void unread.destroy());
  unread.write("GET /unread HTTP/1.1\r\nHost: x\r\n\r\n");
  const read = await fetch(`http://127.0.0.1:${port}/read`);
  await expect.poll(() => opened).toHaveLength(2);
  streams.close();
  // Nothing may be written to it any more.
  expect(opened.map(({ signal }) => signal.aborted)).toEqual([true, true]);
  expect(await read.text()).toContain("retry: ");
  const late = await fetch(`http://127.0.0.1:${port}/late`);
  expect([late.status, await late.text()]).toEqual([503, ""]);
});

test("an ended stream is not written to while queued behind another, and is disconnected if it is not read", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  let open = 0;
  const streams = createEventStreams({ opened: () => open++, closed: () => open-- });
  const faults: unknown[] = [];
  const server = createServer((request, response) => {
    // Without a listener an error would end the process.
    response.on("error", (error) => faults.push(error));
    const stream = streams.open(response, windowAt(request), {});
    if (request.url === "/slow") stream?.send("state", "x".repeat(64 * 1024 * 1024));
    if (request.url !== "/pending") stream?.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const follow = (...paths: string[]) => {
    const socket = net.connect(port, "127.0.0.1").on("error", () => {});
    for (const path of paths) socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`);
    onTestFinished(() => void socket.destroy());
    return socket;
  };
  follow("/slow").pause();
  let received = "";
  const both = follow("/pending", "/over");
  both.setEncoding("utf8").on("data", (text: string) => {
    received += text;
  });
  const beats = () => received.split("event: beat").length - 1;
  await expect.poll(() => open).toBe(3);
  await expect.poll(() => received).toContain("retry: ");
  for (const beat of [1, 2]) {
    vi.advanceTimersByTime(15_000);
    await expect.poll(beats).toBe(beat);
    expect(faults).toEqual([]);
    await expect.poll(() => open).toBe(2);
  }
});
