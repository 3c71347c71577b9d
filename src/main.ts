/** The service as a process: starts, and runs until a signal ends it. */

import closeWithGrace from "close-with-grace";
import type { Logger } from "pino";
import { type Config, parseConfig } from "./config.ts";
import { endAtOnce, endSignals } from "./end-signals.ts";
import { createLog } from "./log/log.ts";
import { stepLogLevel } from "./log/log-level.ts";
import { type LogOutput, openLogOutput } from "./log/log-output.ts";
import { type RunningService, startService } from "./service.ts";
import { causeOf, oneLine, SettingError } from "./setting-errors.ts";

/**
 * How long a clean shutdown may take before it is forced. The service promises 15 s; for a process that runs beside
 * others, that includes the default DRAIN_SECONDS of 3, in which it still answers.
 */
export const closeTimeoutMs = { alone: 14_000, amongOthers: 11_000 };

export async function main(): Promise<void> {
  let log: Logger;
  let output: LogOutput;
  let config: Config;
  try {
    refuseArguments(process.argv.slice(2));
    config = parseConfig(process.env);
    output = openLogOutput();
    log = createLog(config.logLevel, output);
  } catch (error) {
    return fail(error);
  }
  process.on("SIGUSR2", () => stepLogLevel(log, config.logLevel));
  let service: Promise<RunningService> | undefined;
  let running: RunningService | undefined;
  const grace = closeWithGrace(
    {
      delay: config.databaseUrl === null ? closeTimeoutMs.alone : closeTimeoutMs.amongOthers,
      logger: false,
      skip: [...endSignals, "SIGUSR2"],
    },
    async ({ err }) => {
      if (err) log.fatal({ err }, "the process ends because of an unexpected error");
      await (await service?.catch(() => undefined))?.close();
      log.info("phoneproof has stopped");
      log.flush();
      await output.end();
    },
  );
  // Ctrl-C in a terminal reaches the process twice, once through npm, and an impatient person presses it again: the
  // second signal must not end the process before its Postgres.
  let closing = false;
  const interrupted = new AbortController();
  const startEnds = new AbortController();
  for (const signal of endSignals) {
    process.on(signal, async () => {
      // SIGINT comes from a person, who need not wait; SIGTERM and SIGHUP come from orchestrators, which route calls
      // elsewhere first.
      if (signal === "SIGINT") interrupted.abort();
      if (closing) return;
      closing = true;
      log.info({ signal }, "phoneproof is stopping");
      startEnds.abort();
      await running?.drain(interrupted.signal);
      await grace.close();
    });
    // Removed after the new handler is set: without any handler, a signal in between would be dropped.
    process.off(signal, endAtOnce);
  }
  service = startService(config, log, { output, signal: startEnds.signal });
  running = await service.catch((error: unknown) => {
    // A start that was ended by a signal reports no error; the handler that set `closing` ends the process.
    if (!startEnds.signal.aborted) fail(error);
    return undefined;
  });
}

/** An ignored argument would be a setting that somebody believes in. */
function refuseArguments(given: readonly string[]): void {
  if (given.length === 0) return;
  throw new SettingError(
    `it takes no arguments (${given.join(" ")}); settings are environment variables, see docs/settings.md`,
  );
}

/** Prints one line without a stack trace, about what the person who started the service can fix. */
function fail(error: unknown): never {
  const text = error instanceof SettingError ? error.message : oneLine(causeOf(error).message);
  process.stderr.write(`phoneproof cannot start: ${text}\n`);
  process.exit(1);
}
