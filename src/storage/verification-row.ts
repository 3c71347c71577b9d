import type { Verification } from "../core/verification.ts";

/** Now in whole milliseconds, rounded down so that no stored time is ahead of the clock. */
export const nowMs = "date_trunc('milliseconds', now())";

/**
 * Milliseconds since the epoch of a time in whole milliseconds, as all stored times are. `date_part` returns floating point,
 * which is half a millionth of a second off at most, and is three times as fast as `extract`.
 */
export function epochMs(timestamp: string): string {
  return `round(date_part('epoch', ${timestamp}) * 1000)`;
}

/** How far the clock of a process that makes ids may be off, and that of a standby that takes over. */
export const maxClockSkew = "interval '1 hour'";

/**
 * The lowest id that can be made at `time` or later, by the clock of the process that makes it. Before 1970, where a machine
 * that has lost its clock may be, all ids are later: a negative time would become one of the highest ids.
 */
export function lowestIdAt(time: string): string {
  return `(
    lpad(to_hex(greatest(0, floor(extract(epoch FROM ${time}) * 1000))::bigint), 12, '0') || '00000000000000000000'
  )::uuid`;
}

/**
 * Whether an id, or all from the lowest to the highest of several, were made by a clock that is about right now, no longer than `age`
 * ago.
 */
export function isOfNow(lowest: string, highest = lowest, age = maxClockSkew): string {
  return `${lowest} >= (SELECT ${lowestIdAt(`now() - ${age}`)})
    AND ${highest} < (SELECT ${lowestIdAt(`now() + ${maxClockSkew}`)})`;
}

/** The unit separator, which no value except the two free texts can contain. */
const separator = "\x1f";

/**
 * The columns of a verification `v` as every statement returns them, for `verificationOf` to read. All but the free texts are
 * packed into one column, since the driver's cost is per column. All three are null if the join found no verification.
 */
export const verificationColumns = `
  CASE WHEN v.id IS NOT NULL THEN concat_ws(
    E'${separator}', v.id, v.project_id, v.environment, v.mode, v.status, coalesce(v.phone, ''),
    coalesce(v.carrier::text, ''), ${epochMs("v.created_at")}, ${epochMs("v.expires_at")},
    coalesce(${epochMs("v.verified_at")}::text, ''), ${epochMs(nowMs)}
  ) END,
  v.client_reference, v.state`;

/** The number of those columns. */
export const verificationWidth = 3;

/** The verification in a row's columns from `offset` on, or null if the join found none. */
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
