import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { AttemptResult, Claim, ClaimBounds, DueAttempt } from "../../src/core/webhook.ts";
import { deliverInTime } from "../../src/jobs/deliveries.ts";
import { runAllTheTime } from "../harness/timers.ts";

beforeEach(() => {
  vi.useFakeTimers({ toNotFake: ["setImmediate", "nextTick", "queueMicrotask"] });
  runAllTheTime();
});
afterEach(() => {
  vi.useRealTimers();
});

const nothingDue: Claim = { attempts: [], heldBack: 0 };
const poll = 500;
const hanging = { endpoint: "" } as DueAttempt;

function startDeliveries(claim: () => Promise<Claim>) {
  const job = deliverInTime({
    claim,
    attempt: () => Promise.reject(new Error("nothing is due")),
    record: async () => {},
    onError() {},
  });
  job.start();
  return job;
}

test("a wake between two polls is followed by a claim at once", async () => {
  const claim = vi.fn(async () => nothingDue);
  const job = startDeliveries(claim);
  await vi.advanceTimersByTimeAsync(poll - 1);
  expect(claim).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(100);
  expect(claim).toHaveBeenCalledTimes(2);
  job.wake();
  await vi.advanceTimersByTimeAsync(0);
  expect(claim).toHaveBeenCalledTimes(3);
  await job.stop();
});

test("wakes during a claim, which may have been too early to see what they announce, are followed by one more", async () => {
  const first = Promise.withResolvers<Claim>();
  const claim = vi.fn(async () => nothingDue).mockReturnValueOnce(first.promise);
  const job = startDeliveries(claim);
  await vi.advanceTimersByTimeAsync(0);
  job.wake();
  job.wake();
  await vi.advanceTimersByTimeAsync(poll);
  expect(claim).toHaveBeenCalledTimes(1);
  first.resolve(nothingDue);
  await vi.advanceTimersByTimeAsync(10);
  expect(claim).toHaveBeenCalledTimes(2);
  await vi.advanceTimersByTimeAsync(poll - 1);
  expect(claim).toHaveBeenCalledTimes(2);
  await job.stop();
});

test.for<{ name: string; first: () => Promise<Claim>; nextMs: number }>([
  { name: "found something", first: async () => ({ attempts: [hanging], heldBack: 0 }), nextMs: 10 },
  { name: "held something back", first: async () => ({ attempts: [], heldBack: 1 }), nextMs: 10 },
  { name: "found nothing", first: async () => nothingDue, nextMs: poll },
  { name: "failed", first: () => Promise.reject(new Error("the database is away")), nextMs: 1_000 },
])("a claim that $name is followed by the next after $nextMs ms", async ({ first, nextMs }) => {
  const claim = vi.fn(async () => nothingDue).mockImplementationOnce(first);
  const attempt = () => new Promise<never>(() => {});
  const job = deliverInTime({ claim, attempt, record: async () => {}, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(nextMs - 1);
  expect(claim).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(1);
  expect(claim).toHaveBeenCalledTimes(2);
});

test("however many wakes there are, claims are ten milliseconds apart", async () => {
  const claim = vi.fn(async () => nothingDue);
  const job = startDeliveries(claim);
  await vi.advanceTimersByTimeAsync(0);
  for (let passed = 0; passed < 100; passed++) {
    job.wake();
    await vi.advanceTimersByTimeAsync(1);
  }
  expect(claim).toHaveBeenCalledTimes(11);
  await job.stop();
});

test("attempts that end one after the other do not put off the next claim", async () => {
  const attempts = Array.from({ length: 100 }, (_, index) => ({ endpoint: `${index}` }) as DueAttempt);
  const claim = vi.fn(async () => nothingDue).mockResolvedValueOnce({ attempts, heldBack: 0 });
  const attempt = ({ endpoint }: DueAttempt) =>
    new Promise<AttemptResult>((resolve) =>
      setTimeout(() => resolve({ error: null } as AttemptResult), Number(endpoint) + 1),
    );
  const job = deliverInTime({ claim, attempt, record: async () => {}, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(100);
  expect(claim.mock.calls.length).toBeGreaterThanOrEqual(8);
  await job.stop();
});

test.for([
  { name: "accepts", error: null, room: 9 },
  { name: "refuses", error: "answered 500", room: 8 },
])("an endpoint that $name a second event may have $room attempts at once", async ({ error, room }) => {
  const due = async () => ({ attempts: [{ endpoint: "shop" } as DueAttempt], heldBack: 0 });
  const claim = vi.fn((_bounds: ClaimBounds): Promise<Claim> => Promise.resolve(nothingDue));
  claim.mockImplementationOnce(due).mockImplementationOnce(due);
  const results = [null, error];
  const attempt = async () => ({ error: results.shift() }) as AttemptResult;
  const job = deliverInTime({ claim, attempt, record: async () => {}, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(20);
  expect(claim.mock.calls[2]?.[0].endpoints).toEqual([{ endpoint: "shop", slow: false, underWay: 0, room }]);
  await job.stop();
});

/** What the next claim may take for an endpoint that accepts one event at once, and then others after these milliseconds. */
async function roomAfterAccepting(...times: readonly number[]): Promise<number> {
  const left = [0, ...times];
  let isAccepted = true;
  const claim = vi.fn(async (_bounds: ClaimBounds): Promise<Claim> => {
    if (!isAccepted || left.length === 0) return nothingDue;
    isAccepted = false;
    return { attempts: [{ endpoint: "shop" } as DueAttempt], heldBack: 0 };
  });
  const attempt = async () => {
    await new Promise((resolve) => setTimeout(resolve, left.shift()));
    isAccepted = true;
    return { error: null } as AttemptResult;
  };
  const job = deliverInTime({ claim, attempt, record: async () => {}, onError() {} });
  job.start();
  while (left.length > 0 || !isAccepted) await vi.advanceTimersByTimeAsync(1);
  const claims = claim.mock.calls.length;
  while (claim.mock.calls.length === claims) await vi.advanceTimersByTimeAsync(1);
  await job.stop();
  const { endpoints, perEndpoint } = claim.mock.lastCall?.[0] as ClaimBounds;
  return endpoints.find(({ endpoint }) => endpoint === "shop")?.room ?? perEndpoint;
}

test.for([
  { name: "99 ms", times: [99], room: 9 },
  { name: "101 ms", times: [101], room: 8 },
  { name: "99 ms each time", times: new Array(100).fill(99), room: 64 },
  { name: "101 ms after many at once", times: [...new Array(100).fill(0), 101], room: 8 },
  { name: "999 ms after many at once", times: [...new Array(100).fill(0), 999], room: 8 },
  { name: "1,001 ms after many at once", times: [...new Array(100).fill(0), 1_001], room: 2 },
])("an endpoint that accepts events after $name may have $room attempts at once", async ({ times, room }) => {
  expect(await roomAfterAccepting(...times)).toBe(room);
});

test("a claim that is in progress at the stop is the last", async () => {
  const first = Promise.withResolvers<Claim>();
  const claim = vi.fn(async () => nothingDue).mockReturnValueOnce(first.promise);
  const job = startDeliveries(claim);
  await vi.advanceTimersByTimeAsync(0);
  const stopped = job.stop();
  first.resolve(nothingDue);
  await stopped;
  await vi.advanceTimersByTimeAsync(poll);
  expect(claim).toHaveBeenCalledTimes(1);
});

/** One attempt is due. */
const claimOne = () =>
  vi
    .fn(async () => nothingDue)
    .mockResolvedValueOnce({ attempts: [{ endpoint: "" } as DueAttempt], heldBack: 0 });

test("while as many attempts as may be are in progress, nothing is claimed; once one ends, it is at once", async () => {
  const ending = Promise.withResolvers<AttemptResult>();
  const attempts = Array.from({ length: 1_024 }, (_, index) => ({ endpoint: `${index}` }) as DueAttempt);
  const claim = vi.fn(async () => nothingDue).mockResolvedValueOnce({ attempts, heldBack: 1 });
  const attempt = ({ endpoint }: DueAttempt, signal: AbortSignal) => {
    if (endpoint === "0") return ending.promise;
    return new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  const job = deliverInTime({ claim, attempt, record: async () => {}, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(poll - 1);
  expect(claim).toHaveBeenCalledTimes(1);
  ending.resolve({ error: null } as AttemptResult);
  await vi.advanceTimersByTimeAsync(10);
  expect(claim).toHaveBeenCalledTimes(2);
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(3_000);
  await stopped;
});

test("a result that could not be recorded is not lost: a stop records it at the latest", async () => {
  const result = { error: null } as AttemptResult;
  const record = vi.fn(async () => {}).mockRejectedValueOnce(new Error("the database is away"));
  const onError = vi.fn();
  const job = deliverInTime({ claim: claimOne(), attempt: async () => result, record, onError });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  expect([record.mock.calls.length, onError.mock.calls.length]).toEqual([1, 1]);
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(3_000);
  await stopped;
  expect(record.mock.calls).toEqual([[result], [result]]);
});

test.for([
  { name: "before the end of the lease", afterMs: 29_999, tries: 2 },
  { name: "at the end of the lease, when another process may make the attempt", afterMs: 30_000, tries: 1 },
])("of a result that could not be recorded $name, there are $tries tries", async ({ afterMs, tries }) => {
  const record = vi.fn(async () => {});
  record.mockImplementationOnce(async () => {
    vi.advanceTimersByTime(afterMs);
    throw new Error("the database is away");
  });
  const attempt = async () => ({ error: null }) as AttemptResult;
  const onError = vi.fn();
  const job = deliverInTime({ claim: claimOne(), attempt, record, onError });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  expect(onError).toHaveBeenCalledOnce();
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(3_000);
  await stopped;
  expect(record).toHaveBeenCalledTimes(tries);
});

test("a stop gives up recording a result after three seconds if the database stays away", async () => {
  const record = vi.fn(() =>
    record.mock.calls.length > 20 ? new Promise<void>(() => {}) : Promise.reject(new Error("it is away")),
  );
  const attempt = async () => ({ error: null }) as AttemptResult;
  const job = deliverInTime({ claim: claimOne(), attempt, record, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = vi.fn();
  void job.stop().then(stopped);
  await vi.advanceTimersByTimeAsync(2_999);
  expect(stopped).not.toHaveBeenCalled();
  // Amid the pause after a failure.
  await vi.advanceTimersByTimeAsync(1);
  expect(stopped).toHaveBeenCalledOnce();
  expect(record.mock.calls.length).toBeLessThanOrEqual(5);
});

test("a stop cuts off an attempt that hangs after three seconds, and reports no error", async () => {
  const cut = Promise.withResolvers<never>();
  const [record, onError] = [vi.fn(async () => {}), vi.fn()];
  const attempt = (_due: DueAttempt, signal: AbortSignal) => {
    signal.addEventListener("abort", () => cut.reject(signal.reason));
    return cut.promise;
  };
  const job = deliverInTime({ claim: claimOne(), attempt, record, onError });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(3_000);
  await stopped;
  await expect(cut.promise).rejects.toThrow();
  expect([record.mock.calls.length, onError.mock.calls.length]).toEqual([0, 0]);
});

test("a stop waits for the attempt that a claim in progress yields, until its result is recorded", async () => {
  const first = Promise.withResolvers<Claim>();
  const claim = vi.fn(async () => nothingDue).mockReturnValueOnce(first.promise);
  const result = { error: null } as AttemptResult;
  const attempted = Promise.withResolvers<AttemptResult>();
  const record = vi.fn(async () => {});
  const job = deliverInTime({ claim, attempt: () => attempted.promise, record, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = job.stop().then(() => expect(record).toHaveBeenCalledExactlyOnceWith(result));
  first.resolve({ attempts: [hanging], heldBack: 0 });
  await vi.advanceTimersByTimeAsync(2_999);
  attempted.resolve(result);
  await stopped;
});

test("of a claim that is answered only after a stop has cut off the attempts, none is made", async () => {
  const first = Promise.withResolvers<Claim>();
  const claim = vi.fn(async () => nothingDue).mockReturnValueOnce(first.promise);
  const attempt = vi.fn(() => Promise.reject(new Error("it is too late")));
  const job = deliverInTime({ claim, attempt, record: async () => {}, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(3_000);
  first.resolve({ attempts: [hanging], heldBack: 0 });
  await stopped;
  expect(attempt).not.toHaveBeenCalled();
});

test("a stop waits four seconds for a claim that the database does not answer", async () => {
  const job = startDeliveries(() => new Promise<never>(() => {}));
  await vi.advanceTimersByTimeAsync(0);
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(4_000);
  await stopped;
});
