import type { Socket } from "node:net";
import pg from "pg";

type Answered = (error: Error | null, result: pg.QueryResult) => void;

/**
 * The driver's client, which says since when a statement is without its answer; whoever watches gives statements their time.
 *
 * The driver could do that by itself (`query_timeout`), with a function on each statement that closes over that same
 * statement. Rings of that kind were seen to outlive V8's collections of young objects, with all rows and parameters, up to
 * the next full one: a seventh of what a read took of the process, and a fifth of its memory.
 */
export class PooledClient extends pg.Client {
  /** By performance.now(). Undefined while nothing is asked. */
  askedAt: number | undefined = undefined;
  /** Handed out by the pool, whether or not anything is asked. */
  isInUse = false;
  /** The process that serves it. Undefined behind a pooler, where it is none of its own. */
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
      return typeof last === "function" ? ask(given.slice(0, -1), last as Answered) : promised(ask, given);
    };
    this.query = asked as typeof this.query;
  }

  /** Without a farewell, which nobody would answer; the pool hears of it as of any connection that breaks. */
  breakOff(error: Error): void {
    const { connection } = this as unknown as { readonly connection: { readonly stream: Socket } };
    connection.stream.destroy(error);
  }

  /** Answers what ends it. The server answers in order: the next one's time begins where the one before ends. */
  #begin(): () => void {
    if (this.#unanswered++ === 0) this.askedAt = performance.now();
    let isOpen = true;
    return () => {
      // The driver may call back twice where it could not send a value.
      if (!isOpen) return;
      isOpen = false;
      this.askedAt = --this.#unanswered === 0 ? undefined : performance.now();
    };
  }
}

/** Apart from everything that holds the statement. */
function answering(answered: Answered, end: () => void): Answered {
  return (error, result) => {
    end();
    answered(error, result);
  };
}

function promised(
  ask: (given: readonly unknown[], answered: Answered) => unknown,
  given: readonly unknown[],
) {
  return new Promise((resolve, reject) => {
    ask(given, (error, result) => {
      if (error) reject(error);
      else resolve(result);
    });
  }).catch((error) => {
    // To whoever asked, as the driver does: so far it leads to the socket.
    Error.captureStackTrace(error);
    throw error;
  });
}

/** Leaves the names off statements, so that each is sent, planned and forgotten again. */
export class UnpreparingClient extends PooledClient {
  constructor(config?: pg.ClientConfig) {
    super(config);
    const query = this.query.bind(this) as (...given: unknown[]) => unknown;
    const unnamed = (statement: unknown, ...rest: unknown[]) =>
      query(typeof statement === "object" ? { ...statement, name: undefined } : statement, ...rest);
    this.query = unnamed as typeof this.query;
  }
}
