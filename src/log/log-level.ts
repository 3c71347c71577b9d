import type { Logger } from "pino";

/** From the quietest to the most verbose. */
const levels = ["silent", "fatal", "error", "warn", "info", "debug", "trace"];

/** Makes the log one level more verbose; after the last level it returns to the configured one. */
export function stepLogLevel(log: Logger, configured: string): void {
  const next = levels[levels.indexOf(log.level) + 1] ?? configured;
  // Logged as a warning if the old or the new level lets warnings through, otherwise as `fatal`, which the quieter
  // levels let through.
  const passes = Math.max(levels.indexOf(log.level), levels.indexOf(next)) >= levels.indexOf("warn");
  const method = passes ? "warn" : "fatal";
  const logChange = () => log[method]({ logLevel: next }, "the log level was changed");
  if (log.isLevelEnabled(method)) {
    logChange();
    log.level = next;
  } else {
    log.level = next;
    logChange();
  }
}
