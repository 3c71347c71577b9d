import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { applyMigrations } from "../../src/storage/migrations.ts";
import { createDatabase, type TestDatabase } from "../harness/database.ts";
import { openPrismaEngine, type PrismaEngine } from "../harness/prisma-engine.ts";

const prisma = path.join(import.meta.dirname, "../../prisma");
const cleanUp: (() => unknown)[] = [];

afterEach(async () => {
  for (const task of cleanUp.splice(0).reverse()) await task();
});

async function database(options: { empty?: boolean } = {}): Promise<TestDatabase> {
  const created = await createDatabase(options);
  cleanUp.push(created.drop);
  return created;
}

async function engineOn({ url }: TestDatabase, folder: string): Promise<PrismaEngine> {
  const engine = await openPrismaEngine({
    url,
    schema: path.join(folder, "schema.prisma"),
    migrations: path.join(folder, "migrations"),
  });
  cleanUp.push(engine.close);
  return engine;
}

async function temporaryFolder(): Promise<string> {
  const folder = await mkdtemp(path.join(os.tmpdir(), "phoneproof-prisma-"));
  cleanUp.push(() => rm(folder, { recursive: true }));
  return folder;
}

async function copyOfPrisma(): Promise<string> {
  const folder = await temporaryFolder();
  await cp(prisma, folder, { recursive: true });
  return folder;
}

const clean = { editedMigrationNames: [], failedMigrationNames: [], hasMigrationsTable: true, history: null };

describe("according to Prisma's own engine", () => {
  test("the migrations create the database that schema.prisma describes", async () => {
    const engine = await engineOn(await database(), prisma);
    expect(await engine.scriptToSchema()).toBe("");
  });

  test("the history that our runner writes is clean", async () => {
    const engine = await engineOn(await database(), prisma);
    expect(await engine.diagnose()).toEqual(clean);
  });

  test("migrations applied by our runner are not applied again", async () => {
    const engine = await engineOn(await database(), prisma);
    expect(await engine.deploy()).toEqual([]);
  });

  test("migrations applied by the engine are not applied again by our runner", async () => {
    const folder = await temporaryFolder();
    await writeFile(path.join(folder, "schema.prisma"), 'datasource db {\n  provider = "postgresql"\n}\n');
    await mkdir(path.join(folder, "migrations/20260101000000_first"), { recursive: true });
    await writeFile(
      path.join(folder, "migrations/20260101000000_first/migration.sql"),
      "CREATE TABLE first (id int);",
    );
    const empty = await database({ empty: true });
    const engine = await engineOn(empty, folder);
    expect(await engine.deploy()).toEqual(["20260101000000_first"]);
    const again = await applyMigrations(empty.connection, { folder: path.join(folder, "migrations") });
    expect(again).toEqual({ applied: [] });
  });
});

describe("the engine would detect", () => {
  test("a model without a table", async () => {
    const folder = await copyOfPrisma();
    const schema = path.join(folder, "schema.prisma");
    const planted = 'model Planted {\n  id Int @id\n\n  @@map("planted")\n}\n';
    await writeFile(schema, `${await readFile(schema, "utf8")}\n${planted}`);
    const engine = await engineOn(await database(), folder);
    expect(await engine.scriptToSchema()).toContain('CREATE TABLE "planted"');
  });

  test("an edited migration, and one that is missing from the database", async () => {
    const folder = await copyOfPrisma();
    const migrations = path.join(folder, "migrations");
    const [first = ""] = (await readdir(migrations)).sort();
    const file = path.join(migrations, first, "migration.sql");
    await writeFile(file, `${await readFile(file, "utf8")}\n-- edited\n`);
    await mkdir(path.join(migrations, "29990101000000_next"));
    await writeFile(path.join(migrations, "29990101000000_next/migration.sql"), "SELECT 1;");
    const engine = await engineOn(await database(), folder);
    expect(await engine.diagnose()).toEqual({
      ...clean,
      editedMigrationNames: [first],
      history: { diagnostic: "databaseIsBehind", unappliedMigrationNames: ["29990101000000_next"] },
    });
  });
});
