/**
 * Uses the rows of one creation through the service as a template for bulk inserts. Such an insert names only the columns that
 * differ from the template, and so keeps working when the schema grows.
 */

import pg from "pg";

export const creationTables = ["live_code", "idempotency_record", "verification"] as const;
type CreationTable = (typeof creationTables)[number];

/** By table: each column with its value in the template, as an SQL literal. */
export type Template = Readonly<Record<CreationTable, ReadonlyMap<string, string>>>;

/** `verificationId` is a UUID. */
export async function readTemplate(database: pg.Client, verificationId: string): Promise<Template> {
  const template: Partial<Record<CreationTable, ReadonlyMap<string, string>>> = {};
  for (const table of creationTables) template[table] = await readRow(database, table, verificationId);
  return template as Template;
}

async function readRow(
  database: pg.Client,
  table: CreationTable,
  verificationId: string,
): Promise<Map<string, string>> {
  const { rows: columns } = await database.query<{ name: string; type: string }>(
    `SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute
     WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum`,
    [table],
  );
  const key = table === "verification" ? "id" : "verification_id";
  const values = columns.map(({ name }) => `${pg.escapeIdentifier(name)}::text`);
  const { rows } = await database.query<(string | null)[]>({
    text: `SELECT ${values.join(", ")} FROM ${table} WHERE ${key} = $1::uuid`,
    values: [verificationId],
    rowMode: "array",
  });
  const [row] = rows;
  if (row === undefined) throw new Error(`a creation left nothing in ${table}`);
  return new Map(
    columns.map(({ name, type }, index) => {
      const value = row[index] ?? null;
      return [name, `${value === null ? "NULL" : pg.escapeLiteral(value)}::${type}`];
    }),
  );
}

/** An INSERT … SELECT without its FROM: the columns in `values` get those SQL expressions, the others the template's values. */
export function insertLike(
  template: Template,
  table: CreationTable,
  values: Readonly<Record<string, string>>,
): string {
  const columns = template[table];
  for (const name in values) if (!columns.has(name)) throw new Error(`${table} has no column ${name}`);
  const expressions = [...columns].map(([name, literal]) => values[name] ?? literal);
  return `INSERT INTO ${table} (${[...columns.keys()].join(", ")}) SELECT ${expressions.join(", ")}`;
}
