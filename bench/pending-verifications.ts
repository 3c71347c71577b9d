/**
 * Hundreds of thousands of pending verifications, inserted in bulk: creating them through the service would take longer than
 * the run.
 */

import type pg from "pg";
import { encodeId } from "../src/core/ids.ts";
import type { Environment } from "../src/core/project.ts";
import {
  codeFactor,
  codeLength,
  codeSpace,
  type InboundSms,
  senderFactor,
  senderSpace,
  smsFor,
  smsTextOf,
} from "./requests.ts";
import type { BenchProject } from "./service.ts";
import { creationTables, insertLike, type Template } from "./template.ts";

const chunk = 20_000;

/** Inserts the rows of creations into all their tables, in both environments and both modes. */
const seedText = (template: Template) => `
WITH seed AS MATERIALIZED (
  SELECT n, uuidv7() AS id,
    CASE WHEN n % 2 = 0 THEN 'live' ELSE 'test' END::environment AS environment,
    CASE WHEN n % 2 = 0 THEN $3::text ELSE $4::text END AS destination,
    CASE WHEN n % 4 < 2 THEN 'match' ELSE 'discover' END::verification_mode AS mode,
    lpad((n * ${codeFactor} % ${codeSpace})::text, ${codeLength}, '0') AS code,
    '010' || lpad((n * ${senderFactor} % ${senderSpace})::text, 8, '0') AS phone
  FROM generate_series($1::bigint, $2::bigint - 1) AS n
),
codes AS (
  ${insertLike(template, "live_code", {
    destination: "destination",
    code: "code",
    verification_id: "id",
    window_digest: "sha256(id::text::bytea)",
  })} FROM seed
  ON CONFLICT DO NOTHING RETURNING verification_id
),
free AS MATERIALIZED (
  SELECT seed.* FROM seed JOIN codes ON codes.verification_id = seed.id
),
records AS (
  ${insertLike(template, "idempotency_record", {
    environment: "environment",
    key: "gen_random_uuid()::text",
    verification_id: "id",
    verification_url: "'http://localhost:8080/v/' || left(md5(n::text), 22)",
  })} FROM free
),
verifications AS (
  ${insertLike(template, "verification", {
    id: "id",
    environment: "environment",
    destination: "destination",
    mode: "mode",
    expected_phone: "CASE mode WHEN 'match' THEN phone END",
    client_reference: "'signup-20261121-' || n",
    state: "md5(n::text)",
    sms_text: "replace($5::text, '{code}', code)",
  })} FROM free
)
SELECT n::int4 AS n, id::text FROM free ORDER BY n`;

export interface SeededVerification {
  /** `vrf_…` */
  readonly id: string;
  readonly environment: Environment;
  /** The SMS that would verify it. */
  readonly sms: InboundSms;
}

export class PendingVerifications {
  readonly #database: pg.Client;
  readonly #project: BenchProject;
  readonly #untouched: SeededVerification[] = [];
  #seeded = 0;

  constructor(database: pg.Client, project: BenchProject) {
    this.#database = database;
    this.#project = project;
  }

  /** Returns the oldest ones, seeding as many as needed so that `remaining` others are left. */
  async take(count: number, remaining: number): Promise<SeededVerification[]> {
    if (this.#untouched.length < count + remaining) {
      while (this.#untouched.length < count + remaining) await this.#seed();
      // Autovacuum would do this within a minute: the planner needs to know the tables' size.
      await this.#database.query(`ANALYZE ${creationTables.join(", ")}`);
    }
    return this.#untouched.splice(0, count);
  }

  /** Inserts slightly fewer than a chunk if the service has already assigned some of these codes. */
  async #seed(): Promise<void> {
    const { numbers, template } = this.#project;
    const { rows } = await this.#database.query<{ n: number; id: string }>(seedText(template), [
      this.#seeded,
      this.#seeded + chunk,
      numbers.live,
      numbers.test,
      smsTextOf("{code}"),
    ]);
    for (const { n, id } of rows) {
      const environment = n % 2 === 0 ? "live" : "test";
      this.#untouched.push({ id: encodeId("vrf_", id), environment, sms: smsFor(n, numbers[environment]) });
    }
    this.#seeded += chunk;
  }
}
