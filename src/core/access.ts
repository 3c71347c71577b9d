import { Failure, type FieldViolation } from "../failures.ts";
import type { Call } from "./call.ts";
import { decodeId, firstUuid } from "./ids.ts";
import type { Caller, Environment, ServiceTokenScope } from "./project.ts";
import type { VerificationLookup } from "./verification.ts";

/** The project and environment that a request names; null if it names none. */
export interface NamedScope {
  /** `prj_…` as sent. */
  readonly projectId: string | null;
  readonly environment: Environment | null;
}

/** The verifications that a call may concern. Null: any. */
export interface Bounds {
  readonly projectId: string | null;
  readonly environment: Environment | null;
}

/**
 * The bounds within which a caller may act: a merchant in its key's project and environment, a service token in its own project
 * if it has one. Naming another project is refused the same way whether or not it exists.
 */
export function boundsOf(caller: Caller, named: NamedScope): Bounds {
  const namedProject = named.projectId === null ? null : decodeId("prj_", named.projectId);
  if (named.projectId !== null && namedProject === null) throw outOfBounds(caller);
  const ownProject = caller.kind === "merchant" ? caller.project.id : caller.projectId;
  if (namedProject !== null && ownProject !== null && namedProject !== ownProject) throw outOfBounds(caller);
  const ownEnvironment = caller.kind === "merchant" ? caller.environment : null;
  if (named.environment !== null && ownEnvironment !== null && named.environment !== ownEnvironment) {
    throw outOfBounds(caller);
  }
  return { projectId: ownProject ?? namedProject, environment: ownEnvironment ?? named.environment };
}

/** Never added for a merchant, whose key determines the project. */
export const missingProject: FieldViolation = {
  field: "project_id",
  message: "is required with a service token: prj_…",
};

/** Of an administrative call, which names the environment itself. */
export const noEnvironment: FieldViolation = { field: "environment", message: "must be live or test" };

export function noSuchProject(): Failure {
  return new Failure("not_found", { message: "There is no such project." });
}

/** For what is no project's id, such as a name. */
export function notProjectId(): Failure {
  return new Failure("not_found", { message: "There is no such project: give its id, prj_…, not its name." });
}

/** For an administrator, whose own environment no key determines. */
export function noSuchVerification(id: string): Failure {
  const message =
    decodeId("vrf_", id) === null
      ? "There is no such verification: give its id, vrf_…"
      : "There is no such verification.";
  return new Failure("verification_not_found", { message });
}

/**
 * For a verification that a caller's look-up has not found. Bounded callers get the same words for every id; who sees all of them is
 * told nothing of a key or an environment.
 */
export function verificationNotFound(
  caller: Caller,
  { verificationId, projectId, environment }: NamedScope & { readonly verificationId: string },
): Failure {
  const seesAll = caller.kind === "service" && caller.projectId === null;
  if (!seesAll || projectId !== null || environment !== null) return new Failure("verification_not_found");
  return noSuchVerification(verificationId);
}

function outOfBounds(caller: Caller): Failure {
  return caller.kind === "merchant" || caller.projectId !== null
    ? new Failure("insufficient_scope")
    : notProjectId();
}

const scopesThatAllow: Readonly<Record<ServiceTokenScope, readonly ServiceTokenScope[]>> = {
  read: ["read", "write", "admin"],
  write: ["write", "admin"],
  ingest: ["ingest", "admin"],
  admin: ["admin"],
};

/** Refuses a service token whose scope does not cover the operation. A merchant may only read and write. */
export function requireScope(caller: Caller, needed: ServiceTokenScope): void {
  if (caller.kind === "merchant") {
    if (needed === "read" || needed === "write") return;
  } else if (scopesThatAllow[needed].includes(caller.scope)) return;
  throw new Failure("insufficient_scope");
}

/** The project whose usage the caller's calls are charged to; null if they are not charged. */
export function chargedProject(caller: Caller): string | null {
  return caller.kind === "merchant" ? caller.project.id : null;
}

/**
 * The look-up for the verification that a request names, within the caller's bounds. A malformed verification or project id is
 * looked up as a UUID that matches nothing, so that its answer is the same as for a wrong id and takes as long. Whatever else is
 * invalid is refused, after the caller's bounds.
 */
export function lookupOf(
  { caller, violations }: Call,
  named: NamedScope & { readonly verificationId: string },
): VerificationLookup {
  const id = decodeId("vrf_", named.verificationId) ?? firstUuid;
  const isNoProject = named.projectId !== null && decodeId("prj_", named.projectId) === null;
  const isBound = caller.kind === "merchant" || caller.projectId !== null;
  const lookup =
    isNoProject && !isBound
      ? { id: firstUuid, projectId: firstUuid, environment: named.environment }
      : { id, ...boundsOf(caller, named) };
  if (violations.length > 0) throw new Failure("validation_failed", { fields: violations });
  return lookup;
}
