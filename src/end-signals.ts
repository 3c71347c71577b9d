/** The signals that end the process. */

export const endSignals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/**
 * The handler for as long as nothing has started that needs an orderly shutdown. PID 1 of a container has no default
 * signal handlers, only those it sets itself: without this one, an early signal would be lost.
 */
export function endAtOnce(): never {
  process.exit(0);
}
