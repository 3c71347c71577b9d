/**
 * Pipelines statements on one connection: each is sent without waiting for the answer to the one before, and is a transaction
 * of its own. On separate connections two statements that lock the same row, as creations lock their project's usage, would
 * wait for each other's commits. On one connection the server starts the second once the first is done, while this process is
 * still busy with other work.
 */

import type pg from "pg";
import type { PooledClient } from "./pooled-client.ts";

interface Held {
  readonly connection: Promise<pg.PoolClient>;
  isConnected: boolean;
  /** Statements in flight. */
  users: number;
  isBroken: boolean;
  /** The error, once the database has failed to answer one of them. */
  unavailable: unknown;
}

/** Returns a function that runs a statement. The connection goes back to the pool once no statement is in flight on it. */
export function createPipeline(options: {
  readonly connect: () => Promise<pg.PoolClient>;
  /** Whether others wait for a connection: statements then give up theirs and queue for another one. */
  readonly isWanted: () => boolean;
  /** Whether an error concerns its statement alone, so that the connection stays usable. */
  readonly isOnlyRefused: (error: unknown) => boolean;
  /** Whether an error means that the database is unavailable. */
  readonly isUnavailable: (error: unknown) => boolean;
}) {
  let held: Held | undefined;

  /** Later statements use another connection. */
  function leave(shared: Held): void {
    if (held === shared) held = undefined;
  }

  return async <Row extends unknown[]>(statement: pg.QueryArrayConfig): Promise<pg.QueryArrayResult<Row>> => {
    // While it is being connected, it is itself one of those that wait.
    if (held === undefined || (held.isConnected && options.isWanted())) {
      held = {
        connection: options.connect(),
        isConnected: false,
        users: 0,
        isBroken: false,
        unavailable: undefined,
      };
    }
    const shared = held;
    shared.users += 1;
    let client: pg.PoolClient;
    try {
      client = await shared.connection;
      shared.isConnected = true;
    } catch (error) {
      leave(shared);
      throw error;
    }
    try {
      return await client.query<Row>(statement);
    } catch (cause) {
      // If the database has failed to answer an earlier statement on this connection, that is the error to report. This
      // statement's own error is a consequence, for example that the earlier one was to prepare the statement for both; a
      // caller that got it would retry and wait as long again.
      const error = shared.unavailable ?? cause;
      if (!options.isOnlyRefused(error)) {
        leave(shared);
        shared.isBroken = true;
        // The statements behind this one have waited as long, and might have to wait as long again.
        if (options.isUnavailable(error)) {
          shared.unavailable = error;
          const pooled = client as pg.ClientBase as PooledClient;
          if (!pooled.isAbandoned) pooled.breakOff(error as Error);
        }
      }
      throw error;
    } finally {
      shared.users -= 1;
      if (shared.users === 0) {
        leave(shared);
        client.release(shared.isBroken);
      }
    }
  };
}
