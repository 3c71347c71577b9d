/** Rules that the database itself enforces, whatever writes to it. */

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

/** The SQLSTATE of the refusal; null if it was accepted. */
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
    ["without source and numbers is accepted", null, [], null],
    ["with a source and numbers is accepted", "sktelecom.seoul-1_A", ["15771234"], null],
    ["with a source must have a list of numbers, even if empty", "gateway", null, notNull],
    ["without a source must have a list of numbers, even if empty", null, null, notNull],
    ["with a source of 64 characters is accepted", "g".repeat(64), [], null],
    ["with a longer source is refused", "g".repeat(65), [], check],
    ["with an empty source is refused", "", [], check],
    ["with a blank in its source is refused", "a gateway", [], check],
    ["with a source beyond ASCII is refused", "게이트웨이", [], check],
    ["with a line break in its source is refused", "gateway\n", [], check],
  ])("%s", async ([, source, numbers, refused]) => {
    expect(await token(source, numbers)).toBe(refused);
  });

  test.for(["cli", "window"])("that 0.1.0 created for the source %s can still be revoked", async (source) => {
    expect(await token(source, [])).toBeNull();
    expect(
      await refusalOf("UPDATE service_token SET revoked_at = now() WHERE source = $1", [source]),
    ).toBeNull();
  });
});

test.for<[string, string[] | null, string | null]>([
  ["without misses is accepted", [], null],
  ["with a miss is accepted", ["2026-11-21T06:41:00.123Z"], null],
  ["must have a list of misses, even if empty", null, notNull],
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
])("a used code length of %s %i: refused with %s", async ([format, length, refused]) => {
  const text = "INSERT INTO used_code_length (code_format, code_length) VALUES ($1, $2)";
  expect(await refusalOf(text, [format, length])).toBe(refused);
});
