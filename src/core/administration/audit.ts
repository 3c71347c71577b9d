import { Failure, type FieldViolation } from "../../failures.ts";
import { noSuchProject } from "../access.ts";
import { decodeId } from "../ids.ts";
import { pageLimit, pageStart, paginate } from "../page-token.ts";
import { type Caller, installation, tokenNameOf } from "../project.ts";
import { projectUuidOf } from "./projects.ts";

/** The audited actions of administrators, in the past tense. */
export type AuditAction =
  | "project.created"
  | "project.updated"
  | "project.suspended"
  | "project.resumed"
  | "api_key.created"
  | "api_key.rotated"
  | "api_key.revoked"
  | "number.added"
  | "number.removed"
  | "service_token.created"
  | "service_token.revoked"
  | "webhook.set"
  | "webhook.secret_rotated"
  | "webhook.removed"
  | "webhook.disabled"
  | "webhook.resent"
  | "webhook.tested"
  | "sms.sent"
  | "data.erased";

/** Who acts, and from where. */
export interface Actor {
  /** `tok_…`, `installation` for the installation's own token, `service` for the process itself. */
  readonly name: string;
  /** The client's IP address; empty for the process itself. */
  readonly address: string;
  /** `req_…`; empty for the process itself. */
  readonly requestId: string;
}

export interface Act {
  readonly action: AuditAction;
  /** The public identifier of what it was done to: `prj_…`, `key_…`, a destination number. */
  readonly subject: string;
  /** The UUID of the project it concerns, if any. */
  readonly projectId: string | null;
  /** Further details, such as a setting's new value. Never a secret, never a person's number. */
  readonly details: Readonly<Record<string, string>>;
}

/** A webhook's URL as an entry has it: without its query, which may hold a secret of the endpoint, since entries are kept forever. */
export const auditedUrl = (url: string): string => url.replace(/\?.*$/s, "?…");

export interface AuditEntry {
  readonly id: string;
  readonly occurredAt: Date;
  readonly actor: Actor;
  readonly act: Act;
}

export interface AuditFilter {
  /** A UUID; null: any. */
  readonly projectId: string | null;
  /** As recorded; empty: any. */
  readonly actor: string;
  /** The UUID of the service token that `actor` names, if it names one. */
  readonly tokenId: string | null;
  /** Only entries older than this id; null: from the newest. */
  readonly before: string | null;
  readonly limit: number;
}

export interface AuditStore {
  /** Records, before it begins, an act that no single transaction of this service performs. */
  add(act: Act): Promise<void>;
  /** Newest first. */
  list(filter: AuditFilter): Promise<AuditEntry[] | "no_project" | "no_token">;
}

export interface AuditLog {
  list(request: {
    /** `prj_…`; empty: any. */
    readonly projectId: string;
    readonly actor: string;
    readonly pageSize: number;
    readonly pageToken: string;
  }): Promise<{ readonly entries: readonly AuditEntry[]; readonly nextPageToken: string }>;
}

const pageSizes = { usual: 50, most: 200 };

export function readAudit({ audit }: { readonly audit: AuditStore }): AuditLog {
  return {
    async list({ projectId, actor, pageSize, pageToken }) {
      const violations: FieldViolation[] = [];
      const limit = pageLimit(pageSize, pageSizes, violations);
      const before = pageStart(pageToken, [projectId, actor], violations);
      const tokenId = decodeId("tok_", actor);
      if (tokenId === null && !["", installation, serviceActor.name].includes(actor)) {
        violations.push({ field: "actor", message: "must be a token's id, tok_…, installation or service" });
      }
      if (violations.length > 0) throw new Failure("validation_failed", { fields: violations });
      const project = projectId === "" ? null : projectUuidOf(projectId);
      const found = await audit.list({ projectId: project, actor, tokenId, before, limit: limit + 1 });
      if (found === "no_project") throw noSuchProject();
      if (found === "no_token") throw new Failure("not_found", { message: "There is no such token." });
      const { items: entries, nextPageToken } = paginate(found, limit, ({ id }) => id, [projectId, actor]);
      return { entries, nextPageToken };
    },
  };
}

/** Throws insufficient_scope for a merchant, who may not administer anything. */
export function actorOf(call: {
  readonly caller: Caller;
  readonly address: string;
  readonly requestId: string;
}): Actor {
  const { caller, address, requestId } = call;
  if (caller.kind !== "service") throw new Failure("insufficient_scope");
  return { name: tokenNameOf(caller), address, requestId };
}

/** The process itself, for instance when it creates the demo project. */
export const serviceActor: Actor = { name: "service", address: "", requestId: "" };
