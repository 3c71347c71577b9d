/**
 * Closes connections on which no answer will come: the network has dropped them, or the machine behind them is gone. TCP would
 * notice after minutes, and a timeout short enough to be useful would also end statements that are merely slow. So the watch
 * asks the server, over a new connection, whether it is working on the unanswered statements. Besides that, every statement has
 * a timeout, after which its connection is closed; if the server was seen at work on it, once the server has answered. That is
 * a commit that waits, for its synchronous standby for example: the server's own timeout ends everything else, but not that,
 * nor does the end of the connection. If each such connection were replaced by another, which waits next, their backends would
 * soon be as many as the server accepts.
 */

import pg from "pg";
import { runningTime } from "../running-time.ts";
import type { PooledClient } from "./pooled-client.ts";

/** A statement unanswered for this long triggers a check: hot statements take milliseconds. */
const suspectMs = 1_000;
/** A check then covers all statements unanswered for this long, which is more than a network round trip. */
const relatedMs = 300;
const checkMs = 250;
/** Pause after a check that found the server working on every statement: each check costs a new connection. */
const busyPauseMs = 1_000;
/** Timeout of a check. A server too busy for it is also too busy for new connections in place of old ones. */
const lookMs = 2_500;
/** When no check has been answered for this long, statements unanswered for as long are given up. */
const silenceMs = 6_000;

/** Postgres' name for a commit's wait for its synchronous standby. */
const standbyWait = "SyncRep";

/**
 * Backends that may be working: those not idle, or idle for less than 500 ms. On a server that does not track activity every
 * backend may be working. A backend that does not exist is not. And what those wait for that are certainly working: those that
 * wait for the client to send or read something are not. Also all of this role that have waited for the standby for two
 * seconds: if it is there, every commit waits for a moment, and other roles may wait for more (`remote_apply`).
 */
const busyText = `
SELECT pid,
  CASE WHEN state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' THEN coalesce(wait_event, 'nothing') END AS awaits
FROM pg_stat_activity
WHERE pid = ANY ($1::int[])
  AND (state LIKE 'idle%' AND state_change < clock_timestamp() - interval '500 milliseconds') IS NOT TRUE
  OR wait_event = '${standbyWait}' AND usename = session_user AND state_change < clock_timestamp() - interval '2 seconds'`;

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
  let looking = false;
  /** By `runningTime`. */
  let lookAgainAt = 0;
  /** Statements whose backend was not working at the last check. */
  let suspectedBefore: readonly Waiting[] = [];
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
    if (!looking) void check();
  }, checkMs);
  timer.unref();

  function endOverdue(): void {
    const before = runningTime.now() - answerTimeoutMs;
    for (const client of clients) {
      const { askedAt } = client;
      if (askedAt === undefined || askedAt > before || client.isAbandoned) continue;
      // If this process was suspended, the answer may have arrived and not been read yet.
      setImmediate(() => {
        if (client.askedAt !== askedAt) return;
        const awaits = awaitedBy(client);
        if (awaits === undefined) {
          const error = timedOut("a statement was not answered in time");
          client.breakOff(error);
          onGivenUp(error);
        } else {
          const error = timedOut(
            `a statement was not answered in time: the server is still at work on it, and waits for ${awaits}`,
          );
          abandoned.set(client, awaits);
          client.abandon(error);
          onGivenUp(error);
        }
      });
    }
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
    if (runningTime.now() < lookAgainAt) return;
    const suspects = waitingFor(relatedMs);
    looking = true;
    const askedAt = runningTime.now();
    try {
      const busy = await busyAmong(suspects.map(({ backend }) => backend));
      silentSince = undefined;
      const found = suspects.filter(({ backend }) => !busy.has(backend));
      atWork = suspects.flatMap((one) => {
        const awaits = busy.get(one.backend);
        return awaits ? [{ ...one, awaits }] : [];
      });
      commitsWait = [...busy.values()].includes(standbyWait);
      if (!commitsWait) breakOffPooled();
      // On an overloaded machine a backend may not have started its statement yet, so two checks in a row must find it idle.
      const dead = found.filter((one) => suspectedBefore.some((other) => isSame(one, other)));
      suspectedBefore = found;
      if (found.length === 0) lookAgainAt = runningTime.now() + busyPauseMs;
      if (dead.some(({ since }) => since <= askedAt - suspectMs))
        giveUp(dead, idle(), new ConnectionVanished());
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
      looking = false;
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

  const idle = () => [...clients].filter(({ backend, isInUse }) => typeof backend === "number" && !isInUse);

  /** Nothing else shows whether an answer will still come on them. */
  function breakOffPooled(): void {
    for (const client of abandoned.keys()) {
      if (client.backend === null && client.askedAt !== undefined)
        client.breakOff(timedOut("a statement was not answered in time"));
    }
  }

  /**
   * Breaks off the connections of the suspects that are still unanswered, so that their statements fail. The idle connections
   * have most likely died of the same cause, and each would keep its next user waiting.
   */
  function giveUp(suspects: readonly Waiting[], idleClients: readonly PooledClient[], error: Error): void {
    const dead = suspects.filter(({ client, since }) => client.askedAt === since);
    if (dead.length === 0) return;
    for (const client of [...dead.map(({ client }) => client), ...idleClients]) client.breakOff(error);
    onGivenUp(error);
  }

  async function busyAmong(asked: readonly number[]): Promise<Map<number, string | null>> {
    const client = new pg.Client({
      ...connection,
      application_name: "phoneproof-watch",
      connectionTimeoutMillis: lookMs,
      query_timeout: lookMs,
    });
    client.on("error", () => {});
    try {
      await client.connect();
      const { rows } = await client.query<{ pid: number; awaits: string | null }>(busyText, [asked]);
      return new Map(rows.map(({ pid, awaits }) => [pid, awaits]));
    } finally {
      client.end().catch(() => {});
    }
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
      for (const client of silent)
        client.breakOff(timedOut("the database did not answer before the shutdown"));
      return silent.length;
    },
    awaitsStandby(text) {
      if (abandoned.size === 0) return false;
      for (const client of abandoned.keys()) if (client.askedAt === undefined) abandoned.delete(client);
      const waiting = [...abandoned.keys()];
      return (
        waiting.some((client) => client.unansweredText === text) &&
        [...abandoned.values()].includes(standbyWait)
      );
    },
    stop() {
      clearInterval(timer);
      for (const client of clients) {
        if (client.isInUse) client.breakOff(timedOut("the database did not answer before the shutdown"));
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

const isSame = (one: Waiting, other: Waiting) => one.client === other.client && one.since === other.since;

/** Has the error code that TCP's own timeout would have. */
const timedOut = (message: string) => Object.assign(new Error(message), { code: "ETIMEDOUT" });
