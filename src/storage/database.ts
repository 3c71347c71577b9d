import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { Failure } from "../failures.ts";
import { watchConnections } from "./connection-watch.ts";
import { createLane } from "./lane.ts";
import { type StorageObserver, unobserved } from "./observer.ts";
import { PooledClient, UnpreparingClient } from "./pooled-client.ts";
import { decisiveSettings } from "./session-settings.ts";

/** A statement that a connection prepares once, under its name. */
export interface NamedStatement {
  readonly name: string;
  readonly text: string;
}

/** Where statements are run. */
export interface Statements {
  query<Row extends unknown[]>(statement: pg.QueryArrayConfig): Promise<pg.QueryArrayResult<Row>>;
  readonly observer: StorageObserver;
}

/** One connection of the pool for statements of one kind, held while any of them is under way. */
export interface Lane extends Statements {
  /** Whether a statement is sent while another is under way: the server begins it right after that one. */
  readonly isPipelined: boolean;
}

/**
 * The pool for the hot statements: `query` takes a connection for each. One that is refused for its data, or gives way to another,
 * leaves its connection as good as it was; the pool's own `query` closes it, and the next one takes 20 ms to come and to learn its
 * plans. What is administered goes through Prisma, on the same connections: prisma.ts.
 */
export interface Database extends Statements {
  readonly pool: pg.Pool;
  openLane(): Lane;
  /**
   * Where the server is silent, nobody waits for it any longer: what it has not answered for so long fails, and so does whatever
   * is asked from then on. Otherwise nothing changes.
   */
  endIfSilentFor(milliseconds: number): void;
  close(): Promise<void>;
}

/** Also for a connection of the pool to become free. */
export const connectTimeoutMs = 5_000;
/** The server gives up on a statement before the client does, so that its answer still arrives. */
const statementTimeoutMs = 8_000;
/** With the wait for a connection before it, what a caller may have to wait: less than fifteen seconds. */
const answerTimeoutMs = 9_500;
/** What is still under way at the end, when nobody waits for it any more, is broken off after this long. */
const closePatienceMs = 1_000;

/**
 * The hot statements join short arrays to tables by their keys, and a plan made while a table was small must not
 * scan it when it has grown: prepared plans live until the next ANALYZE, and a minute of growth is a hundred
 * thousand rows. (Without this a create took 96 µs of the server's time at first and 250 µs at sixty thousand
 * rows.) Before Postgres 18 a scan that is switched off counts as endlessly dear, where there is no other way, and what
 * is dear is compiled first where the server can: some statements then took longer than they are given.
 * These are hints: where a pooler drops them, the answers are the same. It can set them itself: docs/operations.md.
 */
const plannerSettings = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";

export function openDatabase(
  connection: pg.ClientConfig,
  options: {
    readonly poolSize: number;
    /** False behind a pooler that hands each transaction to another connection, and keeps no statements there. */
    readonly preparedStatements?: boolean;
    readonly onError: (error: Error) => void;
    readonly observer?: StorageObserver;
  },
): Database {
  // A pooler that takes the connection back after each transaction may do so between two statements on their way.
  const isPipelined = options.preparedStatements !== false;
  const pool = new pg.Pool({
    ...connection,
    Client: isPipelined ? PooledClient : UnpreparingClient,
    pipeline: isPipelined,
    max: options.poolSize,
    connectionTimeoutMillis: connectTimeoutMs,
    statement_timeout: statementTimeoutMs,
    idle_in_transaction_session_timeout: statementTimeoutMs,
    application_name: "phoneproof",
    keepAlive: true,
    onConnect: async (client) => {
      watch.keep(client as PooledClient);
      await client.query(`${decisiveSettings}; ${plannerSettings}`);
      await watch.meet(client as PooledClient);
    },
  });
  const watch = watchConnections(pool, connection, { answerTimeoutMs, onGivenUp: options.onError });
  // An idle connection that breaks is replaced by the pool; without a listener it would end the process.
  let closing = false;
  let silent = false;
  pool.on("error", (error) => {
    if (!closing) options.onError(error);
  });
  // The pool takes its own listener off a connection that is in use, and an error event that nobody hears ends the
  // process. Whoever uses the connection learns of its loss from the statement that fails.
  pool.on("connect", (client) => {
    client.on("error", () => {});
  });
  const observer = options.observer ?? unobserved;

  async function query<Row extends unknown[]>(statement: pg.QueryArrayConfig) {
    if (silent) throw new Failure("service_unavailable");
    const client = await connectionOf(pool);
    try {
      const result = await client.query<Row>(statement);
      client.release();
      return result;
    } catch (error) {
      client.release(!isOnlyRefused(error));
      throw error;
    }
  }

  function openLane(): Lane {
    if (!isPipelined) return { observer, isPipelined, query };
    const ask = createLane({
      connect: () => connectionOf(pool),
      // Whoever asks while some are idle waits for his until the next tick.
      isWanted: () => pool.waitingCount > pool.idleCount,
      isOnlyRefused,
      isUnavailable: isDatabaseUnavailable,
    });
    return {
      observer,
      isPipelined,
      async query(statement) {
        if (silent) throw new Failure("service_unavailable");
        return ask(statement);
      },
    };
  }

  return {
    pool,
    query,
    openLane,
    observer,
    endIfSilentFor(milliseconds) {
      silent ||= watch.breakOff(milliseconds) > 0;
    },
    async close() {
      closing = true;
      try {
        if (!pool.ending) {
          await Promise.race([pool.end(), delay(closePatienceMs, undefined, { ref: false })]);
        }
      } finally {
        watch.stop();
      }
    },
  };
}

/** SQLSTATE classes that speak of the statement alone: its data, the schema's rules, others that it ran beside. */
const refusedStates = /^(22|23|40)/;

const isOnlyRefused = (error: unknown) =>
  error instanceof pg.DatabaseError && refusedStates.test(error.code ?? "");

/** SQLSTATE classes and states that speak of the server, not of the statement's data. */
const unavailableStates = /^(08|28|40|53|57|58|25006|3D000|55000|55P03)/;

/** Prisma's: the database cannot be reached, or has no connection left, also for a transaction. */
const unavailablePrismaCodes = /^(P1\d{3}|P2024|P2028|P2037)$/;

/**
 * Whether an error says that the database cannot answer at the moment, rather than that it refuses
 * this statement. The driver's own errors (connection lost, timed out) carry no SQLSTATE.
 */
export function isDatabaseUnavailable(error: unknown): boolean {
  if (error instanceof pg.DatabaseError)
    return error.code === undefined || unavailableStates.test(error.code);
  if (error instanceof Failure) return error.code === "service_unavailable";
  const { kind, originalCode } = adapterCause(error);
  if (typeof originalCode === "string") return unavailableStates.test(originalCode);
  return unreachableKinds.has(kind) || isDriverError(error);
}

/** What Prisma's adapter calls errors in which the server has not answered. */
const unreachableKinds: ReadonlySet<unknown> = new Set([
  "DatabaseNotReachable",
  "ConnectionClosed",
  "SocketTimeout",
  "TlsConnectionError",
]);

/** What Prisma's adapter made of the driver's error: with the SQLSTATE, where the server has answered with one. */
function adapterCause(error: unknown): { readonly kind?: unknown; readonly originalCode?: unknown } {
  const { meta } = (error ?? {}) as {
    meta?: { driverAdapterError?: { cause?: { kind?: unknown; originalCode?: unknown } } };
  };
  return meta?.driverAdapterError?.cause ?? {};
}

/** Node's: ECONNREFUSED, EPIPE, EAI_AGAIN, ERR_STREAM_DESTROYED, … */
const systemErrors = /^(E[A-Z_]+|ERR_STREAM_\w+)$/;
const driverMessages =
  /timeout|Connection terminated|Client has encountered a connection error|Cannot use a pool after|not queryable/i;

function isDriverError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = "code" in error && typeof error.code === "string" ? error.code : "";
  return systemErrors.test(code) || unavailablePrismaCodes.test(code) || driverMessages.test(error.message);
}

/**
 * Whether an error says that the database will not have this data, now or later: a value it cannot read (class 22), or
 * one that breaks a rule of the schema (class 23).
 */
export function isDataRefused(error: unknown): boolean {
  return error instanceof pg.DatabaseError && /^2[23]/.test(error.code ?? "");
}

/** The SQLSTATE with which the database refused a statement: of its own error, or of what a caller is told of it. */
function refusedState(error: unknown): string | undefined {
  const refusal = error instanceof Failure ? error.cause : error;
  return refusal instanceof pg.DatabaseError ? refusal.code : undefined;
}

/** Whether a statement gave way to another that waited for it. */
export function isDeadlock(error: unknown): boolean {
  return refusedState(error) === "40P01";
}

/** What a caller is told of a statement's error: a database that is away is nobody's fault of this call. */
export function asStorageError(error: unknown): unknown {
  if (error instanceof Failure) return error;
  return isDatabaseUnavailable(error) ? new Failure("service_unavailable", { cause: error }) : error;
}

/**
 * Runs a prepared statement on a pooled connection; rows are arrays of columns. A connection on which the
 * statement timed out is closed, not reused: the server may still be busy with it.
 */
export async function runStatement(
  database: Statements,
  statement: NamedStatement,
  values: readonly unknown[],
): Promise<unknown[][]> {
  try {
    const { name, text } = statement;
    const run = () =>
      database.query<unknown[]>({ name, text, values: values as unknown[], rowMode: "array" });
    const traced = database.observer.statement;
    const result = await (traced ? traced(name, run, isOnlyRefused) : run());
    return result.rows;
  } catch (error) {
    throw asStorageError(error);
  }
}

/**
 * The same, or null where the database refuses the statement with one of these states: then nothing has happened. (A deadlock
 * counts among the database's own troubles and comes wrapped.)
 */
export async function tryStatement(
  database: Statements,
  statement: NamedStatement,
  values: readonly unknown[],
  refusals: RegExp,
): Promise<unknown[][] | null> {
  try {
    return await runStatement(database, statement, values);
  } catch (error) {
    if (refusals.test(refusedState(error) ?? "")) return null;
    throw error;
  }
}

/** Whatever keeps a connection from being made, it says nothing about what was to be asked on it. */
async function connectionOf(pool: pg.Pool): Promise<pg.PoolClient> {
  return pool.connect().catch((cause: unknown) => {
    throw new Failure("service_unavailable", { cause });
  });
}

/** Commits if `work` answers something. A connection that failed in a transaction is not used again. */
export async function inTransaction<T>(
  database: Database,
  work: (client: pg.PoolClient) => Promise<T | null>,
): Promise<T | null> {
  const client = await connectionOf(database.pool);
  try {
    await client.query("BEGIN");
    const result = await work(client);
    await client.query(result === null ? "ROLLBACK" : "COMMIT");
    client.release();
    return result;
  } catch (error) {
    client.release(true);
    throw asStorageError(error);
  }
}
