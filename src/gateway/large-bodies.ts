/**
 * Large bodies are handled one at a time, each in a turn of the event loop of its own, and projects take turns. A body has room
 * for eight thousand unknown fields, each of which is named in the answer: that takes ten milliseconds, and without turns all
 * other calls would wait until all of those that have arrived are done, for a second if one project sends fifty at once.
 */

import { Failure } from "../failures.ts";

/** Larger than any usual body. Up to this size, one takes half a millisecond at most. */
export const largeBodyBytes = 4_096;

/** How many of a project may wait: they stay in memory, and take seconds. */
const mostWaiting = 256;

/**
 * However many projects wait, none waits for longer: its client gives up, and a process that is stopping would cut it off without
 * an answer. As long as a creation may wait for the database.
 */
const longestMs = 4_000;

interface Waiting {
  /** By the clock. */
  readonly since: number;
  readonly hasLeft: () => boolean;
  readonly begin: () => void;
  readonly refuse: (failure: Failure) => void;
}

export interface LargeBodyTurns {
  /**
   * Resolves when the project's turn has come. Rejects with service_unavailable if too many of the project wait, or if the turn
   * comes too late. Never settles if the client has left.
   */
  turnOf(projectId: string, hasLeft: () => boolean): Promise<void>;
}

export function createLargeBodyTurns(clock: () => number = () => performance.now()): LargeBodyTurns {
  /** What waits, by project, the project first whose last turn is the longest ago. */
  const queues = new Map<string, Waiting[]>();

  function nextTurn(): void {
    for (const [projectId, queue] of queues) {
      beginOne(queue);
      queues.delete(projectId);
      if (queue.length > 0) queues.set(projectId, queue);
      if (queues.size > 0) setImmediate(nextTurn);
      return;
    }
  }

  /** Begins the first that still has somebody waiting for it, and not for too long. A refusal takes little time, so it takes no turn. */
  function beginOne(queue: Waiting[]): void {
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      if (next.hasLeft()) continue;
      if (clock() - next.since <= longestMs) {
        next.begin();
        return;
      }
      next.refuse(new Failure("service_unavailable"));
    }
  }

  return {
    turnOf: (projectId, hasLeft) =>
      new Promise((begin, refuse) => {
        let queue = queues.get(projectId) ?? [];
        if (queue.length >= mostWaiting) queue = queue.filter((other) => !other.hasLeft());
        if (queue.length >= mostWaiting) {
          refuse(new Failure("service_unavailable"));
          return;
        }
        if (queues.size === 0) setImmediate(nextTurn);
        queue.push({ since: clock(), hasLeft, begin, refuse });
        queues.set(projectId, queue);
      }),
  };
}
