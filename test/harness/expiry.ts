/** Time, as far as it is a verification's: its row and its code's are moved, instead of waiting for an hour. */

interface Asked {
  query(text: string, values: unknown[]): Promise<{ rows: { moved?: number }[] }>;
}

/**
 * Moves the expiry of the verifications `v` that hold `where` to `expiresAt`, an SQL expression that may read the old one, and
 * their creation by as much. Answers how many they are. Where it is in the past, nobody has looked since.
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
