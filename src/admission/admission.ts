import { timingSafeEqual } from "node:crypto";
import type { Call } from "../core/call.ts";
import { bearerCredential, digestCredential, parseCredential } from "../core/credential.ts";
import type { Directory } from "../core/directory.ts";
import { adminSource } from "../core/inbound-message.ts";
import type { Caller, ServiceCaller } from "../core/project.ts";
import type { UsageCount } from "../core/usage.ts";
import { asFailure, Failure, type RateLimitState } from "../failures.ts";
import type { RateLimits } from "./rate-limits.ts";

/** The separate allowances of a project in an environment. Whatever is neither create nor cancel is read. */
export type RateLimitBucket = "create" | "read" | "cancel";

/**
 * So long a credential holds without another look, where no change is heard of: of a call whose message comes later than its
 * headers, and of a stream. (A look at it for each of a stream's messages was a tenth of their time.)
 */
const trustedMs = 100;

/** A look at a credential. */
export interface Look {
  /** By performance.now(). */
  readonly at: number;
  /** The directory's. */
  readonly revision: number;
}

/**
 * What stands around both faces, once, so that a caller meets the same rules in the same order over
 * REST and gRPC: overload → authentication → suspension → rate limit → usage.
 */
export interface Admission {
  /**
   * Whether such a call would only be told to come again. Asked before anything else of it is looked at, so that refusing
   * leaves the process its time for those it serves. Takes no time.
   */
  isOverloaded(bucket: RateLimitBucket): boolean;
  /**
   * Who calls. `address` is the client's IP address, for the limit on failed authentications.
   * Refuses with missing_api_key, invalid_api_key, rate_limited, project_suspended.
   * Answers without a promise where the key is known already.
   */
  authenticate(authorization: string | undefined, address: string): Caller | Promise<Caller>;
  /** To be asked before `authenticate`: what changes meanwhile is not missed then. */
  look(): Look;
  /** Whether what `authenticate` answered after it is as good now. */
  holds(look: Look): boolean;
  /** Calls back when no look before holds any more. */
  onRevision(listener: () => void): { stop(): void };
  /**
   * Takes one call from a merchant's allowance; undefined for service tokens, which have no limit.
   * Refuses with rate_limited, whose `rateLimit` the faces report.
   */
  takeAllowance(caller: Caller, bucket: RateLimitBucket): Promise<RateLimitState | undefined>;
  /**
   * What to answer a call that failed: charges it where nothing has and its failure counts (400, 404, 409,
   * 422 of a merchant), and answers usage_limit_exceeded instead where the limit is reached. `lookAgain` is asked before, since
   * what could not be read may have come long after its credential was looked at: who is let in no further is not charged either.
   */
  settle(call: Call, failure: Failure, lookAgain: () => Promise<void> | undefined): Promise<Failure>;
}

const noBearer =
  "The Authorization header is not one: send the word Bearer, a space, and the API key or token, with nothing after it.";

const digestOf = (credential: string) => Buffer.from(digestCredential(credential), "hex");

/** The installation's own token, which no table holds. */
const installationAdmin: ServiceCaller = {
  kind: "service",
  tokenId: null,
  scope: "admin",
  source: adminSource,
  projectId: null,
  environment: null,
  numbers: [],
};

export function createAdmission(parts: {
  readonly directory: Directory;
  readonly rateLimits: RateLimits;
  readonly chargeUsage: (projectId: string) => Promise<UsageCount>;
  readonly isOverloaded: Admission["isOverloaded"];
  /** Told of each call whose key or token is good. Takes no time. */
  readonly noteUse: (caller: Caller) => void;
  /** Those of the installation: DATA_DIR/admin-token, PHONEPROOF_ADMIN_TOKEN. */
  readonly adminTokens: readonly string[];
}): Admission {
  const { directory, rateLimits, chargeUsage, noteUse } = parts;
  const adminDigests = parts.adminTokens.map(digestOf);

  function isInstallationAdmin(credential: string): boolean {
    const digest = digestOf(credential);
    return adminDigests.some((known) => timingSafeEqual(known, digest));
  }

  /** It counts against its address, and never against a valid credential from there. */
  async function refused(address: string, failure = new Failure("invalid_api_key")): Promise<never> {
    await rateLimits.takeFailedAuthentication(address);
    throw failure;
  }

  function known(caller: Caller | null, address: string): Caller | Promise<never> {
    if (caller === null) return refused(address);
    noteUse(caller);
    if (caller.kind === "merchant" && caller.project.suspended) throw new Failure("project_suspended");
    return caller;
  }

  return {
    isOverloaded: parts.isOverloaded,

    authenticate(authorization, address) {
      const credential = bearerCredential(authorization);
      if (credential === undefined) return refused(address, new Failure("missing_api_key"));
      if (credential === null) return refused(address, new Failure("invalid_api_key", { message: noBearer }));
      const remembered = directory.remembered(credential);
      if (remembered !== undefined) return known(remembered, address);
      // In no table, though it may have the shape of a service token: known without the database.
      if (isInstallationAdmin(credential)) return installationAdmin;
      const kind = parseCredential(credential);
      if (kind === null) return refused(address);
      const found = directory.caller(credential, kind);
      return found instanceof Promise
        ? found.then((caller) => known(caller, address))
        : known(found, address);
    },

    look: () => ({ at: performance.now(), revision: directory.revision() }),
    holds: ({ at, revision }) => directory.revision() === revision && performance.now() - at <= trustedMs,
    onRevision: (listener) => directory.onRevision(listener),

    async takeAllowance(caller, bucket) {
      if (caller.kind !== "merchant") return undefined;
      const { project, environment } = caller;
      return rateLimits.take(`${project.id}${environment}`, bucket, project.rateLimitPerMinute);
    },

    async settle(call, failure, lookAgain) {
      const counts =
        failure.status === 400 || failure.status === 404 || failure.status === 409 || failure.status === 422;
      if (!counts || call.usage !== undefined || call.caller.kind !== "merchant") return failure;
      const { project } = call.caller;
      try {
        await lookAgain();
        call.usage = await chargeUsage(project.id);
        return failure;
      } catch (error) {
        return asFailure(error);
      }
    },
  };
}
