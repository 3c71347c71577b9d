/**
 * The database's own limit: one creation per statement and transaction, over many connections, all on one usage row. This is
 * what pgbench would measure, but in a process of its own, since the package with the embedded Postgres has no pgbench.
 */

import { createHash, randomUUID, randomUUIDv7 } from "node:crypto";
import pg from "pg";
import { newCode } from "../src/core/code.ts";
import { newWindowToken } from "../src/core/window-token.ts";
import { type LoadResult, Tally } from "./load.ts";
import { codeLength, smsTextOf } from "./requests.ts";
import { insertLike, type Template } from "./template.ts";

export type DatabaseLoopRequest =
  | { readonly kind: "open"; readonly connection: pg.ClientConfig; readonly target: LoopTarget }
  | { readonly kind: "run"; readonly milliseconds: number }
  /** Closes the connections. Gets no answer. */
  | { readonly kind: "close" };

export type DatabaseLoopAnswer =
  | { readonly kind: "opened" }
  | { readonly kind: "ran"; readonly result: LoadResult }
  | { readonly kind: "failed"; readonly message: string };

interface LoopTarget {
  readonly connections: number;
  /** A UUID. */
  readonly projectId: string;
  readonly template: Template;
}

/** Writes the same rows in the same order of tables as the service's statement, for a single request and so without arrays. */
const createOne = (template: Template) => `
WITH charged AS (
  UPDATE usage SET calls = calls + 1
  WHERE project_id = $1::uuid AND month = date_trunc('month', now() AT TIME ZONE 'Asia/Seoul')::date
    AND calls < call_limit
  RETURNING calls
),
reserved AS (
  ${insertLike(template, "live_code", { code: "$2::text", verification_id: "$3::uuid", window_digest: "$10::bytea" })} FROM charged
  ON CONFLICT DO NOTHING RETURNING verification_id
),
keyed AS (
  ${insertLike(template, "idempotency_record", {
    key: "$4::text",
    request_digest: "$5::bytea",
    verification_id: "verification_id",
    verification_url: "$6::text",
  })} FROM reserved
  ON CONFLICT DO NOTHING RETURNING verification_id
),
created AS (
  ${insertLike(template, "verification", {
    id: "verification_id",
    client_reference: "$7::text",
    state: "$8::text",
    sms_text: "$9::text",
  })} FROM keyed
  RETURNING id
)
SELECT id FROM created`;

const clients: pg.Client[] = [];
let projectId = "";
let statement = "";

async function open(connection: pg.ClientConfig, target: LoopTarget): Promise<void> {
  projectId = target.projectId;
  statement = createOne(target.template);
  while (clients.length < target.connections) {
    const client = new pg.Client({ ...connection, application_name: "phoneproof-bench-loop" });
    await client.connect();
    clients.push(client);
  }
}

async function run(milliseconds: number): Promise<LoadResult> {
  const tally = new Tally();
  const deadline = performance.now() + milliseconds;
  await Promise.all(
    clients.map(async (client) => {
      for (let startedAt = performance.now(); startedAt < deadline; ) {
        await creation(client);
        const now = performance.now();
        tally.add(now - startedAt);
        startedAt = now;
      }
    }),
  );
  return tally.result();
}

const digestOf = (text: string) => createHash("sha256").update(text).digest();

/** Retries with another code if the code is already taken, which happens once in many thousands. */
async function creation(client: pg.Client): Promise<void> {
  while (!(await tryCreation(client))) {}
}

async function tryCreation(client: pg.Client): Promise<boolean> {
  const code = newCode("numeric", codeLength);
  const id = randomUUIDv7();
  const token = newWindowToken();
  const { rowCount } = await client.query({
    name: "create_one",
    text: statement,
    values: [
      projectId,
      code,
      id,
      randomUUID(),
      digestOf("request"),
      `http://localhost:8080/v/${token}`,
      "signup-20261121-000042",
      "wHk2Rr0cXq7mYt5vZb8nLd3sFg6jKp1a",
      smsTextOf(code),
      digestOf(token),
    ],
  });
  return rowCount === 1;
}

async function answer(request: DatabaseLoopRequest): Promise<DatabaseLoopAnswer | undefined> {
  if (request.kind === "close") {
    await Promise.all(clients.splice(0).map((client) => client.end()));
    return undefined;
  }
  if (request.kind === "run") return { kind: "ran", result: await run(request.milliseconds) };
  await open(request.connection, request.target);
  return { kind: "opened" };
}

process.on("message", (request: DatabaseLoopRequest) => {
  answer(request).then(
    (answered) => answered && process.send?.(answered),
    (error: Error) => process.send?.({ kind: "failed", message: error.message }),
  );
});
process.on("disconnect", () => process.exit());
