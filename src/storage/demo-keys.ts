import { type Database, runStatement } from "./database.ts";

const statement = {
  name: "demo_keys",
  text: `SELECT EXISTS (SELECT FROM api_key WHERE environment = 'live') AND EXISTS (SELECT FROM api_key WHERE environment = 'test')`,
};

/**
 * Whether each environment has a key, revoked ones included: then there is nothing that `makeDemoProject` would do. Asked first,
 * because a start would have to load Prisma for its questions.
 */
export async function hasKeyInEachEnvironment(database: Database): Promise<boolean> {
  const [row] = await runStatement(database, statement, []);
  return row?.[0] === true;
}
