import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { AuditEntry } from "../core/administration/audit.ts";
import { encodeId } from "../core/ids.ts";
import { AuditEntrySchema, AuditService } from "../gen/proto/phoneproof/v1/audit_pb.ts";
import type { AsAdmin } from "./as-admin.ts";

/** Serves the audit log of administrators' acts to admin tokens. */
export function auditRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(AuditService, {
    listAuditEntries: asAdmin(async ({ audit }, { projectId, actor, pageSize, pageToken }) => {
      const page = await audit.list({ projectId, actor, pageSize, pageToken });
      return { entries: page.entries.map(auditMessage), nextPageToken: page.nextPageToken };
    }),
  });
}

function auditMessage({ id, occurredAt, actor, act }: AuditEntry) {
  return create(AuditEntrySchema, {
    id: encodeId("aud_", id),
    occurredAt: timestampFromDate(occurredAt),
    actor: actor.name,
    address: actor.address,
    requestId: actor.requestId,
    action: act.action,
    subject: act.subject,
    projectId: act.projectId === null ? "" : encodeId("prj_", act.projectId),
    details: { ...act.details },
  });
}
