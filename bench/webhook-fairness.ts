/**
 * `node bench/webhook-fairness.ts [rounds]`: ten thousand due deliveries to a hundred endpoints, five of which never answer.
 * Measures how long the other ninety-five take, compared with the same without the five. The service is a worker as in
 * production, on a Postgres with full durability.
 */

import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { startEmbeddedPostgres } from "../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../src/storage/migrations.ts";
import { ChildProgram } from "./child.ts";
import { type Endings, runCounted } from "./endings.ts";
import { median } from "./load.ts";
import { databaseUrlOf, startReady } from "./ready-service.ts";
import type { Expectation, RoundDone } from "./webhook-receivers.ts";

const endpoints = 100;
const hanging = 5;
const eventsEach = 100;

const root = path.join(import.meta.dirname, "..");
const roundTimeoutMs = 120_000;

interface Round {
  readonly seconds: number;
  readonly hung: number;
}

interface Bench {
  readonly database: pg.Client;
  readonly databaseUrl: string;
  readonly directory: string;
  readonly receivers: ChildProgram<Expectation, object>;
  readonly receiversPort: number;
  readonly endings: Endings;
}

/** Inserts a hundred projects with one webhook each; the first five belong to the endpoints that hang. */
async function makeWebhooks({ database, receiversPort }: Bench): Promise<void> {
  await database.query(
    `WITH place AS (SELECT gen_random_uuid() AS id, number FROM generate_series(0, $1::int - 1) AS number),
     made AS (
       INSERT INTO project (id, name, code_format, code_length, validity_seconds, rate_limit_per_minute)
       SELECT id, 'Endpoint ' || number, 'numeric', 8, 600, 6000 FROM place RETURNING id
     )
     INSERT INTO webhook_configuration (id, project_id, environment, version, url, events, secret)
     SELECT gen_random_uuid(), place.id, 'live', 1, $2 || number, '{verification.expired}', sha256(place.id::text::bytea)
     FROM place JOIN made ON made.id = place.id`,
    [endpoints, `http://127.0.0.1:${receiversPort}/`],
  );
}

/** Inserts expired verifications with their events, and deliveries that are due as soon as this commits. */
async function makeDue({ database }: Bench, from: number): Promise<number> {
  const { rowCount } = await database.query(
    `WITH expired AS (
       INSERT INTO verification (id, project_id, environment, mode, status, client_reference, state, destination, sms_text,
         created_at, expires_at, webhook_configuration_id)
       SELECT gen_random_uuid(), w.project_id, 'live', 'discover', 'expired', 'order-' || number, '', '0200000001', '-',
         now() - interval '10 minutes', now(), w.id
       FROM webhook_configuration w, generate_series(1, $2::int) AS number
       WHERE substring(w.url FROM '[0-9]+$')::int >= $1::int
       RETURNING id, webhook_configuration_id
     ),
     told AS (INSERT INTO event SELECT id, 'verification.expired', now() FROM expired),
     heard AS (SELECT pg_notify('phoneproof_transition', gen_random_uuid() || ':expired:due'))
     INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
     SELECT id, webhook_configuration_id, 'pending', 0, now() FROM expired, heard`,
    [from, eventsEach],
  );
  return rowCount ?? 0;
}

async function measure(bench: Bench, withHanging: boolean): Promise<Round> {
  const { database, receivers } = bench;
  await database.query("TRUNCATE verification CASCADE");
  await database.query("VACUUM ANALYZE");
  await receivers.ask({ hanging, healthyRequests: (endpoints - hanging) * eventsEach });
  const service = await startWorker(bench);
  try {
    const done = receivers.nextMessage() as Promise<RoundDone>;
    const timer = new AbortController();
    const late = delay(roundTimeoutMs, undefined, { signal: timer.signal }).then(() => {
      throw new Error(`the healthy endpoints were not done after ${roundTimeoutMs / 1000} s`);
    });
    late.catch(() => {});
    await makeDue(bench, withHanging ? 0 : hanging);
    const startedAt = Date.now();
    const { at, hung } = await Promise.race([done, late]);
    timer.abort();
    return { seconds: (at - startedAt) / 1000, hung };
  } finally {
    await service.stop();
  }
}

const startWorker = ({ directory, databaseUrl, endings }: Bench) =>
  startReady(
    directory,
    { ROLES: "worker", DATABASE_URL: databaseUrl, WEBHOOK_ALLOW_PRIVATE: "true" },
    ({ stop }) => endings.add(stop),
  );

function table(without: readonly Round[], within: readonly Round[]): string {
  const healthy = (endpoints - hanging) * eventsEach;
  const line = (name: string, cells: readonly string[]) =>
    name.padEnd(18) + cells.map((cell) => cell.padStart(11)).join("");
  const figures = (rounds: readonly Round[]) => {
    const seconds = median(rounds.map((round) => round.seconds));
    return [seconds.toFixed(2), Math.round(healthy / seconds).toLocaleString("en")];
  };
  // The ratio within each pair: other load of the machine affects both alike.
  const ratio = median(within.map(({ seconds }, index) => seconds / (without[index]?.seconds ?? Number.NaN)));
  const hung = Math.max(...within.map((round) => round.hung));
  return [
    `${healthy.toLocaleString("en")} deliveries to ${endpoints - hanging} healthy endpoints, medians of ${within.length} rounds`,
    "",
    line("", ["seconds", "per s", "hanging"]),
    line("without the five", [...figures(without), "0"]),
    line("with the five", [...figures(within), String(hung)]),
    line("ratio", [ratio.toFixed(2)]),
  ].join("\n");
}

async function run(rounds: number, endings: Endings): Promise<void> {
  const directory = await endings.directory();
  const postgres = await startEmbeddedPostgres({ dataDir: directory, transport: "tcp" });
  endings.add(() => postgres.stop());
  const receivers = new ChildProgram<Expectation, object>("webhook-receivers.ts");
  endings.add(() => receivers.close());
  const database = new pg.Client(postgres.connection);
  endings.add(() => database.end());
  const { port } = (await receivers.nextMessage()) as { port: number };
  await applyMigrations(postgres.connection, { folder: path.join(root, "prisma/migrations") });
  await database.connect();
  const databaseUrl = databaseUrlOf(postgres.connection);
  const bench = { database, databaseUrl, directory, receivers, receiversPort: port, endings };
  await makeWebhooks(bench);
  // Measures both in alternating order; the first pair only warms up.
  const without: Round[] = [];
  const within: Round[] = [];
  for (let round = 0; round <= rounds; round += 1) {
    const [first, second] = [await measure(bench, round % 2 === 1), await measure(bench, round % 2 === 0)];
    const [alone, beside] = round % 2 === 1 ? [second, first] : [first, second];
    process.stderr.write(
      `round ${round}: ${alone.seconds.toFixed(2)} s without, ${beside.seconds.toFixed(2)} s with\n`,
    );
    if (round === 0) continue;
    without.push(alone);
    within.push(beside);
  }
  process.stdout.write(`${table(without, within)}\n`);
}

await runCounted({ usage: "webhook-fairness.ts [rounds]", usual: 5 }, run);
