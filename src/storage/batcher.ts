import type { Settle } from "../core/settle.ts";
import type { Span } from "../core/tracing.ts";
import { Failure } from "../failures.ts";
import { isDatabaseUnavailable } from "./database.ts";
import type { BatchObserver } from "./observer.ts";

interface Waiting<Item, Result> {
  readonly item: Item;
  readonly keys: readonly string[];
  /** By performance.now(). */
  readonly since: number;
  readonly span: Span | undefined;
  readonly settle: Settle<Result>;
}

/** Tells those of a batch what became of it. */
interface Tell {
  (): void;
  /** Why the database could not answer them. */
  readonly unavailable?: unknown;
}

/**
 * Twice what ten thousand creations take at full speed: where a batch has taken so long, or one more would wait so long, more
 * only wait longer. Shorter, a process that others keep from its processor for a moment would take that for overload.
 */
const patienceMs = 4_000;

/**
 * Where items have waited longer than this for as long as `patienceMs`, it is no burst: from then on none is taken that would
 * wait longer, until what waits has been worked off.
 */
const sustainedMs = 1_000;
const workedOffMs = 250;

/**
 * A statement costs the database about as much as what ten more items in it cost. So where there are few and the process is
 * busy, what has arrived by now is read first, before those are answered who may ask again: a seventh more reads and cancels a
 * second (64 connections, two cores).
 */
const worthASmallWait = 64;

/** From this size on a second statement beside the first is worth what a statement costs. */
const worthAnother = 128;

const noKeys: readonly string[] = [];

/**
 * The least that is sent behind the batch in flight, on the same connection. Otherwise the database has nothing to do until this
 * process has come to its answer, among sixty requests at work: pipelined, it is a tenth to a fifth more creations, a fifth to a
 * quarter more reads and cancels a second (64 connections, two cores). With fewer the statements cost more than that gains.
 */
const worthFollowing = 24;

/**
 * Behind batches that take so long none follows: what this process is busy with meanwhile is nothing beside it, and what is sent
 * is out of reach of those who come later, who would wait for two more.
 */
const tooSlowToFollowMs = 1_000;

/** The event loop has come to what was ready to be read. */
const whatHasArrivedIsRead = () => new Promise<void>((resolve) => setImmediate(resolve));

/** What arrives joins the next batch. */
export interface Batcher<Item, Result> {
  (item: Item): Promise<Result>;
  /** The same without a promise. */
  take(item: Item, settle: Settle<Result>): void;
  /** Whether an item would be refused now. Takes no time. */
  isOverloaded(): boolean;
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
  /**
   * Beyond it, and where the wait has grown too long, new items are refused with service_unavailable. Infinity: whoever
   * asks holds itself back.
   */
  readonly maxWaiting: number;
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>;
  /** Told once of each batch; one that was split counts as one. */
  readonly observer: BatchObserver;
  /**
   * Items without a key in common do not meet in the database. Where many wait, a second batch of such as have none in common
   * with the one in flight goes beside it; those that share a key are run in the order they came.
   */
  readonly keysOf?: (item: Item) => readonly string[];
  /** Where many wait, a second batch is sent behind the one in flight: `run` runs them in turn, on one connection. */
  readonly isPipelined?: boolean;
}): Batcher<Item, Result> {
  let waiting: Waiting<Item, Result>[] = [];
  let inFlight = 0;
  /** No two have a key in common. */
  let underWay: readonly (readonly Waiting<Item, Result>[])[] = [];
  const { keysOf, isPipelined = false } = options;
  const enough = isPipelined ? worthFollowing : keysOf ? worthAnother : Number.POSITIVE_INFINITY;
  /** Whether another batch is worth looking for hangs on how many wait: more than shared keys with what is in flight. */
  let enoughForAnother = enough;
  /** Since when items wait longer than `sustainedMs`. */
  let slowSince = Number.POSITIVE_INFINITY;
  let lastTookMs = 0;
  /** Since when the database has something to do, or since it last answered something. */
  let busySince = 0;
  const { spans } = options.observer;

  /** Answers what to tell the waiting, so that they can be told once the next batch is on its way. */
  async function runBatch(batch: readonly Waiting<Item, Result>[]): Promise<Tell> {
    try {
      const run = () => options.run(batch.map(({ item }) => item));
      const results = await (spans
        ? spans.within(
            batch.map(({ span }) => span),
            run,
          )
        : run());
      if (results.length !== batch.length) return refusing(batch, new Error("a batch came back short"));
      return () => {
        for (let index = 0; index < batch.length; index++)
          batch[index]?.settle.resolve(results[index] as Result);
      };
    } catch (error) {
      if (batch.length === 1 || isDatabaseUnavailable(error)) {
        const unavailable = isDatabaseUnavailable(error) ? error : undefined;
        return Object.assign(refusing(batch, error), { unavailable });
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

  function refusing(batch: readonly Waiting<Item, Result>[], error: unknown): Tell {
    return () => {
      for (const { settle } of batch) settle.reject(error);
    };
  }

  function takeBatch(): Waiting<Item, Result>[] {
    if (inFlight > 1 && keysOf) return takeApart();
    const batch = waiting.length <= options.maxSize ? waiting : waiting.slice(0, options.maxSize);
    waiting = waiting.length <= options.maxSize ? [] : waiting.slice(options.maxSize);
    return batch;
  }

  /** What is left behind holds up whatever shares a key with it. Nothing, where too few are free to go. */
  function takeApart(): Waiting<Item, Result>[] {
    const batch: Waiting<Item, Result>[] = [];
    const left: Waiting<Item, Result>[] = [];
    const taken = new Set<string>();
    for (const other of underWay) for (const { keys } of other) for (const key of keys) taken.add(key);
    for (const entry of waiting) {
      if (batch.length === options.maxSize) {
        left.push(entry);
      } else if (entry.keys.some((key) => taken.has(key))) {
        for (const key of entry.keys) taken.add(key);
        left.push(entry);
      } else batch.push(entry);
    }
    if (batch.length < worthAnother) {
      enoughForAnother = waiting.length + worthAnother;
      return [];
    }
    waiting = left;
    return batch;
  }

  async function drain(): Promise<void> {
    inFlight += 1;
    let tell: Tell = () => {};
    try {
      // One that runs beside another leaves it what few are waiting.
      while (waiting.length > 0 && (inFlight === 1 || waiting.length >= enoughForAnother)) {
        const batch = takeBatch();
        if (batch.length === 0) break;
        const startedAt = performance.now();
        if (underWay.length === 0) busySince = startedAt;
        underWay = [...underWay, batch];
        const waited = startedAt - (batch[0]?.since ?? startedAt);
        if (waited < workedOffMs) slowSince = Number.POSITIVE_INFINITY;
        else if (waited > sustainedMs) slowSince = Math.min(slowSince, startedAt);
        const running = runBatch(batch);
        // The database works on a batch while this process writes the answers of the one before: those are told once the
        // statement has left, which takes two ticks.
        const tellLast = tell;
        process.nextTick(() => process.nextTick(tellLast));
        tell = await running;
        underWay = underWay.filter((other) => other !== batch);
        const endedAt = performance.now();
        // One that followed another began when that was done.
        lastTookMs = endedAt - (isPipelined ? busySince : startedAt);
        busySince = endedAt;
        enoughForAnother = isPipelined && lastTookMs > tooSlowToFollowMs ? Number.POSITIVE_INFINITY : enough;
        if (lastTookMs > patienceMs) {
          // Who has waited behind it would wait as long again, for a database that most likely does not answer them either.
          if (tell.unavailable !== undefined) refuseWaiting(tell.unavailable);
          // Who was too late for the batch that followed another has waited for both of them.
          else if (isPipelined) refuseWaiting(new Failure("service_unavailable"), endedAt - 2 * patienceMs);
        }
        options.observer.ran(batch.length, waited, lastTookMs);
        const isLast = inFlight === 1 || !isPipelined;
        if (isLast && batch.length > 1 && waiting.length < worthASmallWait) await whatHasArrivedIsRead();
      }
    } finally {
      inFlight -= 1;
      tell();
    }
  }

  function refuseWaiting(error: unknown, upTo = Number.POSITIVE_INFINITY): void {
    const refused = waiting.filter(({ since }) => since <= upTo);
    waiting = waiting.filter(({ since }) => since > upTo);
    for (const { settle } of refused) settle.reject(error);
  }

  function isOverloaded(now = performance.now()): boolean {
    if (waiting.length === 0 || options.maxWaiting === Number.POSITIVE_INFINITY) return false;
    const inFlightMs = now - busySince;
    if (waiting.length >= options.maxWaiting || inFlightMs > patienceMs) return true;
    // Nobody knows how long it will be, but it will hardly be quicker than it was.
    const expectedMs = (waiting.length / options.maxSize) * Math.max(lastTookMs, inFlightMs);
    return expectedMs > (now - slowSince > patienceMs ? sustainedMs : patienceMs);
  }

  function take(item: Item, settle: Settle<Result>): void {
    const since = performance.now();
    if (isOverloaded(since)) {
      settle.reject(new Failure("service_unavailable"));
      return;
    }
    const keys = keysOf?.(item) ?? noKeys;
    waiting.push({ item, keys, since, span: spans?.current(), settle });
    if (inFlight === 0 || (inFlight === 1 && waiting.length >= enoughForAnother)) void drain();
  }

  const enqueue = (item: Item) =>
    new Promise<Result>((resolve, reject) => {
      take(item, { resolve, reject });
    });
  return Object.assign(enqueue, { take, isOverloaded: () => isOverloaded() });
}
