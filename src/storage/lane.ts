/**
 * Statements that follow one another on one connection without waiting for each other's answers (the protocol's pipelining). Each
 * is a transaction of its own. Two of a kind that meet at the same row, as creations do at their project's usage, would wait for
 * each other's commits on connections of their own; here the server turns to the second once it is done with the first, while
 * this process is still busy with what else has arrived.
 */

import type pg from "pg";
import type { PooledClient } from "./pooled-client.ts";

interface Held {
  readonly connection: Promise<pg.PoolClient>;
  isConnected: boolean;
  /** Statements under way. */
  users: number;
  isBroken: boolean;
  /** Why the database could not answer one of them. */
  unavailable: unknown;
}

/** Answers what runs a statement. The connection goes back once nothing is under way on it. */
export function createLane(options: {
  readonly connect: () => Promise<pg.PoolClient>;
  /** Whether somebody waits for a connection: then the lane takes its turn as everybody does. */
  readonly isWanted: () => boolean;
  /** Whether an error speaks of its statement alone, so that the connection is as good as it was. */
  readonly isOnlyRefused: (error: unknown) => boolean;
  /** Whether it says that the database cannot answer at the moment. */
  readonly isUnavailable: (error: unknown) => boolean;
}) {
  let held: Held | undefined;

  /** What comes from now on is asked on another one. */
  function leave(lane: Held): void {
    if (held === lane) held = undefined;
  }

  return async <Row extends unknown[]>(statement: pg.QueryArrayConfig): Promise<pg.QueryArrayResult<Row>> => {
    // Until it is connected it is among those who wait.
    if (held === undefined || (held.isConnected && options.isWanted())) {
      held = {
        connection: options.connect(),
        isConnected: false,
        users: 0,
        isBroken: false,
        unavailable: undefined,
      };
    }
    const lane = held;
    lane.users += 1;
    let client: pg.PoolClient;
    try {
      client = await lane.connection;
      lane.isConnected = true;
    } catch (error) {
      leave(lane);
      throw error;
    }
    try {
      return await client.query<Row>(statement);
    } catch (cause) {
      // Where an earlier statement on this connection got no answer, that is the error: this one's own is a consequence, such as that
      // the other was to prepare the statement of both, and whoever asked would try again and wait as long as that one did.
      const error = lane.unavailable ?? cause;
      if (!options.isOnlyRefused(error)) {
        leave(lane);
        lane.isBroken = true;
        // What follows has waited as long as this one, and may have to wait as long again.
        if (options.isUnavailable(error)) {
          lane.unavailable = error;
          (client as pg.ClientBase as PooledClient).breakOff(error as Error);
        }
      }
      throw error;
    } finally {
      lane.users -= 1;
      if (lane.users === 0) {
        leave(lane);
        client.release(lane.isBroken);
      }
    }
  };
}
