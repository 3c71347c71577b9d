import pg from "pg";

/** Postgres' name for a commit's wait for its synchronous standby. */
export const standbyWait = "SyncRep";

/** To connect, and for the answer. A server too busy for it is also too busy for new connections in place of old ones. */
const timeoutMs = 2_500;

/**
 * Of the given backends, those that may be at work: all but those that have been idle for 500 ms; on a server that does not track
 * activity, all that exist. `awaits` is what a backend that is certainly at work waits for; it is null for the others, also for
 * one that waits for the client to send or read something.
 *
 * Besides, all backends of this role that have waited for the standby for two seconds: if it is there, every commit waits for a
 * moment, and those of other roles may wait for more (`remote_apply`).
 */
const text = `
SELECT pid,
  CASE WHEN state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' THEN coalesce(wait_event, 'nothing') END AS awaits
FROM pg_stat_activity
WHERE pid = ANY ($1::int[])
  AND (state LIKE 'idle%' AND state_change < clock_timestamp() - interval '500 milliseconds') IS NOT TRUE
  OR wait_event = '${standbyWait}' AND usename = session_user AND state_change < clock_timestamp() - interval '2 seconds'`;

/** Asks the server over a new connection, and returns `awaits` by the process id of the backend. */
export async function readBackendActivity(
  connection: pg.ClientConfig,
  backends: readonly number[],
): Promise<Map<number, string | null>> {
  const client = new pg.Client({
    ...connection,
    application_name: "phoneproof-watch",
    connectionTimeoutMillis: timeoutMs,
    query_timeout: timeoutMs,
  });
  client.on("error", () => {});
  try {
    await client.connect();
    const { rows } = await client.query<{ pid: number; awaits: string | null }>(text, [backends]);
    return new Map(rows.map(({ pid, awaits }) => [pid, awaits]));
  } finally {
    client.end().catch(() => {});
  }
}
