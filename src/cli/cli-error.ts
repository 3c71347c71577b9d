/** How a command fails: one line for a person, one JSON object for a program, one exit code. */

import { escapeControls, safeJson } from "./terminal.ts";

/** 1: the service refused the call. 2: wrong usage. 3: the service cannot be reached, or there is no token to send. */
export type CliExitCode = 1 | 2 | 3;

export interface Violation {
  readonly field: string;
  readonly message: string;
}

export interface CliErrorDetails {
  readonly requestId?: string | null | undefined;
  readonly fields?: readonly Violation[];
  /** What the user can do about it. */
  readonly advice?: string;
  readonly cause?: unknown;
}

export class CliError extends Error {
  readonly exitCode: CliExitCode;
  /** The service's error code if it answered with an error; otherwise one of this command's own codes. */
  readonly code: string;
  readonly requestId: string | null;
  readonly fields: readonly Violation[];
  readonly advice: string | undefined;
  /** Maps a field of the request to the option that the user gave it with, if the two differ. */
  writtenAs: (field: string) => string | undefined = () => undefined;

  constructor(exitCode: CliExitCode, code: string, message: string, details: CliErrorDetails = {}) {
    super(message, { cause: details.cause });
    this.name = "CliError";
    this.exitCode = exitCode;
    this.code = code;
    this.requestId = details.requestId || null;
    this.fields = details.fields ?? [];
    this.advice = details.advice;
  }
}

export function wrongUsage(message: string): CliError {
  return new CliError(2, "wrong_usage", message);
}

export function unreachable(message: string, details: CliErrorDetails = {}): CliError {
  return new CliError(3, "service_unreachable", message, details);
}

/** Unwraps a part that every answer of the service has. An answer without it comes from something else, or another version. */
export function requirePart<T>(part: T | undefined, name: string): T {
  if (part === undefined) throw unreachable(`the service answered without ${name}`);
  return part;
}

/** Prints the failure to stderr and returns the exit code. */
export function report(thrown: unknown, json: boolean): number {
  const cliError = thrown instanceof CliError ? thrown : toCliError(thrown);
  process.stderr.write(`${json ? errorJson(cliError) : errorLine(cliError)}\n`);
  return cliError.exitCode;
}

export function violationsJson(violations: readonly Violation[]) {
  return violations.map(({ field, message }) => ({ field, message }));
}

export function errorJson({ code, message, requestId, fields, advice }: CliError): string {
  return safeJson({
    error: {
      code,
      message: advised(message, advice),
      request_id: requestId,
      fields: violationsJson(fields),
    },
  });
}

function errorLine(cliError: CliError): string {
  const { exitCode, code, message, requestId, fields, advice } = cliError;
  const wrong = fields.map(
    (violation) => `${cliError.writtenAs(violation.field) ?? violation.field}: ${violation.message}`,
  );
  const explanation = wrong.length > 0 ? wrong.join("; ") : message;
  const named = exitCode === 1 ? `${code}: ${explanation}` : advised(explanation, advice);
  return escapeControls(`phoneproof: ${named}${requestId === null ? "" : ` (${requestId})`}`);
}

function advised(message: string, advice: string | undefined): string {
  return advice === undefined ? message : `${message}; ${advice}`;
}

function toCliError(thrown: unknown): CliError {
  const thrownText = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
  return new CliError(1, "command_fault", `this command failed because of a bug: ${thrownText}`, {
    cause: thrown,
  });
}
