/**
 * Gives up connections on which no answer will come: the network has forgotten them, or the machine behind them is gone.
 * TCP would find out in minutes, and a time-out short enough to be of use would also end statements that are merely slow.
 * So the server is asked, over a new connection, whether it is at work on what is waited for. Beyond that every statement has
 * its time, after which its connection goes with it.
 */

import pg from "pg";
import type { PooledClient } from "./pooled-client.ts";

/** A statement without an answer for so long is asked about: hot ones take milliseconds. */
const suspectMs = 1_000;
/** And then all others are asked about, too, that have waited for longer than a network takes. */
const companyMs = 300;
const checkMs = 250;
/** Until it is asked again whether a server is at work that was a moment ago: each time is a new connection. */
const atWorkMs = 1_000;
/** How long asking may take. A server without time for this has none for new connections in place of old ones either. */
const lookMs = 2_500;
/** A server that has answered nobody for so long keeps nobody waiting any more. */
const silenceMs = 6_000;

/**
 * Those that may be at work: not the idle ones, unless they have become so just now. Where a server does not keep track,
 * all may be. One that is not there is not.
 */
const busyText = `
SELECT pid FROM pg_stat_activity
WHERE pid = ANY ($1::int[])
  AND (state LIKE 'idle%' AND state_change < clock_timestamp() - interval '500 milliseconds') IS NOT TRUE`;

/** A statement without an answer so far. */
interface Waiting {
  readonly client: PooledClient;
  readonly backend: number;
  /** By performance.now(). */
  readonly since: number;
}

export interface ConnectionWatch {
  /** To be called with each new connection before anything is asked on it. */
  keep(client: PooledClient): void;
  /** Learns whom to ask about. Behind a pooler a backend is not the connection's own, and nothing can be asked. */
  meet(client: PooledClient): Promise<void>;
  /** What is still in use then is broken off: nobody would give it its time any more. */
  stop(): void;
  /** Breaks off whoever has waited for an answer for so long; answers how many. */
  breakOff(afterMs: number): number;
}

export function watchConnections(
  pool: pg.Pool,
  connection: pg.ClientConfig,
  options: {
    /** A statement that takes longer takes its connection with it: the server may still be busy with it. */
    readonly answerTimeoutMs: number;
    readonly onGivenUp: (error: Error) => void;
  },
): ConnectionWatch {
  const { answerTimeoutMs, onGivenUp } = options;
  const clients = new Set<PooledClient>();
  let silentSince: number | undefined;
  let looking = false;
  /** By performance.now(). */
  let lookAgainAt = 0;
  /** Whose backend was idle at the last look. */
  let doubted: readonly Waiting[] = [];

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
    const before = performance.now() - answerTimeoutMs;
    for (const client of clients) {
      const { askedAt } = client;
      if (askedAt === undefined || askedAt > before) continue;
      // A process that was stopped for a while may have the answer, and has not read it yet.
      setImmediate(() => {
        if (client.askedAt !== askedAt) return;
        const error = timedOut("a statement was not answered in time");
        client.breakOff(error);
        onGivenUp(error);
      });
    }
  }

  async function check(): Promise<void> {
    if (waitingFor(suspectMs).length === 0) {
      silentSince = undefined;
      return;
    }
    if (performance.now() < lookAgainAt) return;
    const suspects = waitingFor(companyMs);
    looking = true;
    const askedAt = performance.now();
    try {
      const busy = await busyAmong(suspects.map(({ backend }) => backend));
      silentSince = undefined;
      const found = suspects.filter(({ backend }) => !busy.has(backend));
      // On a machine that is short of time a backend may not have got to its statement yet: it is looked at twice.
      const dead = found.filter((one) => doubted.some((other) => isSame(one, other)));
      doubted = found;
      if (found.length === 0) lookAgainAt = performance.now() + atWorkMs;
      if (dead.some(({ since }) => since <= askedAt - suspectMs)) giveUp(dead, idle());
    } catch (error) {
      if (error instanceof pg.DatabaseError) {
        // It is there, and has its reasons to tell nothing.
        silentSince = undefined;
      } else {
        silentSince ??= askedAt;
        // It may be gone or merely slow: what is idle may still be good, and new connections would cost it more.
        if (performance.now() - silentSince >= silenceMs) giveUp(waitingFor(silenceMs), []);
      }
    } finally {
      looking = false;
    }
  }

  function waitingFor(milliseconds: number): Waiting[] {
    const before = performance.now() - milliseconds;
    const waiting: Waiting[] = [];
    for (const client of clients) {
      const { askedAt: since, backend } = client;
      if (backend === undefined || since === undefined || since > before) continue;
      waiting.push({ client, backend, since });
    }
    return waiting;
  }

  const idle = () => [...clients].filter(({ backend, isInUse }) => backend !== undefined && !isInUse);

  /**
   * A statement that is under way fails with its connection. Who has meanwhile been answered is left alone. Idle
   * connections have most likely died of the same, and each would keep somebody waiting in turn.
   */
  function giveUp(suspects: readonly Waiting[], company: readonly PooledClient[]): void {
    const dead = suspects.filter(({ client, since }) => client.askedAt === since);
    if (dead.length === 0) return;
    const error = timedOut("the database does not answer on a connection");
    for (const client of [...dead.map(({ client }) => client), ...company]) client.breakOff(error);
    onGivenUp(error);
  }

  async function busyAmong(asked: readonly number[]): Promise<Set<number>> {
    const client = new pg.Client({
      ...connection,
      application_name: "phoneproof-watch",
      connectionTimeoutMillis: lookMs,
      query_timeout: lookMs,
    });
    client.on("error", () => {});
    try {
      await client.connect();
      const { rows } = await client.query<{ pid: number }>(busyText, [asked]);
      return new Set(rows.map(({ pid }) => pid));
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
      if (rows[0]?.pid === processID) client.backend = processID;
    },
    breakOff(afterMs) {
      const since = performance.now() - afterMs;
      const silent = [...clients].filter(({ askedAt }) => askedAt !== undefined && askedAt <= since);
      for (const client of silent) client.breakOff(timedOut("the database has not answered before the end"));
      return silent.length;
    },
    stop() {
      clearInterval(timer);
      for (const client of clients) {
        if (client.isInUse) client.breakOff(timedOut("the database has not answered before the end"));
      }
    },
  };
}

const isSame = (one: Waiting, other: Waiting) => one.client === other.client && one.since === other.since;

/** As TCP would call it, had it found out. */
const timedOut = (message: string) => Object.assign(new Error(message), { code: "ETIMEDOUT" });
