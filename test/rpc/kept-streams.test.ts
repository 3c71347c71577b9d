import { EventEmitter } from "node:events";
import type { ServerHttp2Stream } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import type { Caller } from "../../src/core/project.ts";
import { Failure } from "../../src/failures.ts";
import { boundCalls } from "../../src/rpc/open-calls.ts";
import { keepOpenStreams } from "../../src/rpc/open-streams.ts";

const callerOf = (tokenId: string) => ({ kind: "service", tokenId }) as Caller;

/** Opens streams of one credential, which `refuse` makes invalid. A token's id is its credential here. */
function openSome(count: number) {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  let announce = () => {};
  let refusal: Failure | undefined;
  const streams = keepOpenStreams({
    onRevision(listener) {
      announce = listener;
      const stop = () => {
        announce = () => {};
      };
      return { stop };
    },
  });
  onTestFinished(() => streams.close());
  const ended: string[] = [];
  const checked: string[] = [];
  const open = (tokenId: string) =>
    streams.add({
      credential: tokenId,
      authenticate: async () => {
        checked.push(tokenId);
        if (refusal) throw refusal;
      },
      end: ({ code }) => void ended.push(code),
    });
  const leave = Array.from({ length: count }, () => open("one"));
  return {
    open,
    add: streams.add,
    leave,
    ended,
    checked,
    announce: () => announce(),
    close: () => streams.close(),
    refuse: (code: "invalid_api_key" | "service_unavailable") => {
      refusal = new Failure(code);
    },
  };
}

test("an announced change ends the streams of a credential that is no longer valid at once", async () => {
  const { announce, refuse, ended, leave } = openSome(3);
  announce();
  await Promise.resolve();
  expect(ended).toEqual([]);
  leave[0]?.();
  refuse("invalid_api_key");
  announce();
  await vi.waitUntil(() => ended.length === 2, { timeout: 45_000 });
  expect(ended).toEqual(["invalid_api_key", "invalid_api_key"]);
});

test("a change checks each credential once, however many streams have it, as long as one is open", async () => {
  const { announce, checked, open, leave } = openSome(3);
  const untilChecked = (count: number) => vi.waitUntil(() => checked.length === count, { timeout: 45_000 });
  for (let stream = 0; stream < 2; stream++) open("other");
  announce();
  expect(checked.splice(0)).toEqual(["one", "other"]);
  for (const leaveOne of leave) leaveOne();
  announce();
  await untilChecked(1);
  expect(checked.splice(0)).toEqual(["other"]);
  open("one");
  // Leaving twice does not affect it.
  leave[0]?.();
  announce();
  await untilChecked(2);
  expect(checked).toEqual(["other", "one"]);
});

test("changes that are announced during a check share the next one", async () => {
  const { announce, checked } = openSome(1);
  for (let change = 0; change < 10; change++) announce();
  expect(checked).toEqual(["one"]);
  await vi.waitUntil(() => checked.length > 1, { timeout: 45_000 });
  announce();
  await vi.waitUntil(() => checked.length > 2, { timeout: 45_000 });
  expect(checked).toEqual(["one", "one", "one"]);
  // Most likely after the pause. Without `vi.waitUntil`, which lets the time of the sweeps pass.
  await delay(50);
  announce();
  while (checked.length === 3) await delay(10);
});

test("after a check that a change has caused, the next one waits for four times as long as that took", async () => {
  const { add, announce } = openSome(0);
  const begun: number[] = [];
  const ended: number[] = [];
  const authenticate = async () => {
    begun.push(performance.now());
    await delay(50);
    ended.push(performance.now());
  };
  add({ credential: "one", authenticate, end: () => {} });
  announce();
  announce();
  // Without `vi.waitUntil`, which lets the time of the sweeps pass: theirs could come before the next one.
  while (ended.length < 2) await delay(10);
  const [firstBegun = 0, nextBegun = 0] = begun;
  const [firstEnded = 0] = ended;
  // A timer counts whole milliseconds.
  expect(nextBegun - firstEnded).toBeGreaterThan(4 * (firstEnded - firstBegun) - 2);
});

test("a stream that is opened while its credential is being checked does not end with the others", async () => {
  const { announce, refuse, ended, open } = openSome(2);
  refuse("invalid_api_key");
  announce();
  open("one");
  await vi.waitUntil(() => ended.length > 0, { timeout: 45_000 });
  expect(ended).toHaveLength(2);
});

test("streams of an invalid credential end within a second without an announcement; a database outage ends none", async () => {
  const { refuse, ended, leave, open } = openSome(1);
  refuse("invalid_api_key");
  await vi.advanceTimersByTimeAsync(1_000);
  expect(ended).toEqual(["invalid_api_key"]);
  leave[0]?.();
  open("one");
  refuse("service_unavailable");
  await vi.advanceTimersByTimeAsync(1_000);
  expect(ended).toHaveLength(1);
});

test("after the stop nothing is checked any more", async () => {
  const { announce, checked, close } = openSome(1);
  for (let change = 0; change < 2; change++) announce();
  close();
  announce();
  await vi.advanceTimersByTimeAsync(1_000);
  await delay(50);
  expect(checked).toEqual(["one"]);
});

/** Counts streams as the gate does. */
function countStreams() {
  const count = boundCalls("streams");
  return (caller: Caller) => {
    const stream = Object.assign(new EventEmitter(), { closed: false, destroyed: false });
    const refusal = count(caller, stream as unknown as ServerHttp2Stream);
    return { stream, refused: refusal && `${refusal.code}: ${refusal.message}` };
  };
}

test("open streams are limited per caller and in total, and a stream that closes frees its place once", () => {
  const count = countStreams();
  const open = (tokenId: string) => count(callerOf(tokenId));
  const first = open("one");
  for (let stream = 1; stream < 2_500; stream++) open("one");
  const tooMany = "rate_limited: More than 2500 streams are open: close some.";
  expect(open("one").refused).toBe(tooMany);
  first.stream.emit("close");
  first.stream.emit("close");
  expect(open("one").refused).toBeUndefined();
  expect(open("one").refused).toBe(tooMany);
  for (const caller of ["two", "three", "four"]) {
    for (let stream = 0; stream < 2_500; stream++) expect(open(caller).refused).toBeUndefined();
  }
  expect(open("five").refused).toMatch(/^service_unavailable/);
});

test("all keys of a project share its limit", () => {
  const count = countStreams();
  const openWith = (apiKeyId: string, id = "shop") =>
    count({ kind: "merchant", apiKeyId, project: { id } } as Caller).refused;
  for (let stream = 0; stream < 2_500; stream++) openWith(`key-${stream % 2}`);
  expect(openWith("key-2")).toMatch("More than 2500 streams");
  expect(openWith("key-2", "another shop")).toBeUndefined();
});
