import type pg from "pg";

/**
 * The tables that contain a text in any column of any row, and `pg_stats` if the query planner's statistics do: what ANALYZE has
 * copied there stays when the row has gone.
 */
export async function tablesWith(db: pg.Pool, text: string): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>(
    "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
  );
  const found: string[] = [];
  for (const { name } of [...rows, { name: "pg_stats" }]) {
    const { rowCount } = await db.query(
      `SELECT FROM "${name}" t WHERE t::text LIKE '%' || $1 || '%' LIMIT 1`,
      [text],
    );
    if ((rowCount ?? 0) > 0) found.push(name);
  }
  return found;
}
