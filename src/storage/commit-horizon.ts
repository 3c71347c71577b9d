import { type Database, runStatement } from "./database.ts";

/**
 * The instant before which nothing more will be committed: a row's times are never before the start of its transaction, and no
 * open transaction began earlier. Counted are all transactions of the service, and those of anybody else that have written
 * something. Two seconds are enough for a new transaction to become visible, and for the clock of a standby that takes over. If
 * the server does not show when the service's transactions began, the margin is longer than any of them may take.
 *
 * This must be a statement of its own. A statement that computed the instant for itself would take its snapshot before it reads
 * the other transactions, and would miss one that commits in between.
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

/** The instant in Postgres' format of a timestamptz. It stays valid: nothing older can be committed later. */
export async function commitHorizon(database: Database): Promise<string> {
  const [row] = await runStatement(database, settledStatement, []);
  return row?.[0] as string;
}
