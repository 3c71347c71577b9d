/**
 * Whose turn it is where more is asked than is done. All that waits in this process is copied by each collection of young
 * objects, and what waits longer by several; what nobody has read yet waits in the kernel at no cost. So where enough is in
 * hand, a connection that was answered is read again when its turn comes, behind those answered before it. Only where this
 * process has no time left: one that only waits for its database can take more.
 */

import type { Socket } from "node:net";
import { performance } from "node:perf_hooks";
import { isUnheard, listenTo, stopListening } from "./listening.ts";
import { countRequestsInHand } from "./requests-in-hand.ts";

/** Requests that keep this process and its database busy: more only wait. (With 256 and with 64 fewer were served, see docs/performance.md.) */
export const enough = 128;

/** Where a turn takes longer than this, whoever's it is may as well come again later. (With a second fewer were served.) */
const patienceMs = 2_000;

/**
 * Not all that keeps a process busy asks whether it is late: of those who have waited for so long some are read at each look,
 * whatever is in hand.
 */
const longestMs = 3_000;
const readAtLeast = 16;

/** How often it is looked again who may be read, and how busy the process is. */
const lookMs = 100;

/** The share of its time that the event loop of a process has something to do, where it is what others wait for. */
const busyShare = 0.9;

interface Waiting {
  readonly socket: Socket;
  /** In the clock's milliseconds. */
  readonly since: number;
}

export interface ConnectionTurns {
  /** A request is in hand, `at` the clock's milliseconds. */
  begun(at: number): void;
  /** It is over, and its connection is free for the next. `begunAt` is null where it was never in hand. */
  answered(socket: Socket, begunAt: number | null): void;
  /** It is over, and its connection with it. `isWhole`: its answer was taken. */
  ended(begunAt: number | null, isWhole: boolean): void;
  /** Whether a request would better be told to come again: turns take too long, and there is enough to do without it. */
  isLate(): boolean;
  /** Of whoever waits longest, in milliseconds. */
  waitedMs(): number;
  /** From now on everybody is read. */
  stop(): void;
}

/** `busyShareOf` answers the share of its time in which the process was busy since it was asked last. */
export function createConnectionTurns({
  clock = () => performance.now(),
  busyShareOf = ownBusyShare(),
}: {
  readonly clock?: () => number;
  readonly busyShareOf?: () => number;
} = {}): ConnectionTurns {
  const inHand = countRequestsInHand();
  /** From `first` on, in the order of their turns. */
  let waiting: Waiting[] = [];
  let first = 0;
  let isDue = false;
  let isStopped = false;
  let isBusy = false;
  /** Of the requests that are over since it was looked last, how many have kept their connection and how many have left it. */
  let kept = 0;
  let left = 0;
  let lookedAt = Number.NEGATIVE_INFINITY;
  let lookingAgain: NodeJS.Timeout | undefined;

  /** Once for all that is answered at a time: whom there is room for is read in the next round of the event loop. */
  function makeRoom(): void {
    if (first === waiting.length || isDue) return;
    isDue = true;
    setImmediate(nextTurns, 0);
  }

  /**
   * Looked at no oftener than each tenth of a second: on the whole since it was looked at last. Whoever comes on connections of
   * their own waits for no turn: where they are more, to hold the others would only give them their time.
   */
  function isWaitedFor(): boolean {
    const now = clock();
    if (now - lookedAt >= lookMs) {
      lookedAt = now;
      isBusy = busyShareOf() > busyShare && left <= kept;
      kept = 0;
      left = 0;
    }
    return isBusy;
  }

  /** Whose turn is next. A connection that was closed here meanwhile has none; that a client is gone is heard when it is read. */
  function next(): Waiting | undefined {
    while (waiting[first]?.socket.destroyed) first++;
    return waiting[first];
  }

  function waitedMs(): number {
    const longest = next();
    return longest === undefined ? 0 : clock() - longest.since;
  }

  /** `atLeast` so many of those who have waited for too long. */
  function nextTurns(atLeast: number): void {
    isDue = false;
    const room = isStopped
      ? Number.POSITIVE_INFINITY
      : isWaitedFor()
        ? enough - inHand.count(clock())
        : enough;
    for (let taken = 0; next() !== undefined; taken++) {
      if (taken >= room && (taken >= atLeast || waitedMs() <= longestMs)) break;
      listenTo((waiting[first++] as Waiting).socket);
    }
    if (first === waiting.length) {
      clearInterval(lookingAgain);
      lookingAgain = undefined;
    }
    if (2 * first >= waiting.length) {
      waiting = waiting.slice(first);
      first = 0;
    }
    // Where there is time for all of them, the others follow as soon as these were read.
    if (!isWaitedFor()) makeRoom();
  }

  return {
    begun: inHand.begun,
    answered(socket, begunAt) {
      const now = clock();
      kept++;
      // How long it took until somebody left says nothing.
      if (begunAt !== null) inHand.over(begunAt, now, !socket.destroyed);
      const isFree = !isStopped && !socket.destroyed && !isUnheard(socket);
      if (isFree && inHand.count(now) >= enough && isWaitedFor()) {
        stopListening(socket);
        waiting.push({ socket, since: now });
        // Those whose turn it was may have nothing to say, and what is in hand may take long.
        lookingAgain ??= setInterval(nextTurns, lookMs, readAtLeast).unref();
      }
      makeRoom();
    },
    ended(begunAt, isWhole) {
      left++;
      if (begunAt !== null) inHand.over(begunAt, clock(), isWhole);
      makeRoom();
    },
    isLate: () => waitedMs() > patienceMs && inHand.count(clock()) > enough / 2 && isWaitedFor(),
    waitedMs,
    stop() {
      isStopped = true;
      nextTurns(0);
    },
  };
}

function ownBusyShare(): () => number {
  let before = performance.eventLoopUtilization();
  return () => {
    const now = performance.eventLoopUtilization();
    const { utilization } = performance.eventLoopUtilization(now, before);
    before = now;
    return utilization;
  };
}
