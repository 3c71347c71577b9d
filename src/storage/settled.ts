import { type Database, runStatement } from "./database.ts";

/**
 * Before which instant all is there: no transaction that is still to commit can bear an earlier time, since none that has
 * begun earlier is under way. One that has written something counts whoever's it is, the service's own always. Two
 * seconds are time enough for a transaction to show itself, and for the clock of a standby that takes over. Where
 * the server does not show when the service's transactions began, it is longer than any may take.
 *
 * Asked by a statement of its own: what the one that goes by it can see was settled before it looked at the clock of others.
 */
const settledStatement = {
  name: "settled",
  text: `
SELECT date_trunc('milliseconds', now() - greatest(
  CASE WHEN bool_or(a.application_name = 'phoneproof' AND coalesce(a.state, 'disabled') = 'disabled')
    THEN interval '15 seconds' ELSE interval '2 seconds' END,
  max(pg_catalog.clock_timestamp() - a.xact_start)
    FILTER (WHERE a.backend_xid IS NOT NULL OR a.application_name = 'phoneproof')
))::text
FROM pg_stat_activity a
WHERE a.datname = current_database() AND coalesce(a.backend_type, 'client backend') = 'client backend' AND a.pid <> pg_backend_pid()`,
};

/** As Postgres spells a timestamptz. Stays true. */
export async function settledUntil(database: Database): Promise<string> {
  const [row] = await runStatement(database, settledStatement, []);
  return row?.[0] as string;
}
