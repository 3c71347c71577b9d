import type { Logger } from "pino";

/** From the quietest on. */
const levels = ["silent", "fatal", "error", "warn", "info", "debug", "trace"];

/** Makes the log tell one level more; after the last one it is as it was set at the start. */
export function stepLogLevel(log: Logger, configured: string): void {
  const next = levels[levels.indexOf(log.level) + 1] ?? configured;
  log.level = next;
  log.warn({ logLevel: next }, "the log's level was changed");
}
