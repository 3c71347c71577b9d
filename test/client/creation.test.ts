/** However often a creation has to be sent, exactly one verification is created. */

import { setTimeout as delay } from "node:timers/promises";
import { createPhoneproof } from "@phoneproof/client";
import fc from "fast-check";
import { expect, onTestFinished, test, vi } from "vitest";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startTestService } from "../harness/service.ts";
import { failureOf } from "./failure.ts";
import { type Fault, faults, startFaultyProxy } from "./faulty-proxy.ts";

const attemptTimeoutMs = 150;
const service = await startTestService();
const project = await service.createProject({ rateLimitPerMinute: 1_000_000 });
const proxy = await startFaultyProxy(service.httpUrl, attemptTimeoutMs);
const settings = { baseUrl: proxy.url, apiKey: project.liveKey, attemptTimeoutMs, retryPauseMs: 1 };
const phoneproof = createPhoneproof(settings);
/** A client that does not give up attempts. */
const patient = createPhoneproof({ ...settings, attemptTimeoutMs: 60_000 });
const verificationService = service.client(VerificationService);

let references = 0;

const newReference = () => `attempt-${++references}`;

async function idsOf(reference: string): Promise<string[]> {
  await proxy.settled();
  const { verifications } = await verificationService.listVerifications({
    projectId: project.projectId,
    clientReference: reference,
  });
  return verifications.map(({ id }) => id);
}

test.for(faults)("one verification after: %s", async (fault) => {
  const reference = newReference();
  proxy.meet(fault);
  const before = proxy.arrivals.length;
  const created = await phoneproof.create({ client_reference: reference });
  expect(proxy.arrivals.length - before).toBeGreaterThan(1);
  expect(await idsOf(reference)).toEqual([created.id]);
});

test("one verification after any faults in any order", async () => {
  const quick: readonly Fault[] = ["cut before", "cut after", "half", "refused", "refused after"];
  const days = fc.array(
    fc.oneof(
      { weight: 6, arbitrary: fc.constantFrom(...quick) },
      { weight: 1, arbitrary: fc.constantFrom(...faults) },
    ),
    { minLength: 2, maxLength: 6 },
  );
  await fc.assert(
    fc.asyncProperty(days, async (day) => {
      const reference = newReference();
      proxy.meet(...day);
      const created = await phoneproof.create({ client_reference: reference });
      expect(await idsOf(reference)).toEqual([created.id]);
    }),
    { numRuns: 25 },
  );
});

test("after a truncated answer the request is repeated with the same key", async () => {
  const keys: (string | null)[] = [];
  const cutting = async (url: string, init: RequestInit) => {
    keys.push(new Headers(init.headers).get("idempotency-key"));
    const whole = await fetch(url, init);
    if (keys.length > 1) return whole;
    return new Response((await whole.text()).slice(0, 40), whole);
  };
  const reference = newReference();
  const created = await createPhoneproof({ ...settings, attemptTimeoutMs: 60_000, fetch: cutting }).create({
    client_reference: reference,
  });
  expect(keys).toEqual([keys[0], keys[0]]);
  expect(await idsOf(reference)).toEqual([created.id]);
});

test("concurrent creations through faults make one verification each", async () => {
  proxy.meet(...Array.from({ length: 40 }, (_, index) => faults[index % faults.length] as Fault));
  const references = Array.from({ length: 20 }, newReference);
  const created = await Promise.all(
    references.map((reference) => phoneproof.create({ client_reference: reference })),
  );
  for (const [index, reference] of references.entries()) {
    expect(await idsOf(reference)).toEqual([created[index]?.id]);
  }
});

test("a creation that failed for good, repeated with its error's key, makes one verification", async () => {
  const reference = newReference();
  proxy.meet("cut after", "cut after", "cut after", "cut after", "cut after", "cut after");
  const short = createPhoneproof({ ...settings, retryPauseMs: 50, timeoutMs: 80 });
  const error = await failureOf(short.create({ client_reference: reference }));
  expect(error.code).toBe("no_answer");
  proxy.meet();
  const { idempotencyKey } = error;
  const created = await phoneproof.create({ client_reference: reference }, { idempotencyKey });
  expect(await idsOf(reference)).toEqual([created.id]);
});

test("with the caller's own key another client gets the same verification", async () => {
  const reference = newReference();
  const idempotencyKey = `stored-before-${reference}`;
  const first = await phoneproof.create({ client_reference: reference }, { idempotencyKey });
  const again = await createPhoneproof(settings).create({ client_reference: reference }, { idempotencyKey });
  expect(again).toEqual(first);
});

test("two creations without a key make two verifications", async () => {
  const reference = newReference();
  await phoneproof.create({ client_reference: reference });
  await phoneproof.create({ client_reference: reference });
  expect(await idsOf(reference)).toHaveLength(2);
});

test.for([
  { name: "seconds", retryAfter: () => "1" },
  { name: "a date", retryAfter: () => new Date(Date.now() + 2_000).toUTCString() },
])("Retry-After as $name is honoured", async ({ retryAfter }) => {
  const before = proxy.arrivals.length;
  const value = retryAfter();
  proxy.meet({ status: 503, code: "service_unavailable", headers: { "retry-after": value } });
  await patient.create();
  const [first = 0, second = 0] = proxy.arrivals.slice(before);
  const earliest = /^\d+$/.test(value) ? first + 1_000 : Date.parse(value) - (Date.now() - performance.now());
  // Timers may be early by a millisecond, and the two clocks drift apart.
  expect(second).toBeGreaterThanOrEqual(earliest - 100);
});

test("a Retry-After longer than the call's remaining time ends the call at once", async () => {
  const before = proxy.arrivals.length;
  proxy.meet({ status: 429, code: "rate_limited", headers: { "retry-after": "31" } });
  const error = await failureOf(patient.create());
  expect(error).toMatchObject({ code: "rate_limited", status: 429, retryAfterSeconds: 31 });
  expect(proxy.arrivals).toHaveLength(before + 1);
});

test("a Retry-After longer than a timer can count is not followed by an early retry", async () => {
  const controller = new AbortController();
  const fetch = vi.fn(async () => {
    const body = { error: { code: "usage_limit_exceeded", message: "not this month" } };
    return Response.json(body, { status: 429, headers: { "retry-after": "2592000" } });
  });
  const endless = createPhoneproof({ ...settings, timeoutMs: Number.POSITIVE_INFINITY, fetch });
  const creation = failureOf(endless.create({}, { signal: controller.signal }));
  await vi.waitUntil(() => fetch.mock.calls.length > 0, { timeout: 45_000 });
  // A timer with an overflowing delay would fire at once, again and again.
  await delay(100);
  expect(fetch).toHaveBeenCalledOnce();
  controller.abort();
  expect((await creation).code).toBe("aborted");
});

test("an abort ends the call with the signal's reason, before it, during a request and during a pause", async () => {
  for (const fault of ["stall", { status: 503, headers: { "retry-after": "20" } }] as const) {
    const before = proxy.arrivals.length;
    const controller = new AbortController();
    const reason = new Error("the person has left");
    proxy.meet(fault);
    const creation = patient.create({}, { signal: controller.signal });
    await expect.poll(() => proxy.arrivals.length).toBe(before + 1);
    controller.abort(reason);
    expect(await failureOf(creation)).toMatchObject({ code: "aborted", cause: reason });
  }
  const before = proxy.arrivals.length;
  const never = phoneproof.create({}, { signal: AbortSignal.abort("no") });
  expect(await failureOf(never)).toMatchObject({ code: "aborted", cause: "no" });
  expect(proxy.arrivals).toHaveLength(before);
});

/** A fetch that only ends when it is aborted. */
const hang = vi.fn(
  (_url: string, { signal }: RequestInit) =>
    new Promise<Response>((_resolve, reject) => signal?.addEventListener("abort", reject)),
);

test("an attempt ends with the call's timeoutMs, even if attemptTimeoutMs is longer", async () => {
  const hanging = createPhoneproof({ ...settings, attemptTimeoutMs: 3_600_000, timeoutMs: 20, fetch: hang });
  expect((await failureOf(hanging.create())).code).toBe("no_answer");
});

test("an abort is reported as aborted, even if there is no time for another attempt", async () => {
  const hanging = createPhoneproof({
    ...settings,
    attemptTimeoutMs: 60_000,
    retryPauseMs: 120_000,
    fetch: hang,
  });
  const controller = new AbortController();
  const creation = failureOf(hanging.create({}, { signal: controller.signal }));
  controller.abort();
  expect((await creation).code).toBe("aborted");
});

test("if the call's time is up after a pause, there is no further attempt", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const refusing = vi.fn(async () => new Response("", { status: 502 }));
  const refused = createPhoneproof({ ...settings, retryPauseMs: 10, timeoutMs: 1_000, fetch: refusing });
  const creation = failureOf(refused.create());
  await vi.advanceTimersByTimeAsync(0);
  const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now() + 1_000);
  onTestFinished(() => clock.mockRestore());
  await vi.advanceTimersByTimeAsync(10);
  expect((await creation).code).toBe("no_answer");
  expect(refusing).toHaveBeenCalledTimes(1);
});

test("pauses grow, up to five seconds, and differ; a shorter Retry-After does not shorten them", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const asked: number[] = [];
  const refusing = async () => {
    asked.push(performance.now());
    return new Response("", { status: 502, headers: { "retry-after": "1" } });
  };
  const refused = createPhoneproof({ ...settings, retryPauseMs: 200, timeoutMs: 60_000, fetch: refusing });
  const creation = failureOf(refused.create());
  await vi.advanceTimersByTimeAsync(60_000);
  expect((await creation).code).toBe("no_answer");
  const pauses = asked.slice(1).map((at, index) => at - (asked[index] ?? 0));
  expect(Math.max(...pauses)).toBeGreaterThan(2_000);
  expect(Math.max(...pauses)).toBeLessThanOrEqual(5_001);
  expect(Math.min(...pauses)).toBeGreaterThanOrEqual(1_000);
  expect(new Set(pauses.slice(-5)).size).toBeGreaterThan(1);
});

test("an aborted creation, repeated with its error's key, makes one verification", async () => {
  const reference = newReference();
  const before = proxy.arrivals.length;
  proxy.meet("stall");
  const controller = new AbortController();
  const creation = patient.create({ client_reference: reference }, { signal: controller.signal });
  await expect.poll(() => proxy.arrivals.length).toBe(before + 1);
  controller.abort();
  const { idempotencyKey } = await failureOf(creation);
  const created = await phoneproof.create({ client_reference: reference }, { idempotencyKey });
  expect(await idsOf(reference)).toEqual([created.id]);
});

test("reads and cancellations are retried, too", async () => {
  const { id } = await phoneproof.create();
  proxy.meet("cut after", "half");
  expect(await phoneproof.read(id)).toMatchObject({ id, status: "pending" });
  proxy.meet("cut after", "refused after");
  expect(await phoneproof.cancel(id)).toMatchObject({ id, status: "cancelled" });
});

test("a redirect is not followed, so that neither API key nor request goes elsewhere", async () => {
  proxy.meet({ status: 307, headers: { location: `${service.httpUrl}/v1/verifications` } });
  const error = await failureOf(patient.create());
  expect(error).toMatchObject({ code: "unexpected_answer", status: 307 });
});
