import type { Settle } from "../core/settle.ts";
import type { Span } from "../core/tracing.ts";
import { Failure } from "../failures.ts";
import { runningTime } from "../running-time.ts";
import { isDatabaseUnavailable } from "./database-errors.ts";
import type { BatchObserver } from "./observer.ts";

interface Waiting<Item, Result> {
  readonly item: Item;
  readonly keys: readonly string[];
  /** By `runningTime`. */
  readonly since: number;
  readonly span: Span | undefined;
  settle: Settle<Result>;
}

/** Settles the items of a batch. */
interface Settlement {
  (): void;
  /** The error, if the database was unavailable. */
  readonly unavailable?: unknown;
}

/**
 * The longest that a batch may take, or a new item may have to wait: beyond it new items are refused, since they would only
 * make the wait longer. Twice what ten thousand creations take at full speed; with a shorter limit a process that is deprived
 * of its CPU for a moment would take that for overload.
 */
const maxWaitMs = 4_000;

/**
 * If items have waited longer than this for `maxWaitMs`, the load is not a burst: from then on items are refused that would
 * wait longer than this, until the first item of a batch has waited less than `workedOffMs`.
 */
const sustainedMs = 1_000;
const workedOffMs = 250;

/**
 * A statement costs the database about as much as ten more items in it. So if fewer items than this wait, and the process is
 * busy, the requests that have already arrived are read first and join the next batch, before the last batch is answered and
 * its callers can send new ones: a seventh more reads and cancels a second (64 connections, two cores).
 */
const readFirstBelow = 64;

/** From this batch size on, a second concurrent statement is worth its cost. */
const minConcurrentBatch = 128;

const noKeys: readonly string[] = [];

const nobody: Settle<unknown> = { resolve() {}, reject() {} };

/**
 * The smallest batch that is pipelined behind the one in flight, on the same connection. Without pipelining the database idles
 * until this process, with sixty requests to handle, has read its answer: pipelining gives a tenth to a fifth more creations,
 * and a fifth to a quarter more reads and cancels a second (64 connections, two cores). With smaller batches the additional
 * statements cost more than that gains.
 */
const minPipelinedBatch = 24;

/**
 * If a batch took longer than this for each of its items, none is pipelined behind the next one: it mostly waited, for its commit on
 * a slow disk or a standby, or for the usage row that other processes had locked. A second batch would wait as long again for what
 * one could have done, and items that arrive after the first was sent would wait for both. Four processes with a standby 4 ms away
 * create a fifth more a second; for one, whose batches take some 0.2 ms for each item, nothing changes.
 */
const waitingMsPerItem = 0.5;

/**
 * An item that has no result after this time is refused, even if its batch is still under way: callers are promised a response
 * within 15 s, of which they may have waited one before their request was read. A statement may take 9.5 s, after a wait for
 * another batch, or for another statement of the same one.
 */
const resultWithinMs = 13_000;
const checkForLateEveryMs = 500;

/** Resolves once the event loop has read what was ready to be read. */
const whatHasArrivedIsRead = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Calling it adds an item to the next batch; resolves to the item's result. */
export interface Batcher<Item, Result> {
  (item: Item): Promise<Result>;
  /** The same with callbacks instead of a promise. */
  take(item: Item, settle: Settle<Result>): void;
  /** Whether an item would be refused now. Cheap. */
  isOverloaded(): boolean;
}

/**
 * Turns single requests into batches: what arrives while a batch is in flight forms the next one. On an idle process a request
 * is a batch of one and waits for nothing.
 *
 * `run` returns one result per item, in order. A batch that fails because the database refuses one of its rows is split and
 * retried, so that only that row's request fails. If the database is unavailable, the whole batch fails at once, since a retry
 * might repeat what was committed.
 */
export function createBatcher<Item, Result>(options: {
  readonly maxSize: number;
  /**
   * With this many items waiting, or when the wait has grown too long, new items are refused with service_unavailable.
   * Infinity: nothing is refused, however long it takes; the callers limit themselves.
   */
  readonly maxWaiting: number;
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>;
  /** Called once per batch, also for one that was split. */
  readonly observer: BatchObserver;
  /**
   * Items that share no key do not conflict in the database. If many items wait, a second batch of items that share no key with
   * the one in flight runs concurrently; items that share a key run in order of arrival.
   */
  readonly keysOf?: (item: Item) => readonly string[];
  /**
   * If more items wait than fit into a batch, those with different values share it, so that nobody waits for all that somebody
   * else has sent. Items that share a key still run in order of arrival.
   */
  readonly senderOf?: (item: Item) => string;
  /**
   * If many items wait, a second batch is sent behind the one in flight; `run` must execute them in order, on one connection.
   */
  readonly isPipelined?: boolean;
}): Batcher<Item, Result> {
  let waiting: Waiting<Item, Result>[] = [];
  let inFlight = 0;
  /** The batches in flight. With `keysOf`, no two of them share a key. */
  let underWay: readonly (readonly Waiting<Item, Result>[])[] = [];
  const { keysOf, senderOf, isPipelined = false } = options;
  const enough = isPipelined ? minPipelinedBatch : keysOf ? minConcurrentBatch : Number.POSITIVE_INFINITY;
  /**
   * How many items must wait before another batch is tried. Raised after a try in which too many items shared a key with a
   * batch in flight.
   */
  let enoughForAnother = enough;
  /** Since when items have waited longer than `sustainedMs`. */
  let slowSince = Number.POSITIVE_INFINITY;
  let lastTookMs = 0;
  /**
   * Since when the database has been at work on its current batch: when that was sent, or when the one before it was answered.
   */
  let busySince = 0;
  const { spans } = options.observer;
  const isPatient = options.maxWaiting === Number.POSITIVE_INFINITY;
  /** Whether a timer is set for `refuseLate`, or none is needed. */
  let isWatched = isPatient;

  /** Runs a batch and returns the function that settles its items, so that the next batch can be sent first. */
  async function runBatch(batch: readonly Waiting<Item, Result>[]): Promise<Settlement> {
    try {
      const run = () => options.run(batch.map(({ item }) => item));
      const results = await (spans
        ? spans.within(
            batch.map(({ span }) => span),
            run,
          )
        : run());
      if (results.length !== batch.length)
        return refusing(batch, new Error("a batch returned fewer results than it has requests"));
      return () => {
        for (let index = 0; index < batch.length; index++)
          batch[index]?.settle.resolve(results[index] as Result);
      };
    } catch (error) {
      const unavailable = isDatabaseUnavailable(error) ? error : undefined;
      if (batch.length === 1 || unavailable !== undefined)
        return Object.assign(refusing(batch, error), { unavailable });
      const middle = batch.length >> 1;
      const tellFirst = await runBatch(batch.slice(0, middle));
      const tellRest = await runBatch(batch.slice(middle));
      return () => {
        tellFirst();
        tellRest();
      };
    }
  }

  function refusing(batch: readonly Waiting<Item, Result>[], error: unknown): Settlement {
    return () => {
      for (const { settle } of batch) settle.reject(error);
    };
  }

  function takeBatch(): Waiting<Item, Result>[] {
    if (inFlight > 1 && keysOf) return takeApart();
    if (waiting.length <= options.maxSize) {
      const batch = waiting;
      waiting = [];
      return batch;
    }
    const shares = sharesOfBatch();
    if (shares === undefined) return waiting.splice(0, options.maxSize);
    const { batch, left } = chosen(new Set(), shares);
    waiting = left;
    if (batch.length === options.maxSize) return batch;
    // Somebody's items wait for those of others with the same keys, whose share is used up: these take the places left.
    const rest = chosen(new Set(), undefined, options.maxSize - batch.length);
    waiting = rest.left;
    return [...batch, ...rest.batch];
  }

  /** Takes nothing if the items that share no key with a batch in flight are fewer than `minConcurrentBatch`. */
  function takeApart(): Waiting<Item, Result>[] {
    const taken = new Set<string>();
    for (const other of underWay) for (const { keys } of other) for (const key of keys) taken.add(key);
    const { batch, left } = chosen(taken, sharesOfBatch());
    if (batch.length < minConcurrentBatch) {
      enoughForAnother = waiting.length + minConcurrentBatch;
      return [];
    }
    waiting = left;
    return batch;
  }

  /** A batch of the items that share no key with `taken`, nor with an earlier item that stays behind. */
  function chosen(
    taken: Set<string>,
    shares: Map<string, number> | undefined,
    room = options.maxSize,
  ): Record<"batch" | "left", Waiting<Item, Result>[]> {
    const batch: Waiting<Item, Result>[] = [];
    const left: Waiting<Item, Result>[] = [];
    for (const entry of waiting) {
      const sender = senderOf?.(entry.item) ?? "";
      const share = shares?.get(sender) ?? room;
      if (batch.length === room) {
        left.push(entry);
      } else if (share === 0 || entry.keys.some((key) => taken.has(key))) {
        for (const key of entry.keys) taken.add(key);
        left.push(entry);
      } else {
        shares?.set(sender, share - 1);
        batch.push(entry);
      }
    }
    return { batch, left };
  }

  /** How many of each sender's items the next batch may have: as many as of any other, or all. Undefined: there is one sender. */
  function sharesOfBatch(): Map<string, number> | undefined {
    if (senderOf === undefined) return undefined;
    const counts = new Map<string, number>();
    for (const { item } of waiting) {
      const sender = senderOf(item);
      counts.set(sender, (counts.get(sender) ?? 0) + 1);
    }
    if (counts.size === 1) return undefined;
    let room = options.maxSize;
    let senders = counts.size;
    for (const [sender, count] of [...counts].sort(([, one], [, other]) => one - other)) {
      // One at least, also of more senders than fit: those that arrived first then go first, and nobody is passed over for ever.
      const share = Math.min(count, Math.max(1, Math.ceil(room / senders)));
      counts.set(sender, share);
      room -= share;
      senders -= 1;
    }
    return counts;
  }

  async function drain(): Promise<void> {
    inFlight += 1;
    if (!isWatched) watchForLate();
    let settlement: Settlement = () => {};
    try {
      // A loop that runs beside another leaves a short queue to that one.
      while (waiting.length > 0 && (inFlight === 1 || waiting.length >= enoughForAnother)) {
        const batch = takeBatch();
        if (batch.length === 0) break;
        const startedAt = runningTime.now();
        if (underWay.length === 0) busySince = startedAt;
        underWay = [...underWay, batch];
        const waited = startedAt - (batch[0]?.since ?? startedAt);
        if (waited < workedOffMs) slowSince = Number.POSITIVE_INFINITY;
        else if (waited > sustainedMs) slowSince = Math.min(slowSince, startedAt);
        const running = runBatch(batch);
        // The database works on this batch while this process writes the responses of the previous one: those are settled once
        // the statement has been sent, which takes two ticks.
        const settlePrevious = settlement;
        process.nextTick(() => process.nextTick(settlePrevious));
        settlement = await running;
        underWay = underWay.filter((other) => other !== batch);
        const endedAt = runningTime.now();
        // A pipelined batch began when the one before it ended.
        lastTookMs = endedAt - (isPipelined ? busySince : startedAt);
        busySince = endedAt;
        const hasMostlyWaited = lastTookMs > Math.max(batch.length, minPipelinedBatch) * waitingMsPerItem;
        enoughForAnother = isPipelined && hasMostlyWaited ? Number.POSITIVE_INFINITY : enough;
        if (lastTookMs > maxWaitMs) {
          // Items waiting behind it would wait as long again, for a database that most likely does not answer them either.
          if (settlement.unavailable !== undefined) refuseWaiting(settlement.unavailable);
          // Items that were too late for the pipelined batch have waited for two such batches.
          else if (isPipelined) refuseWaiting(new Failure("service_unavailable"), endedAt - 2 * maxWaitMs);
        }
        options.observer.ran(batch.length, waited, lastTookMs);
        const isLast = inFlight === 1 || !isPipelined;
        if (isLast && batch.length > 1 && waiting.length < readFirstBelow) await whatHasArrivedIsRead();
      }
    } finally {
      inFlight -= 1;
      settlement();
    }
  }

  function watchForLate(): void {
    isWatched = true;
    setTimeout(refuseLate, checkForLateEveryMs).unref();
  }

  /** What the batches of those refused return afterwards is dropped. */
  function refuseLate(): void {
    isWatched = false;
    if (inFlight === 0) return;
    const upTo = runningTime.now() - resultWithinMs;
    const tooLate = new Failure("service_unavailable");
    for (const one of underWay.flat()) {
      if (one.since > upTo) continue;
      one.settle.reject(tooLate);
      one.settle = nobody;
    }
    refuseWaiting(tooLate, upTo);
    watchForLate();
  }

  function refuseWaiting(error: unknown, upTo = Number.POSITIVE_INFINITY): void {
    const refused = waiting.filter(({ since }) => since <= upTo);
    waiting = waiting.filter(({ since }) => since > upTo);
    for (const { settle } of refused) settle.reject(error);
  }

  function isOverloaded(now = runningTime.now()): boolean {
    if (waiting.length === 0 || isPatient) return false;
    const inFlightMs = now - busySince;
    if (waiting.length >= options.maxWaiting || inFlightMs > maxWaitMs) return true;
    // The wait is unknown, but a batch will hardly be faster than the last one, or than the one in flight has been so far.
    const expectedMs = (waiting.length / options.maxSize) * Math.max(lastTookMs, inFlightMs);
    return expectedMs > (now - slowSince > maxWaitMs ? sustainedMs : maxWaitMs);
  }

  function take(item: Item, settle: Settle<Result>): void {
    const since = runningTime.now();
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
