import { type DestinationStream, type Logger, pino } from "pino";
import { Failure } from "../failures.ts";
import type { LogOutput } from "./log-output.ts";
import { countRepetitions, type ErrorLine } from "./repeated-lines.ts";

/** Buffered lines are passed on at this many characters, or after this time. */
const gatheredLength = 16_000;
const gatheredMs = 100;

/**
 * Writes JSON lines to `output`. Fields are chosen where a line is logged: no request, no key, no phone. Buffered lines
 * are written when the process ends, by whatever means short of SIGKILL. Equal lines about an error are written once in ten
 * seconds, unless they are a request's.
 */
export function createLog(level: string, output: LogOutput): Logger {
  const counting = countRepetitions();
  return pino(
    {
      level,
      base: null,
      timestamp,
      serializers: { err: presentError },
      hooks: {
        logMethod(values, method, number) {
          const [line, message] = values as [unknown, string];
          if (number >= 40 && isAboutError(line))
            counting(line, message, (again) => method.call(this, again, message));
          else method.apply(this, values);
        },
      },
    },
    gathered(output),
  );
}

const isAboutError = (line: unknown): line is ErrorLine =>
  typeof line === "object" && line !== null && "err" in line;

/**
 * Passes lines to the output by the hundred. The output measures each text it is given; for single lines, that took a
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
        // After the output's own exit listener: from then on, what it is given is written at once.
        process.on("exit", passOn);
      }
      lines += line;
      if (lines.length >= gatheredLength) passOn();
    },
    flush: passOn,
  };
}

let second = Number.NaN;
let upToSecond = "";

/** `,"time":"2026-11-21T06:41:00.123Z"`: formatted once per second, since toISOString takes longer than the rest of a line. */
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
 * What is logged of an error. Database errors carry row values in their details, and may quote them in their messages:
 * so details are omitted, and longer numbers and credentials are masked.
 */
function presentError(error: unknown): unknown {
  if (!(error instanceof Error)) return { message: redact(String(error)) };
  // Its own message is for callers of the API: what happened is in its cause.
  if (error instanceof Failure && error.cause !== undefined) return presentError(error.cause);
  return {
    type: error.name,
    ...("code" in error ? { code: error.code } : {}),
    message: redact(error.message),
    stack: redact(error.stack ?? ""),
    ...(error.cause === undefined ? {} : { cause: presentError(error.cause) }),
    // Thrown if none of several addresses answered; its own message is empty.
    ...(error instanceof AggregateError ? { errors: error.errors.map(presentError) } : {}),
  };
}

const redact = (text: string) => text.replace(/\d{7,}/g, "…").replace(/\bpp_[a-z]+_\w+/g, "pp_…");
