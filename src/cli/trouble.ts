/** How a command fails: one line for a person, one JSON object for a program, one exit code. */

import { escapeControls, safeJson } from "./terminal.ts";

/** 1: the service refused the call. 2: wrong usage. 3: the service cannot be reached, or there is no token to send. */
export type TroubleExitCode = 1 | 2 | 3;

export interface Violation {
  readonly field: string;
  readonly message: string;
}

interface TroubleDetails {
  readonly requestId?: string | undefined;
  readonly fields?: readonly Violation[];
  /** What the user can do about it. */
  readonly advice?: string;
  readonly cause?: unknown;
}

export class Trouble extends Error {
  readonly exitCode: TroubleExitCode;
  /** The service's error code if it answered with an error; otherwise one of this command's own codes. */
  readonly code: string;
  readonly requestId: string | null;
  readonly fields: readonly Violation[];
  readonly advice: string | undefined;
  /** Maps a field of the request to the option that the user gave it with, if the two differ. */
  writtenAs: (field: string) => string | undefined = () => undefined;

  constructor(exitCode: TroubleExitCode, code: string, message: string, details: TroubleDetails = {}) {
    super(message, { cause: details.cause });
    this.name = "Trouble";
    this.exitCode = exitCode;
    this.code = code;
    this.requestId = details.requestId || null;
    this.fields = details.fields ?? [];
    this.advice = details.advice;
  }
}

export function wrongUsage(message: string): Trouble {
  return new Trouble(2, "wrong_usage", message);
}

export function unreachable(message: string, details: TroubleDetails = {}): Trouble {
  return new Trouble(3, "service_unreachable", message, details);
}

/** Unwraps a part that every answer of the service has. An answer without it comes from something else, or another version. */
export function present<T>(part: T | undefined, name: string): T {
  if (part === undefined) throw unreachable(`the service answered without ${name}`);
  return part;
}

/** Prints the failure to stderr and returns the exit code. */
export function report(thrown: unknown, json: boolean): number {
  const trouble = thrown instanceof Trouble ? thrown : asTrouble(thrown);
  process.stderr.write(`${json ? troubleJson(trouble) : troubleLine(trouble)}\n`);
  return trouble.exitCode;
}

export function violationsJson(violations: readonly Violation[]) {
  return violations.map(({ field, message }) => ({ field, message }));
}

export function troubleJson({ code, message, requestId, fields, advice }: Trouble): string {
  return safeJson({
    error: {
      code,
      message: advised(message, advice),
      request_id: requestId,
      fields: violationsJson(fields),
    },
  });
}

function troubleLine(trouble: Trouble): string {
  const { exitCode, code, message, requestId, fields, advice } = trouble;
  const wrong = fields.map(
    (violation) => `${trouble.writtenAs(violation.field) ?? violation.field}: ${violation.message}`,
  );
  const said = wrong.length > 0 ? wrong.join("; ") : message;
  const named = exitCode === 1 ? `${code}: ${said}` : advised(said, advice);
  return escapeControls(`phoneproof: ${named}${requestId === null ? "" : ` (${requestId})`}`);
}

function advised(message: string, advice: string | undefined): string {
  return advice === undefined ? message : `${message}; ${advice}`;
}

function asTrouble(thrown: unknown): Trouble {
  const said = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
  return new Trouble(1, "command_fault", `this command failed by a fault of its own: ${said}`, {
    cause: thrown,
  });
}
