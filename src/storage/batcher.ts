import type { Span } from "../core/tracing.ts";
import { Failure } from "../failures.ts";
import { isDatabaseUnavailable } from "./database.ts";
import type { BatchObserver } from "./observer.ts";

interface Waiting<Item, Result> {
  readonly item: Item;
  /** By performance.now(). */
  readonly since: number;
  readonly span: Span | undefined;
  readonly resolve: (result: Result) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Twice what ten thousand creations take at full speed: where the first of those waiting has waited so long, more only
 * wait longer. Shorter, a process that others keep from its processor for a moment would take that for overload.
 */
const patienceMs = 4_000;

/**
 * Turns single requests into batches: what arrives while a batch is in flight forms the next one. On an
 * idle process a request is a batch of one and waits for nothing.
 *
 * `run` answers one result an item, in order. A batch that fails as a whole, because of one row that the
 * database refuses, is split and retried, so that only its own request fails; where the database itself
 * cannot be reached, all of it fails at once, since a retry might repeat what was committed.
 */
export function createBatcher<Item, Result>(options: {
  readonly maxSize: number;
  /**
   * Beyond it, and where the wait has grown too long, new items are refused with service_unavailable. Infinity: whoever
   * asks holds itself back.
   */
  readonly maxWaiting: number;
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>;
  /** Told once of each batch; one that was split counts as one. */
  readonly observer: BatchObserver;
}): (item: Item) => Promise<Result> {
  let waiting: Waiting<Item, Result>[] = [];
  let inFlight = false;
  const { spans } = options.observer;

  /** Answers what to tell the waiting, so that they can be told once the next batch is on its way. */
  async function runBatch(batch: readonly Waiting<Item, Result>[]): Promise<() => void> {
    try {
      const run = () => options.run(batch.map(({ item }) => item));
      const results = await (spans
        ? spans.within(
            batch.map(({ span }) => span),
            run,
          )
        : run());
      return () => {
        for (let index = 0; index < batch.length; index++) batch[index]?.resolve(results[index] as Result);
      };
    } catch (error) {
      if (batch.length === 1 || isDatabaseUnavailable(error)) {
        return () => {
          for (const { reject } of batch) reject(error);
        };
      }
      const middle = batch.length >> 1;
      const tellFirst = await runBatch(batch.slice(0, middle));
      const tellRest = await runBatch(batch.slice(middle));
      return () => {
        tellFirst();
        tellRest();
      };
    }
  }

  function takeBatch(): Waiting<Item, Result>[] {
    const batch = waiting.length <= options.maxSize ? waiting : waiting.slice(0, options.maxSize);
    waiting = waiting.length <= options.maxSize ? [] : waiting.slice(options.maxSize);
    return batch;
  }

  async function drain(): Promise<void> {
    inFlight = true;
    while (waiting.length > 0) {
      const batch = takeBatch();
      const startedAt = performance.now();
      const tell = await runBatch(batch);
      const [first] = batch;
      if (first) options.observer.ran(batch.length, startedAt - first.since, performance.now() - startedAt);
      // The database works on the next batch while this process writes the answers of the last: those are told in
      // a turn of their own, after the next statement has left.
      if (waiting.length > 0) setImmediate(tell);
      else tell();
    }
    inFlight = false;
  }

  function isOverloaded(now: number): boolean {
    const [first] = waiting;
    if (first === undefined || options.maxWaiting === Number.POSITIVE_INFINITY) return false;
    return waiting.length >= options.maxWaiting || now - first.since > patienceMs;
  }

  return (item) =>
    new Promise((resolve, reject) => {
      const since = performance.now();
      if (isOverloaded(since)) {
        reject(new Failure("service_unavailable"));
        return;
      }
      waiting.push({ item, since, span: spans?.current(), resolve, reject });
      if (!inFlight) void drain();
    });
}
