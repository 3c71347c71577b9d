import type { Verification } from "../core/verification.ts";

/** The columns of a verification `v` as every statement returns them, in the order `verificationOf` reads. */
export const verificationColumns = `
  v.id::text, v.project_id::text, v.environment::text, v.mode::text, v.status::text, v.phone, v.carrier::text,
  v.client_reference, v.state, ${epochMs("v.created_at")}, ${epochMs("v.expires_at")}, ${epochMs("v.verified_at")},
  ${epochMs("now()")}`;

/** Whole milliseconds, rounded down as every stored time is. */
export function epochMs(timestamp: string): string {
  return `floor(extract(epoch FROM ${timestamp}) * 1000)::float8`;
}

/** Now in whole milliseconds. Rounded down, lest a time that is stored lie ahead of the clock. */
export const nowMs = "date_trunc('milliseconds', now())";

/** The verification in a row's columns from `offset` on, or null where the join found none. */
export function verificationOf(row: readonly unknown[], offset: number): Verification | null {
  if (row[offset] === null) return null;
  return {
    id: row[offset],
    projectId: row[offset + 1],
    environment: row[offset + 2],
    mode: row[offset + 3],
    status: row[offset + 4],
    phone: row[offset + 5],
    carrier: row[offset + 6],
    clientReference: row[offset + 7],
    state: row[offset + 8],
    createdAt: row[offset + 9],
    expiresAt: row[offset + 10],
    verifiedAt: row[offset + 11],
    serverTime: row[offset + 12],
  } as Verification;
}
