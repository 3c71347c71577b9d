/**
 * Makes connections wait their turn under overload. Each young collection copies the requests that wait in this
 * process, several times if they wait longer; requests that nobody has read yet wait in the kernel at no cost. So if
 * enough requests are in progress, a connection that was answered is read again only when its turn comes, behind those
 * answered before it. This applies only if the process has no CPU time left: one that only waits for its database can
 * take more.
 */

import type { Socket } from "node:net";
import { performance } from "node:perf_hooks";
import { runningTime } from "../running-time.ts";
import { trackInFlightRequests } from "./in-flight-requests.ts";
import { isPaused, pauseReading, resumeReading } from "./paused-sockets.ts";

/**
 * Requests in progress that keep this process and its database busy: more would only wait. (With 256 and with 64 fewer
 * were served, see docs/performance.md.)
 */
export const maxInFlight = 128;

/**
 * If connections wait longer than this for their turn, calls are refused with Retry-After. A refusal takes as long as serving
 * the call, so with two seconds a tenth fewer were served.
 */
const lateAfterMs = 3_000;

/**
 * Some requests that keep a process busy never ask `isLate`: of the connections that have waited longer than this, some
 * are read at each check, however many requests are in progress.
 */
const longestMs = 4_000;
const readAtLeast = 16;

/** How often it is checked which connections may be read, and how busy the process is. */
const checkEveryMs = 100;

/** Event loop utilization above which this process is what requests wait for. */
const busyShare = 0.9;

interface Waiting {
  readonly socket: Socket;
  /** In the clock's milliseconds. */
  readonly since: number;
  readonly wasRefused: boolean;
}

export interface ConnectionTurns {
  /** Reports a request in progress since `at`, in the clock's milliseconds. */
  begun(at: number): void;
  /** Reports that a request is over and its connection free for the next. `begunAt` is null if it was never in progress. */
  answered(socket: Socket, begunAt: number | null): void;
  /** Reports that a request is over and its connection closes. `isWhole`: its response was sent completely. */
  ended(begunAt: number | null, isWhole: boolean): void;
  /** Reads a connection that was refused, and has not been read since, when its turn comes. */
  readInTurn(socket: Socket): void;
  /** How many connections that were refused wait for their turn. */
  refusedWaiting(): number;
  /** Whether a call should be refused with Retry-After: turns take too long, and there is enough work without it. */
  isLate(): boolean;
  /** How long the connection that has waited longest has waited, in milliseconds. */
  waitedMs(): number;
  /** From now on every connection is read. */
  stop(): void;
}

/** `busyShareOf` returns the share of time in which the process was busy since the previous call. */
export function createConnectionTurns({
  clock = runningTime.now,
  busyShareOf = ownBusyShare(),
}: {
  readonly clock?: () => number;
  readonly busyShareOf?: () => number;
} = {}): ConnectionTurns {
  const inFlight = trackInFlightRequests();
  /** A queue in the order of turns, from index `first` on. */
  let waiting: Waiting[] = [];
  let first = 0;
  let refusedWaiting = 0;
  let isDue = false;
  let isStopped = false;
  let isBusy = false;
  let areMostFirst = false;
  /** Connections that have had a request. */
  const known = new WeakSet<Socket>();
  /** Requests finished since the last check: those that were their connection's first or closed it, and further ones. */
  let firsts = 0;
  let furthers = 0;
  let checkedAt = Number.NEGATIVE_INFINITY;
  let queueTimer: NodeJS.Timeout | undefined;

  /**
   * Runs once for all requests that finish together: connections for which there is room are read in the event loop's
   * next round.
   */
  function makeRoom(): void {
    if (first === waiting.length || isDue) return;
    isDue = true;
    setImmediate(nextTurns, 0);
  }

  /** Checks how busy the process is, over the time since the last check, which was a tenth of a second ago at least. */
  function checkLoad(): void {
    const now = clock();
    if (now - checkedAt < checkEveryMs) return;
    checkedAt = now;
    isBusy = busyShareOf() > busyShare;
    areMostFirst = firsts > furthers;
    firsts = 0;
    furthers = 0;
  }

  /** Whether requests wait for this process. */
  function isWaitedFor(): boolean {
    checkLoad();
    return isBusy;
  }

  /**
   * Whether a connection that was answered waits for its turn. Requests on connections of their own wait for none: if
   * those are the majority, holding back the others would only give them more time. Most clients do not announce that
   * they close, and of a connection that is not read it is not even noticed: so what counts is whether connections get a
   * further request.
   */
  function areTurnsKept(): boolean {
    return isWaitedFor() && !areMostFirst;
  }

  /**
   * The connection whose turn is next. Skips those closed here meanwhile; that a client has left is noticed only when
   * it is read.
   */
  function next(): Waiting | undefined {
    while (waiting[first]?.socket.destroyed) shift();
    return waiting[first];
  }

  function shift(): Socket {
    const { socket, wasRefused } = waiting[first++] as Waiting;
    if (wasRefused) refusedWaiting--;
    return socket;
  }

  function waitedMs(): number {
    const longest = next();
    return longest === undefined ? 0 : clock() - longest.since;
  }

  /**
   * How many of the connections that wait may be read in this round of the event loop. First requests come whatever is in
   * flight: those who wait must get their share beside them.
   */
  function roomNow(): number {
    if (!isWaitedFor()) return maxInFlight;
    const room = maxInFlight - inFlight.count(clock());
    return areMostFirst ? Math.max(readAtLeast, room) : room;
  }

  /** Reads at least `atLeast` of the connections that have waited too long, even if there is no room. */
  function nextTurns(atLeast: number): void {
    isDue = false;
    const room = isStopped ? Number.POSITIVE_INFINITY : roomNow();
    for (let taken = 0; next() !== undefined; taken++) {
      if (taken >= room && (taken >= atLeast || waitedMs() <= longestMs)) break;
      resumeReading(shift());
    }
    if (first === waiting.length) {
      clearInterval(queueTimer);
      queueTimer = undefined;
    }
    if (2 * first >= waiting.length) {
      waiting = waiting.slice(first);
      first = 0;
    }
    // If the process has time for all of them, the others follow as soon as these were read.
    if (!isWaitedFor()) makeRoom();
  }

  /** Without the first condition, some connections would be read again and again, while others wait. */
  const mustWait = (now: number): boolean =>
    (next() !== undefined || inFlight.count(now) >= maxInFlight) && areTurnsKept();

  function queue(next: Waiting): void {
    pauseReading(next.socket);
    waiting.push(next);
    if (next.wasRefused) refusedWaiting++;
    // Connections whose turn it was may send nothing, and requests in progress may take long: without a timer the queue might
    // stall.
    queueTimer ??= setInterval(nextTurns, checkEveryMs, readAtLeast).unref();
  }

  return {
    begun: inFlight.begun,
    answered(socket, begunAt) {
      const now = clock();
      if (known.has(socket)) furthers++;
      else firsts++;
      known.add(socket);
      // If the client left early, the duration says nothing.
      if (begunAt !== null) inFlight.over(begunAt, now, !socket.destroyed);
      const isFree = !isStopped && !socket.destroyed && !isPaused(socket);
      if (isFree && mustWait(now)) queue({ socket, since: now, wasRefused: false });
      makeRoom();
    },
    readInTurn(socket) {
      queue({ socket, since: clock(), wasRefused: true });
      makeRoom();
    },
    refusedWaiting: () => refusedWaiting,
    ended(begunAt, isWhole) {
      firsts++;
      if (begunAt !== null) inFlight.over(begunAt, clock(), isWhole);
      makeRoom();
    },
    isLate: () => waitedMs() > lateAfterMs && inFlight.count(clock()) > maxInFlight / 2 && areTurnsKept(),
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
