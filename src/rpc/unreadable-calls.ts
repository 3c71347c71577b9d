/** Unary calls that were admitted but whose message could not be read: Connect refuses those before the interceptor. */

import { Code, ConnectError } from "@connectrpc/connect";
import {
  createAsyncIterable,
  type UniversalHandler,
  type UniversalServerRequest,
  type UniversalServerResponse,
} from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  codeToString,
  errorFromJsonBytes,
  errorToJsonBytes,
} from "@connectrpc/connect/protocol-connect";
import { findTrailerError, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import type { Span } from "../core/tracing.ts";
import { Failure } from "../failures.ts";
import { methodName, noteAnswer, type RpcObserver } from "./answered-call.ts";
import { type AdmittedCall, admittedKey, spanKey, streamKey } from "./call-context.ts";
import { around } from "./handlers.ts";
import { toMessageFailure } from "./message-errors.ts";
import { connectError, metadataOf } from "./refusal.ts";
import { isOver } from "./stream-scheduling.ts";
import { endSpan } from "./tracing-interceptor.ts";

/**
 * Charges a call with an unreadable message as the gateway charges one with an unreadable body, and answers with the
 * catalogue's error. Where gRPC prescribes an error of its own (no message, more than one, an unknown compression), that
 * error stays.
 */
export function chargeUnreadableCalls(
  handler: UniversalHandler,
  parts: { readonly admission: Admission; readonly log: Logger; readonly observer: RpcObserver },
): UniversalHandler {
  const { admission, log, observer } = parts;
  const { method } = handler;

  /** Logs, counts and traces such a call. `failure`: if it was refused with one of the catalogue. */
  function note(
    { call, checkpoint }: AdmittedCall,
    span: Span | undefined,
    error: ConnectError,
    failure?: Failure,
  ): void {
    observer.begun(methodName(method), false);
    const code = failure?.code ?? codeToString(error.code);
    noteAnswer({ log, observer }, { ...call, method, code, startedAt: checkpoint.at }, failure);
    if (span !== undefined) endSpan(span, call, error);
  }

  async function settle(
    response: UniversalServerResponse,
    unread: AdmittedCall,
    request: UniversalServerRequest,
  ) {
    const { call, rateLimit, checkpoint } = unread;
    const span = request.contextValues?.get(spanKey);
    const { error, again } = await refusalIn(response);
    // The call's deadline passed before its message was complete: it is not charged, like that of a client that left.
    if (error?.code === Code.DeadlineExceeded) {
      note(unread, span, error);
      return response;
    }
    const messageFailure = error && toMessageFailure(error);
    const failure = await admission.chargeFailure(
      call,
      messageFailure ?? new Failure("malformed_request"),
      () => {
        if (admission.isCurrent(checkpoint)) return undefined;
        const authorization = request.header.get("authorization") ?? undefined;
        return Promise.try(() => admission.authenticate(authorization, null)).then(() => {});
      },
    );
    const refusal = connectError(failure, call.requestId, call, rateLimit);
    const isConnectsOwn = messageFailure === undefined && failure.code === "malformed_request";
    if (isConnectsOwn && error) note(unread, span, error);
    else note(unread, span, refusal, failure);
    if (error !== undefined && !isConnectsOwn) return again(refusal);
    for (const [name, value] of metadataOf(call.requestId, call, rateLimit)) {
      (response.trailer ?? response.header)?.set(name, value);
    }
    return response;
  }

  return around(handler, (request) =>
    handler(request).then((response) => {
      const unread = request.contextValues?.get(admittedKey);
      if (unread === undefined) return response;
      const stream = request.contextValues?.get(streamKey);
      if (stream === undefined || !isOver(stream)) return settle(response, unread, request);
      // A client that left before its message was complete gets no response, and is not charged for one.
      note(unread, request.contextValues?.get(spanKey), hasLeft);
      return response;
    }),
  );
}

const hasLeft = new ConnectError("the client has left", Code.Canceled);

interface Refusal {
  /** The error that Connect answers with. */
  readonly error: ConnectError | undefined;
  /** The same response with another error. */
  readonly again: (refusal: ConnectError) => UniversalServerResponse;
}

/**
 * Reads the error of a response. gRPC has it in the trailers. Connect's own protocol has no trailers: it has the error
 * in the body, and the metadata in the headers.
 */
export async function refusalIn(response: UniversalServerResponse): Promise<Refusal> {
  const { trailer, body } = response;
  if (trailer !== undefined) {
    return {
      error: findTrailerError(trailer),
      again: (refusal) => ({ ...response, trailer: setTrailerStatus(new Headers(), refusal) }),
    };
  }
  const bytes = Buffer.concat(await Array.fromAsync(body ?? []));
  response.body = createAsyncIterable([bytes]);
  return {
    // An unknown method or media type is refused by the HTTP status alone.
    error:
      bytes.length === 0
        ? undefined
        : errorFromJsonBytes(bytes, undefined, new ConnectError("unreadable refusal", Code.Unknown)),
    again: (refusal) => {
      const json = errorToJsonBytes(refusal, undefined);
      const header = new Headers(refusal.metadata);
      header.set("content-type", "application/json");
      header.set("content-length", String(json.byteLength));
      return { status: codeToHttpStatus(refusal.code), header, body: createAsyncIterable([json]) };
    },
  };
}
