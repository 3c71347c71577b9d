/** What the service's role may do with its tables, if they belong to another role. */
import type pg from "pg";
import { run } from "./migration-client.ts";

/**
 * Asks only for reading and for some way to write: a role may have been denied more on purpose, such as DELETE on the audit
 * log. NULL, for a table that a newer migration has dropped, denies nothing.
 */
const deniedTables = `
SELECT relname AS name, relnamespace::regnamespace::text AS schema, quote_ident(current_user) AS role
FROM unnest($1::text[]) t (name) JOIN pg_class ON pg_class.oid = to_regclass(quote_ident(t.name))
WHERE NOT (
  has_any_column_privilege(pg_class.oid, 'SELECT')
  -- True for any of the two.
  AND (has_any_column_privilege(pg_class.oid, 'INSERT, UPDATE') OR has_table_privilege(pg_class.oid, 'DELETE'))
)
ORDER BY relname`;

const shownTables = 3;

/** Rejects if there is a table that the client's role may not read or may not write, with the statement that allows it. */
export async function requirePrivileges(client: pg.Client, tables: readonly string[]): Promise<void> {
  const { rows } = await run<{ name: string; schema: string; role: string }>(client, deniedTables, {
    values: [tables],
  });
  const [first] = rows;
  if (first === undefined) return;
  const names = rows.slice(0, shownTables).map(({ name }) => name);
  if (rows.length > shownTables) names.push(`${rows.length - shownTables} more`);
  const privileges = "SELECT, INSERT, UPDATE, DELETE";
  throw new Error(
    `its role ${first.role} may not read and write all of its tables (${names.join(", ")}): let it own them, ` +
      `or use GRANT ${privileges} ON ALL TABLES IN SCHEMA ${first.schema} TO ${first.role}`,
  );
}
