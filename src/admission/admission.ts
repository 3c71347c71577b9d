import { timingSafeEqual } from "node:crypto";
import type { Call } from "../core/call.ts";
import { bearerCredential, digestCredential, parseCredential } from "../core/credential.ts";
import type { Directory } from "../core/directory.ts";
import { adminSource } from "../core/inbound-message.ts";
import type { Caller, MerchantCaller, ServiceCaller } from "../core/project.ts";
import type { UsageCount } from "../core/usage.ts";
import { asFailure, Failure, type RateLimitState } from "../failures.ts";
import type { RateLimitBucket, RateLimits } from "./rate-limits.ts";

/**
 * How long an authentication is valid without a repeat, unless a change is announced: for a call whose message arrives after
 * its headers, and for a stream. (Authenticating each message of a stream took a tenth of its processing time.)
 */
const trustedMs = 100;

/** The moment before an authentication, by which `isCurrent` decides later whether that is still valid. */
export interface Checkpoint {
  /** By performance.now(). */
  readonly at: number;
  /** The directory's revision then. */
  readonly revision: number;
}

/**
 * The checks around both REST and gRPC, so that a caller meets the same rules in the same order on either: overload →
 * authentication → suspension → rate limit → usage.
 */
export interface Admission {
  /**
   * Whether such a call would be refused for overload. Checked before anything else about the call, so that refusals leave the
   * process's time for the calls it serves. Synchronous and cheap.
   */
  isOverloaded(bucket: RateLimitBucket): boolean;
  /**
   * Returns the caller. `address` is the client's IP address, for the limit on failed authentications; null if this call or
   * stream was authenticated by the same credential before: that it has ended since is no guess. Refuses with missing_api_key,
   * invalid_api_key, rate_limited, project_suspended. Returns no promise if the credential is cached.
   */
  authenticate(authorization: string | undefined, address: string | null): Caller | Promise<Caller>;
  /** To be called before `authenticate`, so that no change in between is missed. */
  checkpoint(): Checkpoint;
  /** Whether the authentication that followed is still valid. */
  isCurrent(checkpoint: Checkpoint): boolean;
  /** Calls `listener` when all earlier checkpoints have become invalid. */
  onRevision(listener: () => void): { stop(): void };
  /**
   * Takes one call from a merchant's rate limit; undefined for service tokens, which have none. Refuses with rate_limited,
   * whose `rateLimit` the gateway and the gRPC server report.
   */
  consumeRateLimit(caller: Caller, bucket: RateLimitBucket): Promise<RateLimitState | undefined>;
  /**
   * Returns the failure to answer a failed call with. Charges the call if nothing has charged it and the failure counts as
   * usage (400, 404, 409, 422 of a merchant); returns usage_limit_exceeded instead if the limit is reached. `authenticateAgain` is
   * awaited first: the request may have taken long to arrive since its authentication, and a caller who is no longer admitted
   * is not charged.
   */
  chargeFailure(
    call: Call,
    failure: Failure,
    authenticateAgain: () => Promise<void> | undefined,
  ): Promise<Failure>;
}

/** Refuses the calls of a suspended project's keys; the log says whose they are. */
export class ProjectSuspended extends Failure {
  readonly caller: MerchantCaller;

  constructor(caller: MerchantCaller) {
    super("project_suspended");
    this.caller = caller;
  }
}

/** Refuses a credential that is well formed, but unknown, revoked or expired. */
export class UnknownCredential extends Failure {
  /** Its last four characters, a part of its checksum, as in the lists of keys: the log says by them which key it was. */
  readonly ending: string;

  constructor(credential: string) {
    super("invalid_api_key");
    this.ending = credential.slice(-4);
  }
}

const noBearer =
  "The Authorization header is invalid: send the word Bearer, a space, and the API key or token, without quotes and with nothing after it.";

const digestOf = (credential: string) => Buffer.from(digestCredential(credential), "hex");

/** The caller for the installation's own tokens, which are not stored in the database. */
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
  /** Called for each call with a valid key or token. Synchronous and cheap. */
  readonly noteUse: (caller: Caller) => void;
  /** The installation's own tokens: DATA_DIR/admin-token, PHONEPROOF_ADMIN_TOKEN. */
  readonly adminTokens: readonly string[];
}): Admission {
  const { directory, rateLimits, chargeUsage, noteUse } = parts;
  const adminDigests = parts.adminTokens.map(digestOf);

  function isInstallationAdmin(credential: string): boolean {
    const digest = digestOf(credential);
    return adminDigests.some((known) => timingSafeEqual(known, digest));
  }

  /** Counts the failure against the client's address; valid credentials from the same address are not limited by it. */
  async function refused(address: string | null, failure = new Failure("invalid_api_key")): Promise<never> {
    if (address !== null) await rateLimits.takeFailedAuthentication(address);
    throw failure;
  }

  function known(caller: Caller | null, credential: string, address: string | null): Caller | Promise<never> {
    if (caller === null) return refused(address, new UnknownCredential(credential));
    noteUse(caller);
    if (caller.kind === "merchant" && caller.project.suspended) throw new ProjectSuspended(caller);
    return caller;
  }

  return {
    isOverloaded: parts.isOverloaded,

    authenticate(authorization, address) {
      const credential = bearerCredential(authorization);
      if (credential === undefined) return refused(address, new Failure("missing_api_key"));
      if (credential === null) return refused(address, new Failure("invalid_api_key", { message: noBearer }));
      const remembered = directory.remembered(credential);
      if (remembered !== undefined) return known(remembered, credential, address);
      // Not in the database, though it may have the format of a service token, so it is checked before any look-up.
      if (isInstallationAdmin(credential)) return installationAdmin;
      const kind = parseCredential(credential);
      if (kind === null) return refused(address);
      const found = directory.caller(credential, kind);
      return found instanceof Promise
        ? found.then((caller) => known(caller, credential, address))
        : known(found, credential, address);
    },

    checkpoint: () => ({ at: performance.now(), revision: directory.revision() }),
    isCurrent: ({ at, revision }) => directory.revision() === revision && performance.now() - at <= trustedMs,
    onRevision: (listener) => directory.onRevision(listener),

    async consumeRateLimit(caller, bucket) {
      if (caller.kind !== "merchant") return undefined;
      const { project, environment } = caller;
      return rateLimits.take(`${project.id}${environment}`, bucket, project.rateLimitPerMinute);
    },

    async chargeFailure(call, failure, authenticateAgain) {
      const counts =
        failure.status === 400 || failure.status === 404 || failure.status === 409 || failure.status === 422;
      if (!counts || call.usage !== undefined || call.caller.kind !== "merchant") return failure;
      const { project } = call.caller;
      try {
        await authenticateAgain();
        call.usage = await chargeUsage(project.id);
        return failure;
      } catch (error) {
        return asFailure(error);
      }
    },
  };
}
