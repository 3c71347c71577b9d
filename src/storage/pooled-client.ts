import type { Socket } from "node:net";
import pg from "pg";
import { runningTime } from "../running-time.ts";

type Answered = (error: Error | null, result: pg.QueryResult) => void;

/**
 * The driver's client, which also records since when a statement has been unanswered; connection-watch.ts enforces the timeout.
 *
 * The driver's own timeout (`query_timeout`) puts a function on each statement that closes over that statement. Such reference
 * cycles were seen to survive V8's young-generation collections, with all rows and parameters, until the next full collection:
 * a seventh of this process's CPU time for a read, and a fifth of its memory.
 */
export class PooledClient extends pg.Client {
  /** Since when the server has owed its next answer, by `runningTime`. Undefined if no statement is unanswered. */
  askedAt: number | undefined = undefined;
  /** Checked out of the pool, whether or not a statement is in flight. */
  isInUse = false;
  /** Process id of its server backend. Undefined behind a pooler, where a connection has no backend of its own. */
  backend: number | undefined = undefined;
  #unanswered = 0;

  constructor(config?: pg.ClientConfig) {
    super(config);
    const query = this.query.bind(this) as (...given: unknown[]) => unknown;
    const ask = (given: readonly unknown[], answered: Answered): unknown => {
      const end = this.#begin();
      try {
        return query(...given, answering(answered, end));
      } catch (error) {
        end();
        throw error;
      }
    };
    const asked = (...given: unknown[]): unknown => {
      const last = given.at(-1);
      return typeof last === "function"
        ? ask(given.slice(0, -1), last as Answered)
        : queryAsPromise(ask, given);
    };
    this.query = asked as typeof this.query;
  }

  /**
   * Destroys the socket without the protocol's Terminate message, which nobody would answer; the pool sees a broken connection.
   */
  breakOff(error: Error): void {
    socketOf(this).destroy(error);
  }

  /**
   * Starts a statement's time and returns the function that ends it. The server answers in order, so the next statement's time
   * starts when the previous one is answered.
   */
  #begin(): () => void {
    if (this.#unanswered++ === 0) this.askedAt = runningTime.now();
    let isOpen = true;
    return () => {
      // The driver may call back twice if it could not send a parameter.
      if (!isOpen) return;
      isOpen = false;
      this.askedAt = --this.#unanswered === 0 ? undefined : runningTime.now();
    };
  }
}

export function socketOf(client: pg.Client): Socket {
  return (client as unknown as { readonly connection: { readonly stream: Socket } }).connection.stream;
}

/**
 * Makes the statements after the loss of a connection fail with what ended it. The driver reports a loss between two statements
 * as an event alone, which without a listener ends the process, and of the next statement says only that the client "is not
 * queryable".
 */
export function failWithLoss(client: pg.Client): void {
  let loss: Error | undefined;
  client.on("error", (error) => {
    // What follows the first error is only that the connection has ended.
    loss ??= error;
    client.query = (() => Promise.reject(loss)) as typeof client.query;
  });
}

/** A function of its own, so that the callback's closure does not hold the statement. */
function answering(answered: Answered, end: () => void): Answered {
  return (error, result) => {
    end();
    answered(error, result);
  };
}

function queryAsPromise(
  ask: (given: readonly unknown[], answered: Answered) => unknown,
  given: readonly unknown[],
) {
  return new Promise((resolve, reject) => {
    ask(given, (error, result) => {
      if (error) reject(error);
      else resolve(result);
    });
  }).catch((error) => {
    // Makes the stack trace lead to the caller, as the driver does; until here it leads to the socket.
    Error.captureStackTrace(error);
    throw error;
  });
}

/** Removes the names of statements, so that none stays prepared: each is sent and planned again. */
export class UnpreparingClient extends PooledClient {
  constructor(config?: pg.ClientConfig) {
    super(config);
    const query = this.query.bind(this) as (...given: unknown[]) => unknown;
    const unnamed = (statement: unknown, ...rest: unknown[]) =>
      query(typeof statement === "object" ? { ...statement, name: undefined } : statement, ...rest);
    this.query = unnamed as typeof this.query;
  }
}
