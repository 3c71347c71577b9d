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

export interface LargeBodyTurns {
  /** Resolves when the project's turn has come. Rejects with service_unavailable if too many of the project wait. */
  turnOf(projectId: string): Promise<void>;
}

export function createLargeBodyTurns(): LargeBodyTurns {
  /** What waits, by project, the project first whose last turn is the longest ago. */
  const queues = new Map<string, (() => void)[]>();

  function nextTurn(): void {
    for (const [projectId, queue] of queues) {
      queue.shift()?.();
      queues.delete(projectId);
      if (queue.length > 0) queues.set(projectId, queue);
      if (queues.size > 0) setImmediate(nextTurn);
      return;
    }
  }

  return {
    turnOf: (projectId) =>
      new Promise((resolve, reject) => {
        const queue = queues.get(projectId) ?? [];
        if (queue.length >= mostWaiting) {
          reject(new Failure("service_unavailable"));
          return;
        }
        if (queues.size === 0) setImmediate(nextTurn);
        queue.push(resolve);
        queues.set(projectId, queue);
      }),
  };
}
