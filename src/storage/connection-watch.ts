/**
 * Closes connections on which no answer will come: the network has dropped them, or the machine behind them is gone. TCP would
 * notice after minutes, and a timeout short enough to be useful would also end statements that are merely slow. So the watch
 * asks the server, over a new connection, whether it is working on the unanswered statements.
 *
 * Besides that, every statement has a timeout, after which its caller gets an error and its connection is closed: at once, or, if
 * the server was seen at work on the statement, when that is answered. Such a statement is a commit that waits, for its
 * synchronous standby for example: the server's own timeout ends everything else, but not that, nor does the end of the
 * connection. If each such connection were replaced at once by another, whose commit waits next, their backends would soon be as
 * many as the server accepts.
 */

import pg from "pg";
import { runningTime } from "../running-time.ts";
import { readBackendActivity, standbyWait } from "./backend-activity.ts";
import type { PooledClient } from "./pooled-client.ts";

/** A statement unanswered for this long triggers a check: hot statements take milliseconds. */
const suspectMs = 1_000;
/** A check then covers all statements unanswered for this long, which is more than a network round trip. */
const relatedMs = 300;
/** How often the statements are compared with `suspectMs` and with their timeout. */
const intervalMs = 250;
/** Pause after a check that found the server working on every statement: each check costs a new connection. */
const busyPauseMs = 1_000;
/** When no check has been answered for this long, statements unanswered for as long are given up. */
const silenceMs = 6_000;

/** An unanswered statement. */
interface Waiting {
  readonly client: PooledClient;
  readonly backend: number;
  /** By `runningTime`. */
  readonly since: number;
}

export interface ConnectionWatch {
  /** Call with each new connection before its first statement. */
  keep(client: PooledClient): void;
  /**
   * Learns the connection's backend. Behind a pooler the backend is not the connection's own, and cannot be checked. There a
   * statement that gets no answer in time is taken for a commit that waits for the standby if any commit of this role does.
   */
  meet(client: PooledClient): Promise<void>;
  /** Whether commits wait for a synchronous standby, and that of a statement with this text got no answer in time. */
  awaitsStandby(text: string): boolean;
  /** Ends the watch and breaks off connections in use: nothing would enforce their statements' timeout any more. */
  stop(): void;
  /** Breaks off the connections unanswered for at least `afterMs`; returns how many. */
  breakOff(afterMs: number): number;
}

export function watchConnections(
  pool: pg.Pool,
  connection: pg.ClientConfig,
  options: {
    /** Statement timeout. The connection is not reused: the server may still be busy with the statement. */
    readonly answerTimeoutMs: number;
    readonly onGivenUp: (error: Error) => void;
  },
): ConnectionWatch {
  const { answerTimeoutMs, onGivenUp } = options;
  const clients = new Set<PooledClient>();
  /** What the server waited for when their callers were told that there is no answer. */
  const abandoned = new Map<PooledClient, string>();
  let silentSince: number | undefined;
  let isChecking = false;
  /** By `runningTime`. */
  let nextCheckAt = 0;
  /** Statements whose backend was not at work at the last check. */
  let idleBefore: readonly Waiting[] = [];
  /** Statements that the server was at work on at the last check that it answered, and what it waited for. */
  let atWork: readonly (Waiting & { readonly awaits: string })[] = [];
  /** Whether commits of this role waited for the standby then, for two seconds and more. */
  let commitsWait = false;

  pool.on("acquire", (client) => {
    (client as pg.ClientBase as PooledClient).isInUse = true;
  });
  pool.on("release", (_error, client) => {
    (client as pg.ClientBase as PooledClient).isInUse = false;
  });

  const timer = setInterval(() => {
    endOverdue();
    if (!isChecking) void check();
  }, intervalMs);
  timer.unref();

  function endOverdue(): void {
    const before = runningTime.now() - answerTimeoutMs;
    for (const client of clients) {
      const { askedAt } = client;
      if (askedAt === undefined || askedAt > before || client.isAbandoned) continue;
      // If this process was suspended, the answer may have arrived and not been read yet.
      setImmediate(() => {
        if (client.askedAt === askedAt) endStatement(client);
      });
    }
  }

  function endStatement(client: PooledClient): void {
    const awaits = awaitedBy(client);
    const error = timedOut(
      awaits === undefined
        ? notAnswered
        : `${notAnswered}: the server is still at work on it, and waits for ${awaits}`,
    );
    if (awaits === undefined) client.breakOff(error);
    else {
      abandoned.set(client, awaits);
      client.abandon(error);
    }
    onGivenUp(error);
  }

  /** What the server waits for while it is at work on the connection's statement. Undefined if it may not be at work on it. */
  function awaitedBy(client: PooledClient): string | undefined {
    if (client.backend === null) return commitsWait ? standbyWait : undefined;
    return atWork.find((one) => one.client === client && one.since === client.askedAt)?.awaits;
  }

  async function check(): Promise<void> {
    const before = runningTime.now() - suspectMs;
    if (![...clients].some(({ askedAt }) => askedAt !== undefined && askedAt <= before)) {
      silentSince = undefined;
      return;
    }
    if (runningTime.now() < nextCheckAt) return;
    const suspects = waitingFor(relatedMs);
    isChecking = true;
    const askedAt = runningTime.now();
    try {
      const backends = suspects.map(({ backend }) => backend);
      const activity = await readBackendActivity(connection, backends);
      silentSince = undefined;
      atWork = suspects.flatMap((one) => {
        const awaits = activity.get(one.backend);
        return awaits ? [{ ...one, awaits }] : [];
      });
      commitsWait = [...activity.values()].includes(standbyWait);
      if (!commitsWait) breakOffPooled();
      const idle = suspects.filter(({ backend }) => !activity.has(backend));
      // On an overloaded machine a backend may not have started its statement yet, so two checks in a row must find it idle.
      const dead = idle.filter((one) => idleBefore.some((other) => isSame(one, other)));
      idleBefore = idle;
      if (idle.length === 0) nextCheckAt = runningTime.now() + busyPauseMs;
      if (dead.some(({ since }) => since <= askedAt - suspectMs))
        giveUp(dead, notInUse(), new ConnectionVanished());
    } catch (error) {
      if (error instanceof pg.DatabaseError) {
        // The server is there; it only refused to answer this.
        silentSince = undefined;
      } else {
        silentSince ??= askedAt;
        // The server may be gone or merely slow: idle connections may still be good, and new ones would cost a slow server
        // more.
        if (runningTime.now() - silentSince >= silenceMs) {
          giveUp(waitingFor(silenceMs), [], timedOut("the database does not answer"));
        }
      }
    } finally {
      isChecking = false;
    }
  }

  function waitingFor(milliseconds: number): Waiting[] {
    const before = runningTime.now() - milliseconds;
    const waiting: Waiting[] = [];
    for (const client of clients) {
      const { askedAt: since, backend } = client;
      if (typeof backend !== "number" || since === undefined || since > before) continue;
      waiting.push({ client, backend, since });
    }
    return waiting;
  }

  const notInUse = () =>
    [...clients].filter(({ backend, isInUse }) => typeof backend === "number" && !isInUse);

  /** Nothing else shows whether an answer will still come on them. */
  function breakOffPooled(): void {
    for (const client of abandoned.keys()) {
      if (client.backend === null && client.askedAt !== undefined) client.breakOff(timedOut(notAnswered));
    }
  }

  /**
   * Breaks off the connections of the suspects that are still unanswered, so that their statements fail, and `others`: those not
   * in use have most likely been lost with them, and each would keep its next user waiting.
   */
  function giveUp(suspects: readonly Waiting[], others: readonly PooledClient[], error: Error): void {
    const dead = suspects.filter(({ client, since }) => client.askedAt === since);
    if (dead.length === 0) return;
    for (const client of [...dead.map(({ client }) => client), ...others]) client.breakOff(error);
    onGivenUp(error);
  }

  return {
    keep(client) {
      clients.add(client);
      client.once("end", () => clients.delete(client));
    },
    async meet(client) {
      const { rows } = await client.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
      const { processID } = client as unknown as { readonly processID?: number };
      client.backend = rows[0]?.pid === processID ? (processID ?? null) : null;
    },
    breakOff(afterMs) {
      const since = runningTime.now() - afterMs;
      const silent = [...clients].filter(({ askedAt }) => askedAt !== undefined && askedAt <= since);
      for (const client of silent) client.breakOff(timedOut(notAnsweredAtEnd));
      return silent.length;
    },
    awaitsStandby(text) {
      if (abandoned.size === 0) return false;
      for (const client of abandoned.keys()) if (client.askedAt === undefined) abandoned.delete(client);
      return (
        [...abandoned.values()].includes(standbyWait) &&
        [...abandoned.keys()].some(({ unansweredText }) => unansweredText === text)
      );
    },
    stop() {
      clearInterval(timer);
      for (const client of clients) {
        if (client.isInUse) client.breakOff(timedOut(notAnsweredAtEnd));
      }
    },
  };
}

/** A statement's connection no longer leads to the server, which answers on others. */
export class ConnectionVanished extends Error {
  readonly code = "ETIMEDOUT";

  constructor() {
    super("the database does not answer on a connection");
  }
}

const notAnswered = "a statement was not answered in time";
const notAnsweredAtEnd = "the database did not answer before the shutdown";

const isSame = (one: Waiting, other: Waiting) => one.client === other.client && one.since === other.since;

/** Has the error code that TCP's own timeout would have. */
const timedOut = (message: string) => Object.assign(new Error(message), { code: "ETIMEDOUT" });
