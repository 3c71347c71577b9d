/** Runs better-auth (the peer) as a process next to the service, and builds the requests to it. */

import path from "node:path";
import pg from "pg";
import { ChildProgram } from "./child.ts";
import { versionIn } from "./measuring-packages.ts";

const folder = path.join(import.meta.dirname, "peer");
const database = "peer";
/** Connections to the database, as many as the service has. */
export const defaultPoolSize = 16;

export async function peerVersion(): Promise<string> {
  return (await versionIn(folder, "better-auth")) ?? "unknown";
}

export interface PeerUnderLoad {
  readonly pid: number;
  readonly port: number;
  readonly database: pg.Client;
  close(): Promise<void>;
}

interface PeerStart {
  readonly connection: pg.ClientConfig;
  readonly poolSize: number;
}
type PeerAnswer = { readonly port: number } | { readonly failed: string };

/** Starts the peer on its own database in the service's Postgres, with `rows` users and as many unused codes. */
export async function startPeer(
  service: pg.ClientConfig,
  options: { readonly poolSize: number; readonly rows: number },
): Promise<PeerUnderLoad> {
  const connection = { ...service, database };
  const administration = new pg.Client(service);
  await administration.connect();
  await administration.query(`CREATE DATABASE ${database}`).finally(() => administration.end());
  const peerProgram = new ChildProgram<PeerStart, PeerAnswer>("peer/server.mjs", [], {
    NODE_ENV: "production",
    BETTER_AUTH_TELEMETRY: "0",
  });
  const client = new pg.Client({ ...connection, application_name: "phoneproof-bench" });
  client.on("error", () => {});
  const close = async () => {
    await client.end().catch(() => undefined);
    peerProgram.close();
  };
  try {
    const answer = await peerProgram.ask({ connection, poolSize: options.poolSize });
    if ("failed" in answer) throw new Error(`the peer did not start: ${answer.failed}`);
    await client.connect();
    await seed(client, options.rows);
    return { pid: peerProgram.pid, port: answer.port, database: client, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Inserts rows as the peer's own sign-ups and code requests would. */
async function seed(client: pg.Client, rows: number): Promise<void> {
  await client.query(
    `INSERT INTO "user" (id, name, email, "emailVerified", "createdAt", "updatedAt", "phoneNumber", "phoneNumberVerified")
     SELECT left(md5(n::text) || md5('id'), 32), '+8211' || n, '8211' || n || '@shop.example', false, now(), now(), '+8211' || n, true
     FROM generate_series(10000000, 9999999 + $1::int) AS n`,
    [rows],
  );
  await client.query(
    `INSERT INTO verification (id, identifier, value, "expiresAt", "createdAt", "updatedAt")
     SELECT left(md5(n::text) || md5('id'), 32), 'phone-number-otp-+8211' || n, lpad((n % 1000000)::text, 6, '0') || ':0',
       now() + interval '1 hour', now(), now()
     FROM generate_series(20000000, 19999999 + $1::int) AS n`,
    [rows],
  );
}

/** Requests of a client behind a proxy, because the rate limit needs a client address. `phone` begins with +. */
export const peerRequests = {
  send: (phone: string) => request("send-otp", JSON.stringify({ phoneNumber: phone })),
  /** Without a session, which the peer would otherwise also write to the database. */
  verify: (phone: string, code: string) =>
    request("verify", JSON.stringify({ phoneNumber: phone, code, disableSession: true })),
};

function request(action: string, body: string): string {
  return (
    `POST /api/auth/phone-number/${action} HTTP/1.1\r\nHost: api.shop.example\r\nUser-Agent: shop/1.0\r\n` +
    `X-Forwarded-For: 192.0.2.1\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
  );
}

/** The code in the answer to `send`. */
export function sentCode(answer: string): string {
  const code = /\r\nx-sent-code: (\d+)\r\n/i.exec(answer)?.[1];
  if (code === undefined) throw new Error(`an answer without a code: ${answer}`);
  return code;
}
