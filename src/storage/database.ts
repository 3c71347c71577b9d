import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { Failure } from "../failures.ts";
import { watchConnections } from "./connection-watch.ts";
import { asStorageError, isDatabaseUnavailable, isOnlyRefused, refusedState } from "./database-errors.ts";
import { type StorageObserver, unobserved } from "./observer.ts";
import { createPipeline } from "./pipeline.ts";
import { PooledClient, UnpreparingClient } from "./pooled-client.ts";
import { giveUpVanishedClient, requiredSettings } from "./session-settings.ts";

/** A statement that a connection prepares once, under its name. */
export interface NamedStatement {
  readonly name: string;
  readonly text: string;
}

/** Runs statements: the pool, a pipeline, or the connection of a transaction. */
export interface Statements {
  query<Row extends unknown[]>(statement: pg.QueryArrayConfig): Promise<pg.QueryArrayResult<Row>>;
  readonly observer: StorageObserver;
}

/** A pooled connection for statements of one kind, held while any of them is in flight (pipeline.ts). */
export interface Pipeline extends Statements {
  /** Whether a statement may be sent before the previous one is answered; the server then runs it right after that one. */
  readonly isPipelined: boolean;
}

/**
 * The connection pool for the hot statements; `query` checks out a connection for each. A statement that fails because of its
 * data, or as the victim of a deadlock, leaves its connection usable, so `query` returns it to the pool. `pool.query` would
 * close it, and a new one takes 20 ms to connect and to plan its statements again. Administration goes through Prisma, on the
 * same connections: prisma.ts.
 */
export interface Database extends Statements {
  readonly pool: pg.Pool;
  openPipeline(): Pipeline;
  /** Throws service_unavailable if a transaction would wait for the synchronous standby. Call before each one that writes. */
  requireCommits(): void;
  /**
   * For shutdown: fails every statement that has been unanswered for at least `milliseconds`. If there was any, every later
   * statement fails at once; otherwise nothing changes.
   */
  endIfSilentFor(milliseconds: number): void;
  close(): Promise<void>;
}

/** Timeout for opening a connection, and for waiting until a pooled one is free. */
const connectTimeoutMs = 5_000;
/** The server's statement timeout, shorter than the client's, so that the server's error still arrives. */
export const statementTimeoutMs = 8_000;
/** The client's statement timeout. Together with the wait for a connection a caller waits for less than 15 s. */
const answerTimeoutMs = 9_500;
/** How long `close` waits for statements in flight, whose callers have gone, before it breaks their connections off. */
const closeTimeoutMs = 1_000;

/**
 * The hot statements join short arrays to tables by key. A plan made while a table was small must not use a sequential scan
 * once the table has grown: prepared plans live until the next ANALYZE, and a minute of growth is a hundred thousand rows.
 * (Without these settings a create took 96 µs of the server's time at first and 250 µs at sixty thousand rows.) JIT is off
 * because before Postgres 18 a disabled sequential scan that is the only possible plan gets an enormous cost, and the server
 * JIT-compiles costly plans: some statements then exceeded their timeout. The settings only affect speed: if a pooler drops
 * them, the results are the same. The pooler can set them itself: docs/operations.md.
 */
const plannerSettings = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";

export function openDatabase(
  connection: pg.ClientConfig,
  options: {
    readonly poolSize: number;
    /**
     * False behind a transaction-mode pooler, which gives each transaction another connection and keeps no prepared statements.
     */
    readonly preparedStatements?: boolean;
    readonly onError: (error: Error) => void;
    readonly observer?: StorageObserver;
  },
): Database {
  // A transaction-mode pooler may take the connection back between two pipelined statements.
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
      await client.query(`${requiredSettings}; ${plannerSettings}; ${giveUpVanishedClient("SET")}`);
      await watch.meet(client as PooledClient);
    },
  });
  const watch = watchConnections(pool, connection, { answerTimeoutMs, onGivenUp: options.onError });
  // The pool replaces an idle connection that breaks; without a listener the error event would end the process.
  let closing = false;
  let silent = false;
  pool.on("error", (error) => {
    if (!closing) options.onError(error);
  });
  // The pool removes its own listener from a checked-out connection, and an unhandled error event ends the process. The user of
  // the connection learns of its loss from the statement that fails, but between two statements of a transaction not of the
  // server's reason, such as a timeout.
  pool.on("connect", (client) => {
    client.on("error", (error) => {
      if ((client as pg.ClientBase as PooledClient).isInUse && error instanceof pg.DatabaseError)
        options.onError(error);
    });
  });
  const observer = options.observer ?? unobserved;

  /**
   * Refuses a statement while one of the same kind waits for the synchronous standby, and got no answer in time: this one would
   * wait as long, on another connection, and those that are left are for statements that do not wait, such as reads that write
   * nothing.
   */
  function requireAnswers(text: string): void {
    if (silent || watch.awaitsStandby(text)) throw new Failure("service_unavailable");
  }

  async function query<Row extends unknown[]>(statement: pg.QueryArrayConfig) {
    requireAnswers(statement.text);
    const client = await connectionOf(pool);
    try {
      const result = await client.query<Row>(statement);
      client.release();
      return result;
    } catch (error) {
      const isUsable = isOnlyRefused(error);
      client.release(!isUsable);
      // The call is logged as service_unavailable, without the reason. Errors of the connection itself are not reported here: a
      // server that stops breaks all connections, and the LISTEN connection reports that.
      if (!isUsable && error instanceof pg.DatabaseError && isDatabaseUnavailable(error))
        options.onError(error);
      throw error;
    }
  }

  function openPipeline(): Pipeline {
    if (!isPipelined) return { observer, isPipelined, query };
    const ask = createPipeline({
      connect: () => connectionOf(pool),
      // While connections are idle, a new request for one counts as waiting until the next tick.
      isWanted: () => pool.waitingCount > pool.idleCount,
      isOnlyRefused,
      isUnavailable: isDatabaseUnavailable,
    });
    return {
      observer,
      isPipelined,
      async query(statement) {
        requireAnswers(statement.text);
        return ask(statement);
      },
    };
  }

  return {
    pool,
    query,
    openPipeline,
    observer,
    requireCommits: () => requireAnswers("COMMIT"),
    endIfSilentFor(milliseconds) {
      silent ||= watch.breakOff(milliseconds) > 0;
    },
    async close() {
      closing = true;
      try {
        if (!pool.ending) {
          await Promise.race([pool.end(), delay(closeTimeoutMs, undefined, { ref: false })]);
        }
      } finally {
        watch.stop();
      }
    },
  };
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
 * The same, or null if the statement fails with a SQLSTATE that matches `refusals`; it then had no effect. (A deadlock counts
 * as unavailability of the database, so its error arrives wrapped in a `Failure`.)
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

/** Every failure to get a connection is service_unavailable: it says nothing about the statement. */
async function connectionOf(pool: pg.Pool): Promise<pg.PoolClient> {
  return pool.connect().catch((cause: unknown) => {
    throw new Failure("service_unavailable", { cause });
  });
}

/** Commits, or rolls back if `work` returns null. A connection that failed in a transaction is closed, not reused. */
export async function inTransaction<T>(
  database: Database,
  work: (client: pg.PoolClient) => Promise<T | null>,
): Promise<T | null> {
  database.requireCommits();
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
