/**
 * Prisma's schema engine, compiled to WebAssembly, as an independent check of our migrations. Only for tests: run this way it
 * splits scripts at each semicolon and does not apply them atomically.
 */
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { PrismaPg } from "@prisma/adapter-pg";
import { bindMigrationAwareSqlAdapterFactory, ColumnTypeEnum } from "@prisma/driver-adapter-utils";
import {
  type MigrationList,
  SchemaEngine,
  type SchemaFilter,
  type SchemasContainer,
} from "@prisma/schema-engine-wasm";
import pg from "pg";

const CHAR = 18;
const CHAR_MARK = "char:";
const NO_FILTER: SchemaFilter = { externalTables: [], externalEnums: [] };

export interface PrismaEngine {
  /** The SQL that would change the database into the schema; empty if they agree. */
  scriptToSchema(): Promise<string>;
  /** Prisma's diagnosis of the database's migration history. */
  diagnose(): ReturnType<SchemaEngine["diagnoseMigrationHistory"]>;
  /** Applies pending migrations, as `prisma migrate deploy` would. */
  deploy(): Promise<string[]>;
  close(): Promise<void>;
}

// The engine passes the message of a panic to this function before it stops; without it the panic's cause is lost.
Object.assign(globalThis, { PRISMA_WASM_PANIC_REGISTRY: { set_message: console.error } });

export async function openPrismaEngine(options: {
  url: string;
  schema: string;
  migrations: string;
}): Promise<PrismaEngine> {
  const schema: SchemasContainer = {
    files: [{ path: options.schema, content: await readFile(options.schema, "utf8") }],
  };
  const datamodels = schema.files.map(({ path: file, content }): [string, string] => [file, content]);
  const pool = catalogPool(options.url);
  const adapter = bindMigrationAwareSqlAdapterFactory(new CatalogAdapter(pool));
  const engine = await SchemaEngine.new({ datamodels }, () => undefined, adapter);
  const migrationsList = await listMigrations(options.migrations);

  return {
    scriptToSchema: async () => {
      const { stdout } = await engine.diff({
        from: { tag: "schemaDatasource", ...schema, configDir: path.dirname(options.schema) },
        to: { tag: "schemaDatamodel", ...schema },
        script: true,
        exitCode: null,
        filters: NO_FILTER,
      });
      return (stdout ?? "").replace(/^-- This is an empty migration\.\s*$/m, "").trim();
    },
    diagnose: () =>
      engine.diagnoseMigrationHistory({ migrationsList, optInToShadowDatabase: false, filters: NO_FILTER }),
    deploy: async () =>
      (await engine.applyMigrations({ migrationsList, filters: NO_FILTER })).appliedMigrationNames,
    close: async () => {
      engine.free();
      await pool.end();
    },
  };
}

/**
 * The adapter does not support "char", the one-byte type of catalogue columns that the engine queries. The adapter is therefore
 * shown text with a marker in the column's name, and the engine gets the type and name that it expects.
 */
function catalogPool(url: string): pg.Pool {
  const pool = new pg.Pool({ connectionString: url });
  const query = pool.query.bind(pool) as (...args: unknown[]) => Promise<pg.QueryResult>;
  return Object.assign(pool, {
    query: async (...args: unknown[]) => {
      const result = await query(...args);
      for (const field of result.fields) {
        if (field.dataTypeID !== CHAR) continue;
        field.dataTypeID = pg.types.builtins.TEXT;
        field.name = CHAR_MARK + field.name;
      }
      return result;
    },
  });
}

class CatalogAdapter extends PrismaPg {
  override async connect(): ReturnType<PrismaPg["connect"]> {
    const connection = await super.connect();
    const queryRaw = connection.queryRaw.bind(connection);
    connection.queryRaw = async (query) => {
      const result = await queryRaw(query);
      const isChar = result.columnNames.map((name) => name.startsWith(CHAR_MARK));
      return {
        ...result,
        columnNames: result.columnNames.map((name) => name.replace(CHAR_MARK, "")),
        columnTypes: result.columnTypes.map((type, i) => (isChar[i] ? ColumnTypeEnum.Character : type)),
      };
    };
    return connection;
  }
}

async function listMigrations(folder: string): Promise<MigrationList> {
  const entries = await readdir(folder, { withFileTypes: true });
  const names = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
  const lockfile = "migration_lock.toml";
  return {
    baseDir: folder,
    lockfile: {
      path: lockfile,
      content: await readFile(path.join(folder, lockfile), "utf8").catch(() => null),
    },
    shadowDbInitScript: "",
    migrationDirectories: await Promise.all(
      names.sort().map(async (name) => ({
        path: name,
        migrationFile: {
          path: "migration.sql",
          content: {
            tag: "ok" as const,
            value: await readFile(path.join(folder, name, "migration.sql"), "utf8"),
          },
        },
      })),
    ),
  };
}
