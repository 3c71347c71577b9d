/** Runs the script that docs/backup.md prints for a move from the embedded database. */

import { spawnSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import type pg from "pg";
import { expect, onTestFinished, test } from "vitest";
import { startEmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../../src/storage/migrations.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { createDatabase, openPool } from "../harness/database.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { readPage, root } from "./pages.ts";

const hasPsql = spawnSync("psql", ["--version"]).status === 0;
if (!hasPsql) noteAbsence("psql", "moving from the embedded database with psql alone");

const [script = "", ...others] = readPage("docs/backup.md")
  .blocks.map(({ code }) => code)
  .filter((code) => code.includes("session_replication_role"));

/** Rows that refer to others, with values that COPY has to escape, and none of which is there by default. */
const rows = String.raw`
  INSERT INTO project (id, name, code_format, code_length, validity_seconds, sms_template, rate_limit_per_minute)
    VALUES (gen_random_uuid(), E'번호 \\N \\. \t\n"', 'numeric', 8, 600, NULL, 60);
  INSERT INTO api_key (id, project_id, environment, name, digest, ending)
    SELECT gen_random_uuid(), id, 'live', '', sha256('\x00'), 'abcd' FROM project;
  INSERT INTO webhook_configuration (id, project_id, environment, version, url, events, secret)
    SELECT gen_random_uuid(), id, 'live', 1, 'https://shop.example', '{verification.verified,verification.expired}', decode(repeat('5c0a', 16), 'hex')
    FROM project;
  INSERT INTO audit_entry (id, actor, address, request_id, action, subject, project_id, details)
    SELECT gen_random_uuid(), 'service', '::1', 'req_1', 'project.created', 'prj_1', id, '{"name": "a\\tb"}' FROM project`;

async function contents(db: pg.Pool): Promise<Record<string, string>> {
  const { rows: tables } = await db.query<{ name: string }>(
    `SELECT relname AS name FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
       AND relname <> '_prisma_migrations'`,
  );
  const found: Record<string, string> = {};
  for (const { name } of tables) {
    const { rows: one } = await db.query(
      `SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text COLLATE "C"), '') AS text FROM "${name}" t`,
    );
    found[name] = one[0].text;
  }
  return found;
}

test("docs/backup.md prints one script that copies tables", () => {
  expect(script).toContain("COPY");
  expect(others).toEqual([]);
});

if (hasPsql)
  test("the script that moves the embedded database with psql copies every row", async () => {
    const directory = await mkdtemp(path.join(os.tmpdir(), "moving-"));
    onTestFinished(() => rm(directory, { recursive: true }));
    const embedded = await startEmbeddedPostgres({ dataDir: path.join(directory, ".data") });
    onTestFinished(() => embedded.stop());
    await applyMigrations(embedded.connection, { folder: path.join(root, "prisma/migrations") });
    const from = openPool(embedded.connection);
    onTestFinished(() => from.end());
    await from.query(rows);

    const target = await createDatabase();
    onTestFinished(() => target.drop());
    const to = openPool(target.connection);
    onTestFinished(() => to.end());
    expect(await contents(to)).not.toEqual(await contents(from));
    const run = spawnSync("bash", ["-c", script.replace(/^NEW=.*$/m, `NEW='${target.url}'`)], {
      cwd: directory,
      env: plainEnvironment({}),
      encoding: "utf8",
    });
    expect(run).toMatchObject({ stdout: "moved\n", stderr: "", status: 0 });
    expect(await contents(to)).toEqual(await contents(from));
  });
