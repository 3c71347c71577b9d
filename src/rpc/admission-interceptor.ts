import { create, type DescMethod } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type Interceptor,
  type StreamRequest,
  type StreamResponse,
  type UnaryResponse,
} from "@connectrpc/connect";
import { codeToString } from "@connectrpc/connect/protocol-connect";
import type { Logger } from "pino";
import type { Admission, RateLimitBucket } from "../admission/admission.ts";
import { requireScope } from "../core/access.ts";
import type { Call } from "../core/call.ts";
import { encodeId, newRequestId } from "../core/ids.ts";
import type { Caller, ServiceTokenScope } from "../core/project.ts";
import { asFailure, Failure, type RateLimitState } from "../failures.ts";
import { ErrorDetailSchema } from "../gen/proto/phoneproof/v1/error_pb.ts";
import { InboundMessageService } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { StatisticsService } from "../gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationService } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { addressKey, callKey } from "./call-context.ts";
import type { OpenStreams } from "./open-streams.ts";
import { asUnread } from "./unread.ts";

const buckets: Readonly<Record<string, RateLimitBucket>> = {
  [VerificationService.method.createVerification.name]: "create",
  [VerificationService.method.getVerification.name]: "read",
  [VerificationService.method.cancelVerification.name]: "cancel",
};

/** What a method asks of its caller; whatever is not named here is administration. */
export function neededScope({ parent, name }: DescMethod): ServiceTokenScope {
  if (parent.typeName === InboundMessageService.typeName) return "ingest";
  if (parent.typeName === StatisticsService.typeName) return "read";
  if (parent.typeName !== VerificationService.typeName) return "admin";
  const writes = buckets[name] === "create" || buckets[name] === "cancel";
  return writes ? "write" : "read";
}

const codes: Record<Failure["grpc"], Code> = {
  invalid_argument: Code.InvalidArgument,
  unauthenticated: Code.Unauthenticated,
  permission_denied: Code.PermissionDenied,
  not_found: Code.NotFound,
  already_exists: Code.AlreadyExists,
  failed_precondition: Code.FailedPrecondition,
  resource_exhausted: Code.ResourceExhausted,
  unavailable: Code.Unavailable,
  internal: Code.Internal,
};

/**
 * So long a stream's credential holds without another look, where no change is heard of. (A look at it for each message
 * was a tenth of their time.)
 */
const trustedMs = 100;

/** Told of calls, for those who count them. */
export interface RpcObserver {
  begun(method: string, streaming: boolean): void;
  /** Once for each that has begun. `code` is the catalogue's, gRPC's own, or ok. */
  answered(call: {
    readonly method: string;
    readonly streaming: boolean;
    readonly code: string;
    readonly charged: boolean;
    readonly seconds: number;
  }): void;
}

/**
 * Authentication, limits, usage, error translation and the request's log line, around every service of this
 * package: the same admission, in the same order, as the gateway's.
 */
export function admissionInterceptor(parts: {
  readonly admission: Admission;
  readonly openStreams: OpenStreams;
  readonly log: Logger;
  readonly observer: RpcObserver;
}): Interceptor {
  const { admission, openStreams, log, observer } = parts;

  return (next) => async (request) => {
    const startedAt = performance.now();
    const requestId = newRequestId();
    const method = `${request.service.typeName}/${request.method.name}`;
    const bucket = buckets[request.method.name];
    const address = request.contextValues.get(addressKey);
    let call: Call | undefined;
    let rateLimit: RateLimitState | undefined;

    let authenticatedAt = startedAt;
    let revision = admission.revision();
    let finished = false;
    let leave = () => {};
    const finish = (code: string, failure?: Failure) => {
      if (finished) return;
      finished = true;
      leave();
      logCall(
        log,
        lineOf({ requestId, method: request.method, code, startedAt, caller: call?.caller }),
        failure,
      );
      observer.answered({
        method,
        streaming: request.stream,
        code,
        charged: call?.usage !== undefined,
        seconds: (performance.now() - startedAt) / 1_000,
      });
    };
    observer.begun(method, request.stream);
    const refuse = async (thrown: unknown): Promise<ConnectError> => {
      const refusal = refusalOf(thrown, request.signal);
      // A call that was cancelled or came late keeps gRPC's own code.
      if (refusal instanceof ConnectError) {
        finish(codeToString(refusal.code));
        return refusal;
      }
      const failure = call ? await admission.settle(call, refusal) : refusal;
      finish(failure.code, failure);
      return connectError(failure, requestId, call, rateLimit);
    };

    const authenticate = () =>
      admission.authenticate(request.header.get("authorization") ?? undefined, address);

    try {
      if (bucket !== undefined && admission.isOverloaded(bucket)) throw new Failure("service_unavailable");
      const caller = await authenticate();
      call = { requestId, address, caller, usage: undefined, violations: [] };
      request.contextValues.set(callKey, call);
      requireScope(caller, neededScope(request.method));
      rateLimit = await admission.takeAllowance(caller, bucket ?? "read");
      const admitted = request.stream ? opened(request, call) : request;
      const response = await untilAborted(next(admitted), request.signal);
      for (const [name, value] of metadataOf(requestId, call, rateLimit)) response.header.set(name, value);
      if (response.stream) return { ...response, message: translated(response, call) };
      finish("ok");
      return response;
    } catch (thrown) {
      throw await refuse(thrown);
    }

    /** Ends when its credential does, whether or not anything moves on it. */
    function opened(stream: StreamRequest, open: Call): StreamRequest {
      const ended = new AbortController();
      leave = openStreams.add({
        caller: open.caller,
        authenticate: () => authenticateAgain(open),
        end: (failure) => ended.abort(failure),
      });
      // However it ends, also where nobody reads what it has to say.
      request.signal.addEventListener("abort", leave, { once: true });
      const signal = AbortSignal.any([stream.signal, ended.signal]);
      return { ...stream, signal, message: authenticated(stream.message, open) };
    }

    /** A stream may stay open for days: its messages are let through as calls of their own would be. */
    function authenticated<Message>(messages: AsyncIterable<Message>, open: Call): AsyncIterable<Message> {
      return checked(messages, () => {
        const isKnown = admission.revision() === revision && performance.now() - authenticatedAt <= trustedMs;
        return isKnown ? undefined : authenticateAgain(open);
      });
    }

    async function authenticateAgain(open: Call): Promise<void> {
      const asked = admission.revision();
      open.caller = await authenticate();
      // Not before: what comes amid the look would count as known.
      revision = asked;
      authenticatedAt = performance.now();
    }

    async function* translated(response: StreamResponse, charged: Call) {
      try {
        yield* authenticated(response.message, charged);
        for (const [name, value] of metadataOf(requestId, charged, undefined))
          response.trailer.set(name, value);
        finish("ok");
      } catch (thrown) {
        throw await refuse(thrown);
      } finally {
        // The client left before the end: nothing was thrown, the stream is simply not read any further.
        finish("canceled");
      }
    }
  };
}

function refusalOf(thrown: unknown, { reason }: AbortSignal): Failure | ConnectError {
  const hasLeft = reason !== undefined && thrown === reason && !(reason instanceof Failure);
  if (hasLeft) return ConnectError.from(thrown, Code.Canceled);
  return thrown instanceof ConnectError ? (asUnread(thrown) ?? thrown) : asFailure(thrown);
}

/**
 * The same messages, each once `check` has let it through: at once where that has nothing to wait for, since a generator would
 * cost a message four promises. Where it throws, the messages end with that.
 */
function checked<Message>(
  messages: AsyncIterable<Message>,
  check: () => Promise<void> | undefined,
): AsyncIterable<Message> {
  return {
    [Symbol.asyncIterator]() {
      const iterator = messages[Symbol.asyncIterator]();
      const letThrough = (result: IteratorResult<Message>) => {
        const pending = result.done ? undefined : check();
        if (pending === undefined) return result;
        return pending.then(
          () => result,
          async (refusal: unknown) => {
            await iterator.return?.();
            throw refusal;
          },
        );
      };
      return {
        next: () => iterator.next().then(letThrough),
        return: async () => (await iterator.return?.()) ?? { done: true, value: undefined },
        // The client has left amid an answer, in the words of its socket.
        throw: async (reason: unknown) => {
          const left = ConnectError.from(reason, Code.Canceled);
          if (iterator.throw) return iterator.throw(left);
          throw left;
        },
      };
    },
  };
}

/** What is logged of a call that is over. */
export function lineOf(call: {
  readonly requestId: string;
  readonly method: DescMethod;
  readonly code: string;
  /** By performance.now(). */
  readonly startedAt: number;
  readonly caller: Caller | undefined;
}) {
  const { requestId, method, code, startedAt, caller } = call;
  return {
    requestId,
    method: `${method.parent.typeName}/${method.name}`,
    code,
    durationMs: Math.round((performance.now() - startedAt) * 10) / 10,
    ...callerFields(caller),
  };
}

/** What was refused by a fault of ours leaves that besides. */
export function logCall(log: Logger, line: ReturnType<typeof lineOf>, failure?: Failure): void {
  if (failure?.code === "internal_error") log.error({ ...line, err: failure.cause ?? failure }, "rpc failed");
  else log.info(line, "rpc");
}

/** Who called, for the log: a merchant's project, or which service token. */
function callerFields(caller: Caller | undefined) {
  if (caller === undefined) return {};
  if (caller.kind === "merchant") return { projectId: encodeId("prj_", caller.project.id) };
  const { tokenId, scope, source } = caller;
  return { tokenId: tokenId === null ? "installation" : encodeId("tok_", tokenId), scope, source };
}

/**
 * A call whose deadline passes, or whose client leaves, is answered at once. Where the service ends it is answered in its own
 * time.
 */
function untilAborted(
  answer: Promise<UnaryResponse | StreamResponse>,
  signal: AbortSignal,
): Promise<UnaryResponse | StreamResponse> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      if (!(signal.reason instanceof Failure)) reject(ConnectError.from(signal.reason, Code.Canceled));
    };
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/** What the gateway says in headers, under the same names. */
function* metadataOf(
  requestId: string,
  call: Call | undefined,
  rateLimit: RateLimitState | undefined,
): Iterable<[string, string]> {
  yield ["x-request-id", requestId];
  if (call?.usage) {
    yield ["x-usage-calls", String(call.usage.calls)];
    yield ["x-usage-limit", call.usage.limit === null ? "unlimited" : String(call.usage.limit)];
  }
  if (rateLimit) {
    yield ["ratelimit-policy", rateLimit.policy];
    yield ["ratelimit", rateLimit.state];
  }
}

export function connectError(
  failure: Failure,
  requestId: string,
  call?: Call,
  rateLimit?: RateLimitState,
): ConnectError {
  const metadata = new Headers([...metadataOf(requestId, call, failure.rateLimit ?? rateLimit)]);
  if (failure.retryAfterSeconds !== undefined) metadata.set("retry-after", String(failure.retryAfterSeconds));
  const detail = create(ErrorDetailSchema, {
    code: failure.code,
    requestId,
    fields: failure.fields.map(({ field, message }) => ({ field, message })),
    retryAfterSeconds: failure.retryAfterSeconds ?? 0,
  });
  return new ConnectError(failure.message, codes[failure.grpc], metadata, [
    { desc: ErrorDetailSchema, value: detail },
  ]);
}
