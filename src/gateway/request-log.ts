import type { FastifyReply, FastifyRequest } from "fastify";
import { type DestinationStream, type Logger, symbols } from "pino";
import { callerFields } from "../admission/caller-fields.ts";
import { refusalReason } from "../admission/refusal-reason.ts";
import type { Caller } from "../core/project.ts";
import type { Failure, FailureCode } from "../failures.ts";
import { sentStatus } from "./answered-request.ts";
import { createVerificationBody } from "./schemas.ts";

/**
 * Logs one line per request when it is over, whether it was answered or its client disconnected (`status` is then
 * null). The fields are listed here and nowhere else: a URL may hold a window's token, so the route's pattern stands
 * for it; a header may hold a key, so no header is logged.
 */
export function logRequest(
  log: Logger,
  request: FastifyRequest,
  reply: FastifyReply,
  startedAt: number,
): void {
  if (!log.isLevelEnabled("info")) return;
  const { id, method, routeOptions, failure } = request;
  const status = sentStatus(reply);
  const durationMs = Math.round((performance.now() - startedAt) * 1000) / 1000;
  const route = routeOptions.url === undefined ? "" : `,"route":${quoted(routeOptions.url)}`;
  const known = request.call?.caller ?? request.refusedCaller;
  const caller = known === undefined ? "" : knownCallerFields(known);
  const verificationId = request.call?.verificationId;
  const verification = verificationId === undefined ? "" : `,"verificationId":"${verificationId}"`;
  const code = failure === undefined ? "" : `,"code":"${failure.code}"${reasonFields(failure)}`;
  writeLine(
    log,
    `"requestId":"${id}","method":"${method}"${route},"status":${status},"durationMs":${durationMs}${caller}${verification}${code},"msg":"request"`,
  );
}

/**
 * Bypasses the logger's own serialisation, which took a twentieth of the service's time for a creation. All values are
 * either generated here or one of a few known words.
 */
function writeLine(log: Logger, fields: string): void {
  const { [symbols.streamSym]: stream, [symbols.timeSym]: time } = log as unknown as {
    [symbols.streamSym]: DestinationStream;
    [symbols.timeSym]: () => string;
  };
  stream.write(`{"level":${log.levels.values.info}${time()},${fields}}\n`);
}

/** Routes as JSON; there are only a handful. */
const quotedTexts = new Map<string, string>();

function quoted(text: string): string {
  const known = quotedTexts.get(text) ?? JSON.stringify(text);
  quotedTexts.set(text, known);
  return known;
}

/** The directory returns the same object for a caller until it hears of a change. */
const knownCallers = new WeakMap<Caller, string>();

function knownCallerFields(caller: Caller): string {
  const text = knownCallers.get(caller) ?? `,${JSON.stringify(callerFields(caller)).slice(1, -1)}`;
  knownCallers.set(caller, text);
  return text;
}

function reasonFields(failure: Failure): string {
  const reason = Object.entries(refusalReason(failure, (field) => bodyFields.has(field)));
  return reason.map(([name, value]) => `,"${name}":${JSON.stringify(value)}`).join("");
}

const bodyFields: ReadonlySet<string> = new Set(Object.keys(createVerificationBody.properties));

/** Notes a failure if it is an internal error: a refusal is no fault. */
export type NoteFault = (request: FastifyRequest, reply: FastifyReply, failure: Failure) => void;

/**
 * Logged at once and in its own line: the request's line waits until the response has left. The client never sees the
 * stack. `refusedLate` is called if the request is reported as answered with something else: its response was sent or has
 * begun, or its client has left.
 */
export function noteFaults(log: Logger, refusedLate: (code: FailureCode) => void): NoteFault {
  return (request, reply, failure) => {
    if (failure.code !== "internal_error") return;
    log.error({ requestId: request.id, err: failure.cause ?? failure }, "internal error");
    if (reply.sent || reply.raw.closed) refusedLate(failure.code);
  };
}
