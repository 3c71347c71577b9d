import { type DestinationStream, type Logger, pino } from "pino";
import type { LogOutput } from "./log-output.ts";

/** Written out when this many characters have gathered, or this time has passed. */
const gatheredLength = 16_000;
const gatheredMs = 100;

/**
 * JSON lines for standard output. Fields are chosen where a line is written: no request, no key, no phone.
 * What has gathered is written out when the process ends, however it does short of being killed.
 */
export function createLog(level: string, output: LogOutput): Logger {
  return pino({ level, base: null, timestamp, serializers: { err: presentError } }, gathered(output));
}

/**
 * Lines go to the output by the hundred. It measures each text that it is given, which for single lines was a
 * twelfth of the service's time for a read.
 */
function gathered(output: LogOutput): DestinationStream & { flush(): void } {
  let lines = "";
  let timer: NodeJS.Timeout | undefined;

  const passOn = () => {
    if (lines === "") return;
    output.write(lines);
    lines = "";
  };

  return {
    write(line) {
      if (timer === undefined) {
        timer = setInterval(passOn, gatheredMs).unref();
        // Before the output's own listeners, which write out what it has, and close it.
        process.prependListener("beforeExit", passOn);
        process.prependListener("exit", passOn);
      }
      lines += line;
      if (lines.length >= gatheredLength) passOn();
    },
    flush: passOn,
  };
}

let second = Number.NaN;
let upToSecond = "";

/** `,"time":"2026-11-21T06:41:00.123Z"`: made anew once a second, since toISOString takes longer than the rest of a line. */
function timestamp(): string {
  const now = Date.now();
  const milliseconds = now % 1000;
  if (now - milliseconds !== second) {
    second = now - milliseconds;
    upToSecond = new Date(second).toISOString().slice(0, 20);
  }
  return `,"time":"${upToSecond}${String(milliseconds).padStart(3, "0")}Z"`;
}

/**
 * What is logged of an error: the database's carry the values of rows in their details, and may quote them in
 * their messages, so the details stay out and longer numbers are blotted out.
 */
function presentError(error: unknown): unknown {
  if (!(error instanceof Error)) return { message: blot(String(error)) };
  return {
    type: error.name,
    ...("code" in error ? { code: error.code } : {}),
    message: blot(error.message),
    stack: blot(error.stack ?? ""),
    ...(error.cause === undefined ? {} : { cause: presentError(error.cause) }),
    // Of several addresses none of which answered: it says nothing itself.
    ...(error instanceof AggregateError ? { errors: error.errors.map(presentError) } : {}),
  };
}

const blot = (text: string) => text.replace(/\d{7,}/g, "…").replace(/\bpp_[a-z]+_\w+/g, "pp_…");
