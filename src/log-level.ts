import type { Logger } from "pino";

/** From the quietest on. */
const levels = ["silent", "fatal", "error", "warn", "info", "debug", "trace"];

/** Makes the log tell one level more; after the last one it is as it was set at the start. */
export function stepLogLevel(log: Logger, configured: string): void {
  const next = levels[levels.indexOf(log.level) + 1] ?? configured;
  // As a warning where either level lets one through; quieter ones tell it as what they do let through.
  const passes = Math.max(levels.indexOf(log.level), levels.indexOf(next)) >= levels.indexOf("warn");
  const said = passes ? "warn" : "fatal";
  const tell = () => log[said]({ logLevel: next }, "the log's level was changed");
  if (log.isLevelEnabled(said)) {
    tell();
    log.level = next;
  } else {
    log.level = next;
    tell();
  }
}
