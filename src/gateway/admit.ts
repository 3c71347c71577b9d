/** Admission in the gateway: who calls, whether the call may be made, and what is charged if it fails. */

import type { FastifyReply, FastifyRequest, onRequestHookHandler, preValidationHookHandler } from "fastify";
import { type Admission, type Checkpoint, ProjectSuspended } from "../admission/admission.ts";
import { clientAddress } from "../admission/client-address.ts";
import type { RateLimitBucket } from "../admission/rate-limits.ts";
import type { Call } from "../core/call.ts";
import type { Caller } from "../core/project.ts";
import { asFailure, Failure, type FieldViolation } from "../failures.ts";
import { trust } from "../request-turns.ts";
import type { Overload } from "./overload.ts";
import { refuse, setRateLimit } from "./refusal.ts";

declare module "fastify" {
  interface FastifyRequest {
    /** Set once the call has passed authentication and rate limit: from here on its failures may be charged. */
    call: Call | undefined;
    /** The caller of a call that was refused although its credential is valid: for its project, its scope or its rate limit. */
    refusedCaller: Caller | undefined;
    /** The one before its authentication. */
    checkpoint: Checkpoint | undefined;
    /** Set if its body broke off: ends it. To be called once it is admitted, instead of going on. */
    brokenOff: (() => void) | undefined;
    /** The failure it was refused with. */
    failure: Failure | undefined;
  }
}

const noViolations: readonly FieldViolation[] = [];

/** A hook that admits merchants' calls. */
export function admitting(
  admission: Admission,
  overload: Overload,
  bucket: RateLimitBucket,
): onRequestHookHandler {
  return (request, reply, done) => {
    if (overload.sheds(bucket, reply)) return;
    const refused = (thrown: unknown) => endWith(thrown, request, done);
    request.checkpoint = admission.checkpoint();
    identify(admission, request, clientAddress(request), refused, (caller) => {
      if (caller.kind === "service") {
        request.refusedCaller = caller;
        refused(new Failure("insufficient_scope"));
      } else consumeRateLimit(admission, bucket, caller, reply, refused, () => done());
    });
  };
}

/**
 * A hook for calls with a body, which may arrive long after the headers: a call is refused if its key has been revoked
 * meanwhile, or its project suspended.
 */
export function stillAdmitting(admission: Admission): preValidationHookHandler {
  return (request, _reply, done) => {
    const authenticated = authenticateAgain(admission, request);
    if (authenticated === undefined) done();
    else
      authenticated.then(
        () => done(),
        (thrown) => endWith(thrown, request, done),
      );
  };
}

function endWith(thrown: unknown, request: FastifyRequest, done: (failure: Failure) => void): void {
  request.noteLate?.(thrown);
  done(asFailure(thrown));
}

/** Authenticates an admitted call again; undefined if the earlier authentication is still valid. */
export function authenticateAgain(admission: Admission, request: FastifyRequest): Promise<void> | undefined {
  const { call, checkpoint } = request;
  if (call === undefined || (checkpoint !== undefined && admission.isCurrent(checkpoint))) return undefined;
  return new Promise((resolve, reject) => {
    // The credential was valid before: that it has ended since is no guess.
    identify(admission, request, null, reject, (caller) => {
      call.caller = caller;
      resolve();
    });
  });
}

/**
 * Answers a request that has no route. It needs no key; with a merchant's key it is a call like any other, and a wrong
 * key counts as a failed authentication.
 */
export function answerUnknownRoute(
  admission: Admission,
  request: FastifyRequest,
  reply: FastifyReply,
  fail: (failure: Failure, request: FastifyRequest, reply: FastifyReply) => void,
): void {
  const unknown = () => fail(new Failure("route_not_found"), request, reply);
  if (request.headers.authorization === undefined) {
    unknown();
    return;
  }
  const unidentified = (thrown: unknown) => {
    const failure = asFailure(thrown);
    if (failure.code === "project_suspended") refuse(reply, failure);
    else if (failure.code === "internal_error") fail(failure, request, reply);
    else unknown();
  };
  request.checkpoint = admission.checkpoint();
  identify(admission, request, clientAddress(request), unidentified, (caller) => {
    if (caller.kind === "service") {
      request.refusedCaller = caller;
      unknown();
    } else {
      const refused = (thrown: unknown) => fail(asFailure(thrown), request, reply);
      consumeRateLimit(admission, "read", caller, reply, refused, unknown);
    }
  });
}

/** `address`: as for `Admission.authenticate`. */
function identify(
  admission: Admission,
  request: FastifyRequest,
  address: string | null,
  refused: (thrown: unknown) => void,
  identified: (caller: Caller) => void,
): void {
  const unidentified = (thrown: unknown) => {
    if (thrown instanceof ProjectSuspended) request.refusedCaller = thrown.caller;
    refused(thrown);
  };
  let caller: Caller | Promise<Caller>;
  try {
    caller = admission.authenticate(request.headers.authorization, address);
  } catch (thrown) {
    unidentified(thrown);
    return;
  }
  if (caller instanceof Promise) caller.then(identified, unidentified);
  else identified(caller);
}

function consumeRateLimit(
  admission: Admission,
  bucket: RateLimitBucket,
  caller: Caller,
  reply: FastifyReply,
  refused: (thrown: unknown) => void,
  admitted: () => void,
): void {
  const { request } = reply;
  const limited = (thrown: unknown) => {
    request.refusedCaller = caller;
    refused(thrown);
  };
  admission.consumeRateLimit(caller, bucket).then((rateLimit) => {
    if (rateLimit !== undefined) setRateLimit(reply, rateLimit);
    trust(request.raw.socket);
    request.call = {
      requestId: request.id,
      address: clientAddress(request),
      caller,
      usage: undefined,
      verificationId: undefined,
      projectId: undefined,
      violations: noViolations,
    };
    if (request.brokenOff === undefined) admitted();
    else request.brokenOff();
  }, limited);
}
