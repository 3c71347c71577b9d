/** Lets verifications expire without waiting, by changing the times in their rows and their codes' rows. */

interface Asked {
  query(text: string, values: unknown[]): Promise<{ rows: { moved?: number }[] }>;
}

/**
 * Sets the expiry of the verifications `v` that satisfy `where` to `expiresAt`, an SQL expression that may refer to the old
 * one, and moves their creation by the same amount. Returns how many they are. The expiry job's progress is moved back to
 * before the new expiry, as if the job had not run since.
 */
export async function moveExpiry(
  db: Asked,
  { expiresAt, where, values = [] }: { expiresAt: string; where: string; values?: readonly unknown[] },
): Promise<number> {
  const { rows } = await db.query(
    `WITH moved AS (
       UPDATE verification v SET created_at = n.expiry - (v.expires_at - v.created_at), expires_at = n.expiry
       FROM (SELECT v.id, date_trunc('milliseconds', ${expiresAt}) AS expiry FROM verification v WHERE ${where}) n
       WHERE v.id = n.id
       RETURNING v.id, v.expires_at
     ),
     codes AS (
       UPDATE live_code l SET expires_at = moved.expires_at FROM moved WHERE l.verification_id = moved.id
     ),
     unseen AS (
       UPDATE retention_progress SET done_up_to = least(
         done_up_to::timestamptz, (SELECT min(expires_at) FROM moved) - interval '1 millisecond'
       )::text
       WHERE task = 'expire'
     )
     SELECT count(*)::int AS moved FROM moved`,
    [...values],
  );
  return rows[0]?.moved ?? 0;
}
