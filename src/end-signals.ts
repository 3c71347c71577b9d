/** What tells the process to end. */

export const endSignals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/**
 * For as long as nothing has begun that would have to end first. A container's first process has only the handlers that it sets
 * itself: what comes before there is one would be lost.
 */
export function endAtOnce(): never {
  process.exit(0);
}
