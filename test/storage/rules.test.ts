/** Rules that the database holds by itself, whatever writes to it. */

import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createDatabase, type TestDatabase } from "../harness/database.ts";

let database: TestDatabase;
let client: pg.Client;

beforeAll(async () => {
  database = await createDatabase();
  client = new pg.Client(database.connection);
  await client.connect();
});

afterAll(async () => {
  await client.end();
  await database.drop();
});

/** The SQLSTATE that it is refused with; null: it is not. */
async function refusalOf(text: string, values: unknown[]): Promise<string | null> {
  const refused = await client.query(text, values).then(
    () => null,
    ({ code }: pg.DatabaseError) => code,
  );
  return refused ?? null;
}

const notNull = "23502";
const check = "23514";

const token = (source: string | null, numbers: string[] | null) =>
  refusalOf(
    `INSERT INTO service_token (id, scope, source, numbers, digest, ending)
     VALUES (gen_random_uuid(), $1, $2, $3, sha256(gen_random_uuid()::text::bytea), 'abcd')`,
    [source === null ? "read" : "ingest", source, numbers],
  );

describe("a service token", () => {
  test.for<[string, string | null, string[] | null, string | null]>([
    ["of no source and no numbers is kept", null, [], null],
    ["of a source and its numbers is kept", "sktelecom.seoul-1_A", ["15771234"], null],
    ["that receives has a list of numbers, though an empty one", "gateway", null, notNull],
    ["that reads has a list of numbers, though an empty one", null, null, notNull],
    ["of a source of 64 characters is kept", "g".repeat(64), [], null],
    ["has a source of no more", "g".repeat(65), [], check],
    ["has a source of at least one", "", [], check],
    ["has a source without a blank", "a gateway", [], check],
    ["has a source in ASCII", "게이트웨이", [], check],
    ["has a source of one line", "gateway\n", [], check],
  ])("%s", async ([, source, numbers, refused]) => {
    expect(await token(source, numbers)).toBe(refused);
  });

  test.for(["cli", "window"])("that 0.1.0 made for the source %s can still be revoked", async (source) => {
    expect(await token(source, [])).toBeNull();
    expect(
      await refusalOf("UPDATE service_token SET revoked_at = now() WHERE source = $1", [source]),
    ).toBeNull();
  });
});

test.for<[string, string[] | null, string | null]>([
  ["without misses is kept", [], null],
  ["with a miss is kept", ["2026-11-21T06:41:00.123Z"], null],
  ["has a list of misses, though an empty one", null, notNull],
])("a sender %s", async ([, missTimes, refused]) => {
  const text = "INSERT INTO inbound_sender (environment, phone, miss_times) VALUES ('live', $1, $2)";
  const phone = `0101234${missTimes?.length ?? 9}000`;
  expect(await refusalOf(text, [phone, missTimes])).toBe(refused);
});

test.for<[string, number, string | null]>([
  ["numeric", 5, check],
  ["numeric", 6, null],
  ["numeric", 10, null],
  ["numeric", 11, check],
  ["alphanumeric", 5, check],
  ["alphanumeric", 6, null],
  ["alphanumeric", 12, null],
  ["alphanumeric", 13, check],
])("of a used length, %s %i: refused with %s", async ([format, length, refused]) => {
  const text = "INSERT INTO used_code_length (code_format, code_length) VALUES ($1, $2)";
  expect(await refusalOf(text, [format, length])).toBe(refused);
});
