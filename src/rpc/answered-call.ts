/** Reports a finished call: its log line and its metrics. */

import type { DescMethod } from "@bufbuild/protobuf";
import type { Logger } from "pino";
import { callerFields } from "../admission/caller-fields.ts";
import { refusalReason } from "../admission/refusal-reason.ts";
import type { AnsweredRpc } from "../core/answered-call.ts";
import type { Call } from "../core/call.ts";
import type { Caller } from "../core/project.ts";
import type { Failure, FailureCode } from "../failures.ts";

/** `package.Service/Method`, as it is logged, counted and traced. */
export const methodName = ({ parent, name }: DescMethod): string => `${parent.typeName}/${name}`;

/** Receives calls for the metrics. */
export interface RpcObserver {
  begun(method: string, streaming: boolean): void;
  /** Once for each call that has begun. */
  answered(call: AnsweredRpc): void;
  /** A call that was or will be reported as answered met this failure besides. */
  refusedLate(code: FailureCode): void;
}

/** Logs a finished call and reports it to the observer. */
export function noteAnswer(
  { log, observer }: { readonly log: Logger; readonly observer: RpcObserver },
  call: Pick<Call, "requestId" | "address"> & {
    readonly verificationId?: string | undefined;
    readonly projectId?: string | undefined;
    readonly method: DescMethod;
    readonly code: string;
    /** By performance.now(). */
    readonly startedAt: number;
    readonly caller: Caller | undefined;
  },
  failure?: Failure,
): void {
  const { requestId, code, caller, projectId } = call;
  const method = methodName(call.method);
  const elapsedMs = performance.now() - call.startedAt;
  const durationMs = Math.round(elapsedMs * 10) / 10;
  const line = {
    ...{ requestId, method, code, durationMs, ...(caller && callerFields(caller)) },
    // Who read whose phones, and from where. (A merchant's project is the one of its key, whatever the call names.)
    ...(caller?.kind === "service" && {
      address: call.address,
      ...(projectId !== undefined && { projectId }),
    }),
    ...(call.verificationId === undefined ? {} : { verificationId: call.verificationId }),
    ...refusalReason(failure, (field) => call.method.input.fields.some(({ name }) => name === field)),
  };
  // A refusal that an internal fault caused is logged with that fault.
  if (failure?.code === "internal_error") log.error({ ...line, err: failure.cause ?? failure }, "rpc failed");
  else log.info(line, "rpc");
  observer.answered({
    method,
    streaming: call.method.methodKind !== "unary",
    code,
    failureCode: failure?.code,
    seconds: elapsedMs / 1_000,
  });
}

/** A call that failed by an internal fault outside of its answer, such as while that was written. */
export interface FaultyCall {
  /** `package.Service/Method` of an existing method. */
  readonly method: string;
  readonly requestId: string;
  readonly failure: Failure;
}

/** Logs and counts a fault of a call of which something else is reported: it is not another call. */
export function noteFault(
  { log, observer }: { readonly log: Logger; readonly observer: RpcObserver },
  { method, requestId, failure }: FaultyCall,
): void {
  const { code } = failure;
  log.error({ requestId, method, code, err: failure.cause ?? failure }, "rpc failed");
  observer.refusedLate(code);
}
