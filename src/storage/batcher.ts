import { Failure } from "../failures.ts";
import { isDatabaseUnavailable } from "./database.ts";

interface Waiting<Item, Result> {
  readonly item: Item;
  readonly resolve: (result: Result) => void;
  readonly reject: (error: unknown) => void;
}

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
  /** Beyond it new items are refused with service_unavailable, instead of growing the wait. */
  readonly maxWaiting: number;
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>;
}): (item: Item) => Promise<Result> {
  let waiting: Waiting<Item, Result>[] = [];
  let inFlight = false;

  /** Answers what to tell the waiting, so that they can be told once the next batch is on its way. */
  async function runBatch(batch: readonly Waiting<Item, Result>[]): Promise<() => void> {
    try {
      const results = await options.run(batch.map(({ item }) => item));
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
      const tell = await runBatch(takeBatch());
      // The database works on the next batch while this process writes the answers of the last: those are told in
      // a turn of their own, after the next statement has left.
      if (waiting.length > 0) setImmediate(tell);
      else tell();
    }
    inFlight = false;
  }

  return (item) =>
    new Promise((resolve, reject) => {
      if (waiting.length >= options.maxWaiting) {
        reject(new Failure("service_unavailable"));
        return;
      }
      waiting.push({ item, resolve, reject });
      if (!inFlight) void drain();
    });
}
