import type { DescMethod } from "@bufbuild/protobuf";
import type { ConnectError, ConnectRouterOptions } from "@connectrpc/connect";
import type { Logger } from "pino";
import { type Admission, ProjectSuspended } from "../admission/admission.ts";
import type { RateLimitBucket } from "../admission/rate-limits.ts";
import { requireScope } from "../core/access.ts";
import type { Call } from "../core/call.ts";
import { newRequestId } from "../core/ids.ts";
import type { Caller, ServiceTokenScope } from "../core/project.ts";
import { asFailure, Failure, type RateLimitState } from "../failures.ts";
import { InboundMessageService } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { StatisticsService } from "../gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationService } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { runningTime } from "../running-time.ts";
import { methodName, noteAnswer, type RpcObserver } from "./answered-call.ts";
import { addressKey, admittedKey, callKey, streamKey } from "./call-context.ts";
import { boundCalls } from "./open-calls.ts";
import { connectError } from "./refusal.ts";
import type { UnauthenticatedStreams } from "./unauthenticated-streams.ts";

const buckets: Readonly<Record<string, RateLimitBucket>> = {
  [VerificationService.method.createVerification.name]: "create",
  [VerificationService.method.getVerification.name]: "read",
  [VerificationService.method.cancelVerification.name]: "cancel",
};

/** The scope a method requires; methods that are not named here are administrative. */
export function neededScope({ parent, name }: DescMethod): ServiceTokenScope {
  if (parent.typeName === InboundMessageService.typeName) return "ingest";
  if (parent.typeName === StatisticsService.typeName) return "read";
  if (parent.typeName !== VerificationService.typeName) return "admin";
  const writes = buckets[name] === "create" || buckets[name] === "cancel";
  return writes ? "write" : "read";
}

/**
 * Checks overload, authentication, scope and rate limit, in the gateway's order and, as there, before the message is
 * read: the interceptor runs only after a complete message. Otherwise this process would hold the messages of
 * unauthenticated clients in memory, and unreadable messages would cost their callers nothing.
 */
export function admissionGate(parts: {
  readonly admission: Admission;
  readonly unauthenticatedStreams: UnauthenticatedStreams;
  readonly log: Logger;
  readonly observer: RpcObserver;
}): NonNullable<ConnectRouterOptions["requestGate"]> {
  const { admission, unauthenticatedStreams, log, observer } = parts;
  const countCall = boundCalls("calls");
  const countStream = boundCalls("streams");
  return async ({ method, requestHeader, values }) => {
    const since = runningTime.now();
    const checkpoint = admission.checkpoint();
    const requestId = newRequestId();
    const address = values.get(addressKey);
    const stream = values.get(streamKey);
    const bucket = buckets[method.name];
    let caller: Caller | undefined;
    let rateLimit: RateLimitState | undefined;

    const refusal = (thrown: unknown): ConnectError => {
      const failure = asFailure(thrown);
      observer.begun(methodName(method), method.methodKind !== "unary");
      const call = { requestId, address, method, code: failure.code, startedAt: checkpoint.at, caller };
      noteAnswer({ log, observer }, call, failure);
      return connectError(failure, requestId, undefined, rateLimit);
    };

    if (bucket !== undefined && admission.isOverloaded(bucket)) {
      throw refusal(new Failure("service_unavailable"));
    }
    try {
      const found = admission.authenticate(requestHeader.get("authorization") ?? undefined, address);
      caller = found instanceof Promise ? await found : found;
      requireScope(caller, neededScope(method));
    } catch (thrown) {
      if (thrown instanceof ProjectSuspended) caller = thrown.caller;
      throw refusal(thrown);
    }
    const count = method.methodKind === "unary" ? countCall : countStream;
    const tooMany = stream && count(caller, stream);
    // A stream beyond the limits is not admitted: its refusal may not be taken, and counts among the unauthenticated ones then.
    if (stream && tooMany === undefined) unauthenticatedStreams.admit(stream);
    try {
      rateLimit = await admission.consumeRateLimit(caller, bucket ?? "read");
      if (tooMany !== undefined) throw tooMany;
      const call: Call = {
        requestId,
        address,
        caller,
        usage: undefined,
        verificationId: undefined,
        projectId: undefined,
        violations: [],
      };
      values.set(callKey, call).set(admittedKey, { call, rateLimit, checkpoint, since });
    } catch (thrown) {
      throw refusal(thrown);
    }
  };
}
