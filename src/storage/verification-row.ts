import type { Verification } from "../core/verification.ts";

/** Now in whole milliseconds. Rounded down, lest a time that is stored lie ahead of the clock. */
export const nowMs = "date_trunc('milliseconds', now())";

/**
 * Milliseconds since the epoch, of a time in whole milliseconds, as every stored one is. Floating point is half a
 * millionth of a second off at most, and three times as fast as `extract`.
 */
export function epochMs(timestamp: string): string {
  return `round(date_part('epoch', ${timestamp}) * 1000)`;
}

/** As far as the clock of whoever makes ids is believed. */
export const clockTrust = "interval '1 hour'";

/** No id that was made from then on, by the clock of whoever made it, is less. */
export function firstIdAt(time: string): string {
  return `(
    lpad(to_hex(floor(extract(epoch FROM ${time}) * 1000)::bigint), 12, '0') || '00000000000000000000'
  )::uuid`;
}

/** Unit separator, which no value beside the two free texts can hold. */
const separator = "\x1f";

/**
 * The columns of a verification `v` as every statement returns them, for `verificationOf` to read: all but the free
 * texts in one, since the driver's work goes by the column. Null, null and null where the join found none.
 */
export const verificationColumns = `
  CASE WHEN v.id IS NOT NULL THEN concat_ws(
    E'${separator}', v.id, v.project_id, v.environment, v.mode, v.status, coalesce(v.phone, ''),
    coalesce(v.carrier::text, ''), ${epochMs("v.created_at")}, ${epochMs("v.expires_at")},
    coalesce(${epochMs("v.verified_at")}::text, ''), ${epochMs(nowMs)}
  ) END,
  v.client_reference, v.state`;

/** How many columns those are. */
export const verificationWidth = 3;

/** The verification in a row's columns from `offset` on, or null where the join found none. */
export function verificationOf(row: readonly unknown[], offset: number): Verification | null {
  const packed = row[offset] as string | null;
  if (packed === null) return null;
  const [
    id,
    projectId,
    environment,
    mode,
    status,
    phone,
    carrier,
    createdAt,
    expiresAt,
    verifiedAt,
    serverTime,
  ] = packed.split(separator);
  return {
    id,
    projectId,
    environment,
    mode,
    status,
    phone: phone === "" ? null : phone,
    carrier: carrier === "" ? null : carrier,
    clientReference: row[offset + 1],
    state: row[offset + 2],
    createdAt: Number(createdAt),
    expiresAt: Number(expiresAt),
    verifiedAt: verifiedAt === "" ? null : Number(verifiedAt),
    serverTime: Number(serverTime),
  } as Verification;
}
