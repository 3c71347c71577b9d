import { setTimeout as delay } from "node:timers/promises";
import {
  Code,
  ConnectError,
  type Interceptor,
  type StreamRequest,
  type StreamResponse,
  type UnaryRequest,
  type UnaryResponse,
} from "@connectrpc/connect";
import { codeToString } from "@connectrpc/connect/protocol-connect";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import { limitAnswerTime } from "../answer-time.ts";
import { asFailure, Failure } from "../failures.ts";
import { VerificationService } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { neededScope } from "./admission-gate.ts";
import { methodName, noteAnswer, noteFault, type RpcObserver } from "./answered-call.ts";
import { admittedKey } from "./call-context.ts";
import { toMessageFailure } from "./message-errors.ts";
import type { OpenStreams } from "./open-streams.ts";
import { connectError, metadataOf } from "./refusal.ts";

/** The shortest delay before a watch's credential is looked up again; it is up to twice as long. */
const retryMs = 1_000;

type Called = UnaryRequest | StreamRequest;

/**
 * Usage, error translation and the log line of each call, for every service of this package, once the gate has admitted
 * the call and its message has arrived. Streams are authenticated again while they last.
 */
export function admissionInterceptor(parts: {
  readonly admission: Admission;
  readonly openStreams: OpenStreams;
  readonly log: Logger;
  readonly observer: RpcObserver;
}): Interceptor {
  const { admission, openStreams, log, observer } = parts;

  return (next) => async (request) => {
    const admitted = request.contextValues.get(admittedKey);
    if (admitted === undefined) throw new Error("the interceptor was reached without the gate");
    request.contextValues.delete(admittedKey);
    const { call, rateLimit } = admitted;
    const { requestId } = call;
    const startedAt = admitted.checkpoint.at;
    let { checkpoint } = admitted;
    let finished = false;
    let isRefused = false;
    let leave = () => {};
    const finish = (code: string, failure?: Failure) => {
      if (finished) return;
      finished = true;
      leave();
      noteAnswer({ log, observer }, { ...call, method: request.method, code, startedAt }, failure);
    };
    observer.begun(methodName(request.method), request.stream);
    /** Of a call that was refused meanwhile or whose client has left, nobody else would learn the fault. */
    const noteLateFault = (thrown: unknown) => {
      const failure = isRefused ? refusalOf(thrown, request.signal) : undefined;
      if (!(failure instanceof Failure) || failure.code !== "internal_error") return;
      noteFault({ log, observer }, { method: methodName(request.method), requestId, failure });
    };
    const refuse = async (thrown: unknown): Promise<ConnectError> => {
      isRefused = true;
      const refusal = refusalOf(thrown, request.signal);
      const charged = async (failure: Failure) => {
        const settled = await admission.chargeFailure(call, failure, authenticateAgain);
        if (finished && settled !== failure) noteLateFault(settled);
        return settled;
      };
      // A call that was cancelled or missed its deadline keeps gRPC's own code. So does one with no message or with more than
      // one, which is charged like one with an unreadable message.
      if (refusal instanceof ConnectError) {
        if (refusal.code === Code.Unimplemented) {
          const failure = await charged(new Failure("malformed_request"));
          if (failure.code !== "malformed_request") {
            finish(failure.code, failure);
            return connectError(failure, requestId, call, rateLimit);
          }
          for (const [name, value] of metadataOf(requestId, call, rateLimit))
            refusal.metadata.set(name, value);
        }
        finish(codeToString(refusal.code));
        return refusal;
      }
      const failure = await charged(refusal);
      finish(failure.code, failure);
      return connectError(failure, requestId, call, rateLimit);
    };

    if (!isLimited(request)) return await answer();
    return await inTime(answer(), admitted.since, () => refuse(new Failure("service_unavailable")));

    async function answer(): Promise<UnaryResponse | StreamResponse> {
      try {
        const authenticating = authenticateAgain();
        if (authenticating) await authenticating;
        const entered = request.stream ? opened(request) : request;
        const answering = next(entered);
        answering.catch(noteLateFault);
        const response = await untilAborted(answering, request.signal);
        for (const [name, value] of metadataOf(requestId, call, rateLimit)) response.header.set(name, value);
        if (response.stream) return { ...response, message: translated(response, entered.signal) };
        finish("ok");
        return response;
      } catch (thrown) {
        throw await refuse(thrown);
      }
    }

    /** Undefined if the last authentication is still valid. */
    function authenticateAgain(): Promise<void> | undefined {
      return admission.isCurrent(checkpoint) ? undefined : authenticate();
    }

    async function authenticate(): Promise<void> {
      const next = admission.checkpoint();
      call.caller = await admission.authenticate(request.header.get("authorization") ?? undefined, null);
      // Not before: a change in between would otherwise count as known.
      checkpoint = next;
    }

    /** An unavailable database says nothing about a credential. A watch would end without the state that it has waited for. */
    async function authenticateOnceAvailable(signal: AbortSignal): Promise<void> {
      for (;;) {
        try {
          return await authenticateAgain();
        } catch (thrown) {
          if (!(thrown instanceof Failure && thrown.code === "service_unavailable")) throw thrown;
        }
        // At random, so that not all streams of all processes retry at once.
        await delay(retryMs * (1 + Math.random()), undefined, { signal }).catch(() => {});
        signal.throwIfAborted();
      }
    }

    /** Registers the stream, which ends when its credential does, even if nothing is sent on it. */
    function opened(stream: StreamRequest): StreamRequest {
      const ended = new AbortController();
      leave = openStreams.add({
        credential: request.header.get("authorization") ?? "",
        authenticate,
        end: (failure) => ended.abort(failure),
      });
      // However the stream ends, also if nobody reads its responses.
      request.signal.addEventListener("abort", leave, { once: true });
      const signal = AbortSignal.any([stream.signal, ended.signal]);
      // A stream may stay open for days: each of its messages is authenticated as a separate call would be.
      return { ...stream, signal, message: checked(stream.message, authenticateAgain) };
    }

    async function* translated(response: StreamResponse, signal: AbortSignal) {
      const check = isWatch(request) ? () => authenticateOnceAvailable(signal) : authenticateAgain;
      try {
        yield* checked(response.message, check);
        for (const [name, value] of metadataOf(requestId, call, undefined)) response.trailer.set(name, value);
        finish("ok");
      } catch (thrown) {
        throw await refuse(thrown);
      } finally {
        // Nothing was thrown if the responses are just not read any further: the stream must not count as open for ever.
        finish("canceled");
      }
    }
  };
}

function refusalOf(thrown: unknown, { reason }: AbortSignal): Failure | ConnectError {
  const hasLeft = reason !== undefined && thrown === reason && !(reason instanceof Failure);
  if (hasLeft || isCutShort(thrown)) return cancelled(thrown);
  return thrown instanceof ConnectError ? (toMessageFailure(thrown) ?? thrown) : asFailure(thrown);
}

/** How a call ends that its client no longer waits for. An error code of the client's reset is none of this service's. */
function cancelled(reason: unknown): ConnectError {
  const error = ConnectError.from(reason, Code.Canceled);
  if (error.code === Code.DeadlineExceeded) return error;
  return new ConnectError(error.rawMessage, Code.Canceled, undefined, undefined, reason);
}

/** Node's error, where a request is read, if the client disconnected before its end. */
function isCutShort(thrown: unknown): boolean {
  return thrown instanceof Error && "code" in thrown && thrown.code === "ERR_STREAM_PREMATURE_CLOSE";
}

/**
 * Passes each message on once `check` allows it: synchronously if `check` has nothing to wait for, since a generator
 * would cost four promises per message. If `check` fails, the messages end with its error.
 */
function checked<Message>(
  messages: AsyncIterable<Message>,
  check: () => Promise<void> | undefined,
): AsyncIterable<Message> {
  return {
    [Symbol.asyncIterator]() {
      const iterator = messages[Symbol.asyncIterator]();
      const passAfterCheck = (result: IteratorResult<Message>) => {
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
        next: () => iterator.next().then(passAfterCheck),
        return: async () => (await iterator.return?.()) ?? { done: true, value: undefined },
        // The client left during a response; `reason` is its socket's error.
        throw: async (reason: unknown) => {
          const left = ConnectError.from(reason, Code.Canceled);
          if (iterator.throw) return iterator.throw(left);
          throw left;
        },
      };
    },
  };
}

const isWatch = ({ method }: Called) => method === VerificationService.method.watchVerification;

/** What an administrator asks for may rightly take long, in many statements, and its result may not be there to be read again. */
const isLimited = ({ stream, method }: Called) => !stream && neededScope(method) !== "admin";

/** Rejects with the refusal if the call has no answer in time. What it waits for goes on. */
function inTime<Answer>(
  answer: Promise<Answer>,
  since: number,
  refuse: () => Promise<ConnectError>,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const answered = limitAnswerTime(() => void refuse().then(reject, reject), since);
    answer.then(resolve, reject).finally(answered);
  });
}

/**
 * Rejects at once when the call's deadline passes or its client leaves. On a shutdown, which aborts with a Failure, the
 * call may still finish.
 */
function untilAborted(
  answer: Promise<UnaryResponse | StreamResponse>,
  signal: AbortSignal,
): Promise<UnaryResponse | StreamResponse> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      if (!(signal.reason instanceof Failure)) reject(signal.reason);
    };
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
