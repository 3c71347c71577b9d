import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { afterRunning } from "../running-time.ts";
import type { Statements } from "./database.ts";
import { failWithLoss } from "./pooled-client.ts";
import { giveUpVanishedClient } from "./session-settings.ts";
import { hintChannel, transitionChannel } from "./transition.ts";

/** Channel on which administration tells every process to look up keys, projects and numbers again. */
export const directoryChannel = "phoneproof_directory";

/** Channel of the check at start that notices arrive at all. */
const checkChannel = "phoneproof_trial";

export interface Transition {
  readonly verificationId: string;
  /**
   * Whether a webhook delivery may be due. False if a process of an older version made the transition, since its notice does
   * not say.
   */
  readonly deliveryDue: boolean;
}

/**
 * The notices that this process gets from the database: one LISTEN connection, fanned out in memory. Notices may be lost with
 * the connection; `onGap` says that this may have happened, and listeners must then read the state themselves.
 */
export interface Notices {
  start(): Promise<void>;
  stop(): Promise<void>;
}

export interface NoticeListeners {
  readonly onTransition: (transition: Transition) => void;
  /** A verification has a new hint why it is still pending. */
  readonly onHint: (verificationId: string) => void;
  readonly onDirectoryChange: () => void;
  readonly onGap: () => void;
  readonly onError: (error: unknown) => void;
}

const firstRetryMs = 100;
const lastRetryMs = 2_000;
/** Interval of a probe statement: a connection that only listens does not notice that the other end is gone. */
const probeEveryMs = 500;
/** Timeout of its answer, and of that to LISTEN on a connection that replaces another. */
const answerMs = 1_000;
/** Timeout for opening a connection. A start, which fails if it is exceeded, waits as long for the answer to LISTEN. */
const connectTimeoutMs = 5_000;
/** How long `stop` waits for the other end to close the connection. */
const closeTimeoutMs = 500;

export function createNotices(connection: pg.ClientConfig, listeners: NoticeListeners): Notices {
  let client: pg.Client | undefined;
  let retry: NodeJS.Timeout | undefined;
  let retryMs = firstRetryMs;
  let stopped = false;

  async function connect(listenAnswerMs: number): Promise<void> {
    const next = new pg.Client({
      ...connection,
      application_name: "phoneproof-notices",
      connectionTimeoutMillis: connectTimeoutMs,
      keepAlive: true,
    });
    next.on("notification", ({ channel, payload }) => {
      if (channel === directoryChannel) listeners.onDirectoryChange();
      else if (channel === transitionChannel) {
        for (const transition of transitionsIn(payload ?? "")) listeners.onTransition(transition);
      } else if (channel === hintChannel) {
        for (const verificationId of (payload ?? "").split(",")) listeners.onHint(verificationId);
      }
    });
    let nextProbe: NodeJS.Timeout | undefined;
    let answer: Promise<unknown> | undefined;
    // Before this connection is in use, the caller of `connect` handles its errors; once it has been replaced, nobody needs it.
    const isInUse = () => client === next && !stopped;
    const onLost = (error?: unknown) => {
      clearTimeout(nextProbe);
      if (!isInUse()) return;
      if (error) listeners.onError(error);
      client = undefined;
      next.end().catch(() => {});
      reconnect();
    };
    next.on("error", onLost);
    next.on("end", () => onLost());
    try {
      await next.connect();
      const listen = [transitionChannel, hintChannel, directoryChannel].map((channel) => `LISTEN ${channel}`);
      // The driver's types lack the timeout of a single statement.
      const statement = {
        text: [giveUpVanishedClient("SET"), ...listen].join("; "),
        query_timeout: listenAnswerMs,
      };
      await next.query(statement);
    } catch (error) {
      next.end().catch(() => {});
      throw error;
    }
    const former = client;
    client = next;
    former?.end().catch(() => {});
    scheduleProbe();

    function scheduleProbe(): void {
      nextProbe = setTimeout(() => probe().then(scheduleProbe, onProbeError), probeEveryMs);
    }

    /**
     * Waits on for the answer to the probe before, if that has not come: statements would pile up on a connection that stays
     * silent. The driver's own timeout would expire before what arrived during a suspension is read.
     */
    async function probe(): Promise<void> {
      answer ??= next.query("SELECT 1").finally(() => {
        answer = undefined;
      });
      const late = Promise.withResolvers<never>();
      const timer = afterRunning(answerMs, () =>
        late.reject(new Error("the database does not answer on it")),
      );
      await Promise.race([answer, late.promise]).finally(timer.cancel);
      retryMs = firstRetryMs;
    }

    /** The server may only be slow, so this connection stays until another one replaces it. */
    async function onProbeError(error: unknown): Promise<void> {
      if (!isInUse()) return;
      listeners.onError(error);
      try {
        await replace();
      } catch (another) {
        listeners.onError(another);
        if (isInUse()) scheduleProbe();
      }
    }
  }

  async function replace(): Promise<void> {
    await connect(answerMs);
    if (stopped) await client?.end();
    else listeners.onGap();
  }

  /** Later each time until a connection has answered a probe: all that watch read their state after each one that opens. */
  function reconnect(): void {
    retry = setTimeout(async () => {
      try {
        await replace();
      } catch (error) {
        listeners.onError(error);
        if (!stopped) reconnect();
      }
    }, retryMs);
    retryMs = Math.min(retryMs * 2, lastRetryMs);
  }

  return {
    start: () => connect(connectTimeoutMs),
    async stop() {
      stopped = true;
      clearTimeout(retry);
      const ended = client?.end().catch(() => {});
      await Promise.race([ended, delay(closeTimeoutMs, undefined, { ref: false })]);
    },
  };
}

/** How long the check waits; a notice that arrives arrives at once. */
const checkTimeoutMs = 2_000;

/**
 * Rejects if notices that `announce` sends do not arrive over `connection`: it leads to another database, or to a pooler that
 * keeps no sessions. Only a notice can tell, since not every role may read the identifier of a Postgres server.
 */
export async function requireNotices(
  connection: pg.ClientConfig,
  announce: (channel: string, payload: string) => Promise<unknown>,
): Promise<void> {
  const client = new pg.Client({
    ...connection,
    application_name: "phoneproof-notices",
    connectionTimeoutMillis: connectTimeoutMs,
    query_timeout: connectTimeoutMs,
  });
  failWithLoss(client);
  const nonce = randomUUID();
  let isReceived = false;
  const received = new Promise<void>((resolve) => {
    client.on("notification", ({ payload }) => {
      if (payload !== nonce) return;
      isReceived = true;
      resolve();
    });
  });
  try {
    await client.connect();
    await client.query(`LISTEN ${checkChannel}`);
    await announce(checkChannel, nonce);
    await Promise.race([received, delay(checkTimeoutMs, undefined, { ref: false })]);
    // If the server is the right one but slow, it has sent the notice before it answers this.
    await client.query("SELECT 1");
  } finally {
    client.end().catch(() => {});
  }
  if (isReceived) return;
  throw new Error(
    "notifications sent over DATABASE_URL do not arrive here: this is another database, or a pooler that does not keep sessions",
  );
}

/** Sends a notice of no change; those of a change are sent within its statement or transaction. */
export async function sendNotice(statements: Statements, channel: string, payload: string): Promise<void> {
  await statements.query({ text: "SELECT pg_notify($1, $2)", values: [channel, payload], rowMode: "array" });
}

function* transitionsIn(payload: string): Iterable<Transition> {
  for (const notice of payload.split(",")) {
    const [verificationId, , due] = notice.split(":");
    if (verificationId) yield { verificationId, deliveryDue: due === "due" };
  }
}
