import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { Failure } from "../../src/failures.ts";
import { createLog } from "../../src/log/log.ts";

const written: string[] = [];
const output = { waitingBytes: 0, droppedLines: 0, end: async () => {} };
const log = createLog("info", { ...output, write: (lines) => void written.push(lines) });

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
});

/** The lines since the last call: message, text of the error, and `repeated`. */
function lines() {
  log.flush();
  const texts = written.splice(0).join("").split("\n");
  return texts.flatMap((text) => {
    if (text === "") return [];
    const { msg, err, repeated } = JSON.parse(text);
    return [[msg, err?.message, repeated]];
  });
}

const away = () => new Failure("service_unavailable", { cause: new Error("connect ECONNREFUSED") });
const full = () => new Failure("service_unavailable", { cause: new Error("No space left on device") });

test("equal lines about an error are written once in ten seconds, the next time with their number", () => {
  for (let time = 0; time < 5; time++) log.warn({ err: away() }, "the statistics could not be updated");
  const line = ["the statistics could not be updated", "connect ECONNREFUSED"];
  expect(lines()).toEqual([[...line, undefined]]);
  vi.advanceTimersByTime(9_999);
  expect(lines()).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(lines()).toEqual([[...line, 4]]);
  log.warn({ err: away() }, "the statistics could not be updated");
  expect(lines()).toEqual([]);
  vi.advanceTimersByTime(10_000);
  expect(lines()).toEqual([[...line, 1]]);
  vi.advanceTimersByTime(10_000);
  expect(lines()).toEqual([]);
  log.warn({ err: away() }, "the statistics could not be updated");
  expect(lines()).toEqual([[...line, undefined]]);
});

/** A host with two addresses, of which neither answers. */
const unreachable = (code: string) => {
  const errors = ["::1", "127.0.0.1"].map((address) => new Error(`connect ${code} ${address}:5432`));
  return new Failure("service_unavailable", { cause: new AggregateError(errors) });
};

test("lines with another error, message or field are written", () => {
  log.warn({ err: away() }, "one");
  log.warn({ err: full() }, "one");
  log.warn({ err: away() }, "other");
  log.warn({ err: away(), task: "a" }, "one");
  log.warn({ err: away(), task: "b" }, "one");
  for (const code of ["ECONNREFUSED", "EHOSTUNREACH", "EHOSTUNREACH"])
    log.warn({ err: unreachable(code) }, "one");
  expect(lines()).toHaveLength(7);
});

test("a request's lines are all written, as are lines about no error and those below a warning", () => {
  for (let time = 0; time < 2; time++) {
    log.error({ requestId: "req_1", err: away() }, "internal error");
    log.warn({ reason: "410" }, "a webhook was disabled");
    log.warn("short");
    log.info({ err: away() }, "noted");
  }
  expect(lines()).toHaveLength(8);
});

test("errors that always differ are written, and only so many are remembered", () => {
  const count = 1_500;
  for (let number = 0; number < count; number++) log.warn({ err: new Error(`error ${number}`) }, "failed");
  expect(vi.getTimerCount()).toBeLessThanOrEqual(1_000);
  // Those that are remembered are still only counted.
  log.warn({ err: new Error("error 0") }, "failed");
  expect(lines()).toHaveLength(count);
  vi.advanceTimersByTime(10_000);
  expect(lines()).toEqual([["failed", "error 0", 1]]);
  vi.advanceTimersByTime(10_000);
  expect([lines(), vi.getTimerCount()]).toEqual([[], 0]);
});
