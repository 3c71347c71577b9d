/**
 * `node bench/statistics.ts [calls]`: a million verifications of one week, on five numbers of one project. Measures how long a
 * worker takes to count them retrospectively, and the latency of reading them over gRPC. The service runs in one process as in
 * production, on a Postgres with full durability.
 */

import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type Client, createClient } from "@connectrpc/connect";
import pg from "pg";
import { newCredential } from "../src/core/credential.ts";
import { encodeId } from "../src/core/ids.ts";
import { StatisticsService } from "../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { Environment } from "../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startEmbeddedPostgres } from "../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../src/storage/migrations.ts";
import { transportTo } from "../test/harness/grpc-transport.ts";
import { type Endings, runCounted } from "./endings.ts";
import { databaseUrlOf, startReady } from "./ready-service.ts";

const verifications = 1_000_000;
const chunk = 50_000;
const days = 7;
const numbers = 5;

const root = path.join(import.meta.dirname, "..");
const countTimeoutMs = 600_000;

/** The rows as they would be a week later: four of five verified, about half a minute after creation. */
const madeText = `
WITH made AS (
  SELECT uuidv7(place.ago) AS id, n, date_trunc('milliseconds', now()) + place.ago AS created_at
  FROM generate_series($2::int, $3::int - 1) AS n,
    LATERAL (SELECT (n::float8 / $4::int - 1) * interval '${days} days' - interval '1 hour' AS ago) place
),
ended AS (
  SELECT *, CASE WHEN n % 5 < 4 THEN 'verified' WHEN n % 10 = 4 THEN 'expired' ELSE 'cancelled' END AS status,
    CASE WHEN n % 5 < 4 THEN created_at + exp(3.4 + 0.7 * (random() + random() + random() + random() - 2)) * interval '1 second'
    END AS verified_at
  FROM made
),
stored AS (
  INSERT INTO verification (id, project_id, environment, mode, status, carrier, client_reference, state, destination,
    sms_text, created_at, expires_at, verified_at)
  SELECT id, $1::uuid, 'live', 'discover', status::verification_status,
    CASE WHEN status = 'verified' THEN (ARRAY['SKT', 'SKT', 'KT', 'LGU+', NULL])[1 + n % 7 % 5]::carrier END,
    'order-' || n, '', '020000000' || n % ${numbers}, '-', created_at, created_at + interval '10 minutes', verified_at
  FROM ended
  RETURNING id
)
INSERT INTO event SELECT id, ('verification.' || status)::event_type, coalesce(verified_at, created_at + interval '10 minutes')
FROM ended`;

async function makePast(database: pg.Client): Promise<string> {
  const { rows } = await database.query<{ id: string }>(
    `INSERT INTO project (id, name, code_format, code_length, validity_seconds, rate_limit_per_minute)
     VALUES (uuidv7(), 'Busy', 'numeric', 8, 600, 6000) RETURNING id::text`,
  );
  const [project] = rows as [{ id: string }];
  // Disables foreign key checks: events refer to verifications that the same statement inserts.
  await database.query("SET session_replication_role = replica");
  for (let from = 0; from < verifications; from += chunk) {
    await database.query(madeText, [project.id, from, from + chunk, verifications]);
  }
  await database.query("VACUUM ANALYZE");
  return project.id;
}

function statisticsOf(grpcAddress: string, token: string): Statistics {
  const transport = transportTo(grpcAddress, `Bearer ${token}`);
  return createClient(StatisticsService, transport);
}

type Statistics = Client<typeof StatisticsService>;

/** Seconds until an answer is complete. */
async function counted(client: Statistics, projectId: string): Promise<number> {
  const begunAt = performance.now();
  while ((await client.getStatistics({ projectId })).incomplete) {
    if (performance.now() - begunAt > countTimeoutMs)
      throw new Error("the past verifications were not counted in time");
    await delay(100);
  }
  return (performance.now() - begunAt) / 1000;
}

async function measure(client: Statistics, projectId: string, hours: number, calls: number): Promise<string> {
  const request = { projectId, environment: Environment.LIVE, hours };
  const milliseconds: number[] = [];
  let verified = 0;
  for (let call = 0; call < calls + calls / 5; call++) {
    const startedAt = performance.now();
    const { environments } = await client.getStatistics(request);
    if (call >= calls / 5) milliseconds.push(performance.now() - startedAt);
    verified = Number(environments[0]?.total?.verified);
  }
  const sorted = milliseconds.toSorted((one, other) => one - other);
  const at = (share: number) => (sorted[Math.ceil(sorted.length * share) - 1] ?? Number.NaN).toFixed(1);
  const cells = [`${hours} h`, verified.toLocaleString("en"), at(0.5), at(0.95)];
  return cells.map((cell) => cell.padStart(12)).join("");
}

async function bench(calls: number, endings: Endings): Promise<void> {
  const directory = await endings.directory();
  const postgres = await startEmbeddedPostgres({ dataDir: directory, transport: "tcp" });
  endings.add(() => postgres.stop());
  const database = new pg.Client(postgres.connection);
  endings.add(() => database.end());
  await applyMigrations(postgres.connection, { folder: path.join(root, "prisma/migrations") });
  await database.connect();
  const projectId = encodeId("prj_", await makePast(database));
  const token = newCredential("svc");
  const settings = { DATABASE_URL: databaseUrlOf(postgres.connection), PHONEPROOF_ADMIN_TOKEN: token };
  const service = await startReady(directory, settings, ({ stop }) => endings.add(stop));
  const client = statisticsOf(service.grpcAddress, token);
  const seconds = await counted(client, projectId);
  const heading = ["", "verified", "p50 ms", "p95 ms"].map((cell) => cell.padStart(12)).join("");
  const lines = [heading];
  for (const hours of [24, 169]) lines.push(await measure(client, projectId, hours, calls));
  const past = `${verifications.toLocaleString("en")} verifications, counted as the past in ${seconds.toFixed(1)} s`;
  process.stdout.write(`${[past, "", ...lines].join("\n")}\n`);
}

await runCounted({ usage: "statistics.ts [calls]", usual: 100, least: 5 }, bench);
