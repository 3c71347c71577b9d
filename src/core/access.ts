import { Failure, type FieldViolation } from "../failures.ts";
import { decodeId, firstUuid } from "./ids.ts";
import type { Caller, Environment, ServiceTokenScope } from "./project.ts";
import type { VerificationLookup } from "./verification.ts";

/** What a request names of its own accord; null where it names nothing. */
export interface NamedScope {
  /** `prj_…` as sent. */
  readonly projectId: string | null;
  readonly environment: Environment | null;
}

/** Which verifications a call is about. Null: any. */
export interface Bounds {
  readonly projectId: string | null;
  readonly environment: Environment | null;
}

/**
 * The bounds within which a caller may act: a merchant in its key's project and environment, a service token
 * in its own project if it has one. Naming another is refused alike whether it exists or not.
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

/** A merchant's key has said which it is. */
export const missingProject: FieldViolation = {
  field: "project_id",
  message: "is required from a service token: prj_…",
};

export function noSuchProject(): Failure {
  return new Failure("not_found", { message: "There is no such project." });
}

function outOfBounds(caller: Caller): Failure {
  return caller.kind === "merchant" || caller.projectId !== null
    ? new Failure("insufficient_scope")
    : noSuchProject();
}

const scopesThatAllow: Readonly<Record<ServiceTokenScope, readonly ServiceTokenScope[]>> = {
  read: ["read", "write", "admin"],
  write: ["write", "admin"],
  ingest: ["ingest", "admin"],
  admin: ["admin"],
};

/** Refuses a service token whose scope does not cover the operation. A merchant may read and write. */
export function requireScope(caller: Caller, needed: ServiceTokenScope): void {
  if (caller.kind === "merchant") {
    if (needed === "read" || needed === "write") return;
  } else if (scopesThatAllow[needed].includes(caller.scope)) return;
  throw new Failure("insufficient_scope");
}

/** The project whose usage counts a caller's calls. */
export function chargedProject(caller: Caller): string | null {
  return caller.kind === "merchant" ? caller.project.id : null;
}

/**
 * Which verification a caller asks about, within its bounds. An impossible id matches nothing at the cost of a look-up, a
 * project's as well: it is answered as a wrong one, and as slowly.
 */
export function lookupOf(
  caller: Caller,
  named: NamedScope & { readonly verificationId: string },
): VerificationLookup {
  const id = decodeId("vrf_", named.verificationId) ?? firstUuid;
  const isNoProject = named.projectId !== null && decodeId("prj_", named.projectId) === null;
  const isBound = caller.kind === "merchant" || caller.projectId !== null;
  if (isNoProject && !isBound) return { id: firstUuid, projectId: firstUuid, environment: named.environment };
  return { id, ...boundsOf(caller, named) };
}
