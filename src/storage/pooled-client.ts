import type { Socket } from "node:net";
import pg from "pg";
import { runningTime } from "../running-time.ts";

type Answered = (error: Error | null, result: pg.QueryResult) => void;
type Release = (error?: Error | boolean) => void;

interface Unanswered {
  readonly text: string;
  /** Undefined once the caller has been called. */
  answered: Answered | undefined;
  isOpen: boolean;
  /** The one sent after it. */
  next: Unanswered | undefined;
}

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
  /** Process id of its server backend, once that is known. Null behind a pooler, where a connection has no backend of its own. */
  backend: number | null | undefined = undefined;
  /**
   * The unanswered statements, each with the next: an array of them, with its elements added and removed, made a creation and a
   * read cost this process a sixth more time.
   */
  #first: Unanswered | undefined;
  #last: Unanswered | undefined;
  #abandonedFor: Error | undefined;
  #release: Release | undefined;
  /** Gives an abandoned connection back, once everything is answered. */
  #releaseLater: Release | undefined;

  constructor(config?: pg.ClientConfig) {
    super(config);
    const query = this.query.bind(this) as (...given: unknown[]) => unknown;
    const ask = (given: readonly unknown[], answered: Answered): unknown => {
      const one = this.#begin(given[0], answered);
      if (one === undefined) return;
      try {
        return query(...given, this.#answering(one));
      } catch (error) {
        this.#end(one);
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
   * Fails every statement on this connection, which stays open until the server has answered them, and is then closed. Until
   * then it counts as one of the pool's: closing it would not end the server's work, and its place would go to another.
   */
  abandon(error: Error): void {
    this.#abandonedFor = error;
    for (let one = this.#first; one; one = one.next) answer(one, error, undefined as never);
  }

  get isAbandoned(): boolean {
    return this.#abandonedFor !== undefined;
  }

  /** The text of the statement that the server is to answer next. */
  get unansweredText(): string | undefined {
    return this.#first?.text;
  }

  /** The pool sets this whenever it lends the connection. */
  set release(release: Release) {
    this.#release = release;
  }

  get release(): Release {
    const release = this.#release as Release;
    return (error) => {
      if (!this.isAbandoned) release(error);
      else if (this.#first === undefined) release(true);
      else this.#releaseLater = release;
    };
  }

  /**
   * Starts a statement's time. The server answers in order, so the next statement's time starts when the previous one is
   * answered.
   */
  #begin(statement: unknown, answered: Answered): Unanswered | undefined {
    const abandonedFor = this.#abandonedFor;
    if (abandonedFor !== undefined) {
      process.nextTick(() => answered(abandonedFor, undefined as never));
      return undefined;
    }
    const one: Unanswered = { text: textOf(statement), answered, isOpen: true, next: undefined };
    if (this.#last) this.#last.next = one;
    else {
      this.#first = one;
      this.askedAt = runningTime.now();
    }
    this.#last = one;
    return one;
  }

  /** A function of its own, so that the callback's closure does not hold the statement. */
  #answering(one: Unanswered): Answered {
    return (error, result) => {
      this.#end(one);
      answer(one, error, result);
    };
  }

  #end(one: Unanswered): void {
    // The driver may call back twice, and before its turn, if it could not send a parameter.
    if (!one.isOpen) return;
    one.isOpen = false;
    while (this.#first?.isOpen === false) {
      const { next } = this.#first;
      this.#first.next = undefined;
      this.#first = next;
    }
    if (this.#first) this.askedAt = runningTime.now();
    else {
      this.#last = undefined;
      this.askedAt = undefined;
      this.#releaseLater?.(true);
    }
  }
}

function answer(one: Unanswered, error: Error | null, result: pg.QueryResult): void {
  const { answered } = one;
  one.answered = undefined;
  answered?.(error, result);
}

function textOf(statement: unknown): string {
  return typeof statement === "string" ? statement : ((statement as pg.QueryConfig | null)?.text ?? "");
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
