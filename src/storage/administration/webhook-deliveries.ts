import type { DeliveryFilter } from "../../core/administration/webhooks.ts";
import { firstUuid, lastUuid } from "../../core/ids.ts";
import { type Environment, environments } from "../../core/project.ts";
import {
  type Attempt,
  type Delivery,
  type DeliveryState,
  deliveryStates,
  type EventType,
  leaseSeconds,
} from "../../core/webhook.ts";
import { Prisma } from "../../gen/prisma/client.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";
import { projectExists } from "./existing-project.ts";

/** A delivery with one of its attempts; the columns of the attempt are null if there is none yet. */
interface DeliveryAttemptRow {
  readonly verification_id: string;
  readonly webhook_configuration_id: string;
  readonly type: EventType;
  readonly occurred_at: Date;
  readonly url: string;
  readonly state: DeliveryState;
  readonly resends: number;
  readonly next_attempt_at: Date | null;
  readonly number: number | null;
  readonly started_at: Date;
  readonly duration_ms: number | null;
  readonly status: number | null;
  readonly error: string | null;
  readonly answer: string | null;
}

/**
 * The state to show for the stored state `kept`. A pending delivery of a disabled webhook version `w` is shown as disabled,
 * even if it has not been taken out of the queue yet.
 */
const stateOf = (kept: Prisma.Sql) =>
  Prisma.sql`CASE WHEN ${kept} = 'pending' AND w.disabled_at IS NOT NULL THEN 'disabled' ELSE ${kept}::text END`;

/** Newest first. Up to `limit` + 1 deliveries, so that the caller can tell whether there are more. */
export async function listDeliveries(
  database: PrismaDatabase,
  filter: DeliveryFilter,
): Promise<readonly Delivery[] | "no_project" | "no_verification"> {
  const { verificationId, projectId, environment, states, limit } = filter;
  const before = filter.before ?? lastUuid;
  const wanted: readonly DeliveryState[] = states.length === 0 ? deliveryStates : states;
  const page = (which: Prisma.Sql) => deliveriesWhere(database.reads, which, limit + 1);
  if (projectId !== null && !(await projectExists(database, projectId))) return "no_project";
  const ofProject = projectId === null ? Prisma.sql`true` : Prisma.sql`w.project_id = ${projectId}::uuid`;
  const asked: Environment[] = environment === null ? [...environments] : [environment];
  const ofPlace = Prisma.sql`${ofProject} AND w.environment = ANY (${asked}::text[]::environment[])`;
  if (verificationId !== null) {
    const found = await page(
      Prisma.sql`d.verification_id = ${verificationId}::uuid AND d.verification_id < ${before}::uuid
        AND ${ofPlace} AND ${stateOf(Prisma.sql`d.state`)} = ANY (${wanted}::text[])`,
    );
    if (found.length > 0) return found;
    const known = await database.reads.verification.count({ where: { id: verificationId } });
    return known > 0 ? found : "no_verification";
  }
  const isOfAnyState = new Set(wanted).size === deliveryStates.length;
  if (projectId === null && isOfAnyState) return page(Prisma.sql`d.verification_id < ${before}::uuid`);
  // The newest of each version and state, from one index: the query repeats that index's condition and asks for a range of all
  // its columns, which no other index can answer in order.
  const place = Prisma.sql`(d.webhook_configuration_id, d.state, d.verification_id)`;
  return page(Prisma.sql`d.verification_id = ANY (ARRAY(
    SELECT newest.verification_id
    FROM webhook_configuration w
    CROSS JOIN unnest(enum_range(NULL::webhook_delivery_state)) AS kept (state)
    CROSS JOIN LATERAL (
      SELECT d.verification_id FROM webhook_delivery d
      WHERE d.attempts >= 0
        AND ${place} < (w.id, kept.state, ${before}::uuid) AND ${place} >= (w.id, kept.state, ${firstUuid}::uuid)
      ORDER BY d.webhook_configuration_id DESC, d.state DESC, d.verification_id DESC LIMIT ${limit + 1}
    ) newest
    WHERE ${ofPlace} AND ${stateOf(Prisma.sql`kept.state`)} = ANY (${wanted}::text[])
    ORDER BY newest.verification_id DESC LIMIT ${limit + 1}
  ))`);
}

/** Makes a delivery due at once, unless its webhook is disabled. */
export async function resendDelivery(
  transaction: Transaction,
  verificationId: string,
): Promise<{ readonly delivery: Delivery; readonly projectId: string } | "no_delivery" | "disabled"> {
  // A statement of its own: the result that this may wait for can disable the webhook, which the next one then sees.
  await transaction.$queryRaw`
    SELECT verification_id FROM webhook_delivery WHERE verification_id = ${verificationId}::uuid FOR NO KEY UPDATE`;
  // The lease of an attempt under way is not waited for: after the change of `resends` its result no longer counts.
  const [row] = await transaction.$queryRaw<{ disabled: boolean; project_id: string }[]>`
    WITH target AS MATERIALIZED (
      SELECT d.verification_id, w.project_id, w.disabled_at IS NOT NULL AS disabled
      FROM webhook_delivery d JOIN webhook_configuration w ON w.id = d.webhook_configuration_id
      WHERE d.verification_id = ${verificationId}::uuid
    ),
    sent AS (
      UPDATE webhook_delivery d
      SET state = 'pending', failures = 0, resends = d.resends + 1,
        next_attempt_at = date_trunc('milliseconds', now()), claim = NULL
      FROM target t WHERE d.verification_id = t.verification_id AND NOT t.disabled
    )
    SELECT disabled, project_id FROM target`;
  if (!row) return "no_delivery";
  if (row.disabled) return "disabled";
  // Read before the commit, since afterwards it may be sent and its record deleted at any time.
  const where = Prisma.sql`d.verification_id = ${verificationId}::uuid`;
  const [delivery] = await deliveriesWhere(transaction, where, 1);
  if (!delivery) throw new Error("a delivery disappeared while it was being sent again");
  return { delivery, projectId: row.project_id };
}

/**
 * Attempts shown per delivery. Resends by hand can make any number of them: fifty thousand took 285 MB of the process's memory.
 */
const shownAttempts = 100;

const cutOff = "cut off: what came of it is not known";

/**
 * The newest deliveries `d`, with their versions `w`, that satisfy the condition. An attempt without a result counts as cut off
 * once its lease has run out, whatever else has been begun or requested meanwhile. One statement, so that a delivery's state
 * and its attempts are from the same snapshot.
 */
async function deliveriesWhere(
  connection: Pick<Transaction, "$queryRaw">,
  condition: Prisma.Sql,
  most: number,
): Promise<Delivery[]> {
  const state = stateOf(Prisma.sql`d.state`);
  const rows = await connection.$queryRaw<DeliveryAttemptRow[]>`
    SELECT delivery.*, e.type::text, e.occurred_at, a.number::int, a.started_at, a.duration_ms, a.status::int, a.answer,
      CASE
        WHEN a.duration_ms IS NULL AND a.started_at <= now() - make_interval(secs => ${leaseSeconds}) THEN ${cutOff}
        ELSE a.error
      END AS error
    FROM (
      SELECT d.verification_id, d.webhook_configuration_id, w.url, d.resends::int, ${state} AS state,
        CASE WHEN ${state} = 'pending' THEN d.next_attempt_at END AS next_attempt_at
      FROM webhook_delivery d
      JOIN webhook_configuration w ON w.id = d.webhook_configuration_id
      WHERE ${condition}
      ORDER BY d.verification_id DESC LIMIT ${most}
    ) delivery
    JOIN event e ON e.verification_id = delivery.verification_id
    LEFT JOIN LATERAL (
      SELECT * FROM webhook_attempt WHERE verification_id = delivery.verification_id
      ORDER BY number DESC LIMIT ${shownAttempts}
    ) a ON true
    ORDER BY delivery.verification_id DESC, a.number`;
  return [...Map.groupBy(rows, (row) => row.verification_id).values()].map(deliveryOf);
}

function deliveryOf(rows: readonly DeliveryAttemptRow[]): Delivery {
  const [row] = rows as [DeliveryAttemptRow, ...DeliveryAttemptRow[]];
  return {
    verificationId: row.verification_id,
    webhookId: row.webhook_configuration_id,
    type: row.type,
    occurredAt: row.occurred_at,
    url: row.url,
    state: row.state,
    resends: row.resends,
    nextAttemptAt: row.next_attempt_at,
    attempts: rows.map(attemptOf).filter((attempt) => attempt !== null),
  };
}

function attemptOf(row: DeliveryAttemptRow): Attempt | null {
  if (row.number === null) return null;
  return {
    number: row.number,
    startedAt: row.started_at,
    durationMs: row.duration_ms,
    status: row.status,
    error: row.error,
    answer: row.answer,
  };
}
