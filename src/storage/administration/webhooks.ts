import { type Act, type AuditAction, auditedUrl } from "../../core/administration/audit.ts";
import type { DeliveryFilter, WebhookPlace, WebhookStore } from "../../core/administration/webhooks.ts";
import { encodeId, firstUuid, lastUuid, newId } from "../../core/ids.ts";
import { type Environment, environments } from "../../core/project.ts";
import {
  type Attempt,
  type Delivery,
  type DeliveryState,
  deliveryStates,
  type EventType,
  leaseSeconds,
  type Webhook,
} from "../../core/webhook.ts";
import { Prisma } from "../../gen/prisma/client.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";
import type { Administer } from "./administer.ts";
import { lockProject, projectExists } from "./existing-project.ts";

export function createWebhookStore(database: PrismaDatabase, administer: Administer): WebhookStore {
  const { prisma } = database;

  return {
    async set(place, { url, events, secret }) {
      for (;;) {
        const set = await administer(
          async (transaction) => {
            if (!(await lockProject(transaction, place.projectId))) return "no_project";
            const disabled = (await versions(transaction, ofUrl(place, url)))
              .filter(isDisabled)
              .map(({ id }) => id);
            // Deliveries are locked before versions, as by the statement that records results, and in one order: hence one batch
            // in each transaction.
            if ((await holdBackSome(transaction, place, url)) > 0) return "again";
            const locked = await versionsOf(transaction, place, url);
            // A result does not wait for the project's lock, and may have disabled the URL since.
            if (locked.filter(isDisabled).some(({ id }) => !disabled.includes(id))) return "again";
            const [known] = locked;
            // Setting a URL enables it again in all its versions. The first one remembers when, for the results of earlier requests.
            await transaction.$executeRaw`
            UPDATE webhook_configuration SET disabled_at = NULL, disabled_reason = NULL, failing_since = NULL
            WHERE ${of(place)} AND url = ${url} AND (disabled_at IS NOT NULL OR failing_since IS NOT NULL)`;
            await transaction.$executeRaw`
            UPDATE webhook_configuration SET set_at = date_trunc('milliseconds', statement_timestamp())
            WHERE ${of(place)} AND version = (
              SELECT min(version) FROM webhook_configuration WHERE ${of(place)} AND url = ${url}
            )`;
            const kept = known?.secret ?? secret;
            // The newest version with this URL, if it has the wanted events, is what is to be set. A tool that sets it every minute
            // would otherwise make a version each time, and all are read with each result of a delivery to the URL.
            if (known?.replaced_at === null && known.events.join() === events.join()) {
              return { webhook: await versionWith(transaction, known.id), secret: kept };
            }
            await replaceInForce(transaction, place);
            const id = await insert(transaction, place, { url, events, secret: kept });
            return { webhook: await versionWith(transaction, id), secret: kept };
          },
          (set) => (typeof set === "string" ? null : act("webhook.set", set.webhook)),
          place.projectId,
        );
        if (set !== "again") return set;
      }
    },

    async inForce(place) {
      const [row] = await versions(prisma, Prisma.sql`${of(place)} AND replaced_at IS NULL`);
      return row ? { webhook: webhookOf(row), secret: row.secret, now: row.now } : null;
    },

    async find(id) {
      const [row] = await versions(prisma, Prisma.sql`id = ${id}::uuid`);
      return row ? webhookOf(row) : null;
    },

    rotate: (place, secret) =>
      administer(
        async (transaction) => {
          await lockProject(transaction, place.projectId);
          const replaced = await replaceInForce(transaction, place);
          if (!replaced) return null;
          const { url, events } = replaced;
          const id = await insert(transaction, place, { url, events, secret });
          // A new secret fixes nothing: what is disabled or failing stays so.
          await transaction.$executeRaw`
          UPDATE webhook_configuration w
          SET disabled_at = old.disabled_at, disabled_reason = old.disabled_reason, failing_since = old.failing_since
          FROM webhook_configuration old WHERE w.id = ${id}::uuid AND old.id = ${replaced.id}::uuid`;
          return versionWith(transaction, id);
        },
        (webhook) => webhook && act("webhook.secret_rotated", webhook),
        place.projectId,
      ),

    remove: (place) =>
      administer(
        async (transaction) => {
          await lockProject(transaction, place.projectId);
          const replaced = await replaceInForce(transaction, place);
          return replaced && webhookOf(replaced);
        },
        (webhook) => webhook && act("webhook.removed", webhook),
        place.projectId,
      ),

    async disable(place, url, reason) {
      const disabled = await administer(
        async (transaction) => {
          await lockProject(transaction, place.projectId);
          const named =
            url ?? (await versions(transaction, Prisma.sql`${of(place)} AND replaced_at IS NULL`))[0]?.url;
          if (named === undefined) return null;
          const [newest] = await versionsOf(transaction, place, named);
          if (!newest) return null;
          const changed = await transaction.$executeRaw`
          UPDATE webhook_configuration
          SET disabled_at = date_trunc('milliseconds', now()), disabled_reason = ${reason}
          WHERE ${of(place)} AND url = ${named} AND disabled_at IS NULL`;
          return { webhook: await versionWith(transaction, newest.id), isChanged: changed > 0 };
        },
        (result) => (result?.isChanged ? act("webhook.disabled", result.webhook) : null),
        place.projectId,
      );
      return disabled?.webhook ?? null;
    },

    deliveries: (filter) => listDeliveries(database, filter),

    async resend(verificationId) {
      const resent = await administer(
        async (transaction) => {
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
        },
        (result) =>
          typeof result === "string"
            ? null
            : {
                action: "webhook.resent",
                subject: encodeId("evt_", verificationId),
                projectId: result.projectId,
                details: {},
              },
      );
      return typeof resent === "string" ? resent : resent.delivery;
    },
  };
}

function act(action: AuditAction, { id, projectId, environment, url, events }: Webhook): Act {
  const details = { environment, url: auditedUrl(url), events: events.join(" ") };
  return { action, subject: encodeId("whk_", id), projectId, details };
}

interface VersionRow {
  readonly id: string;
  readonly project_id: string;
  readonly environment: Environment;
  readonly url: string;
  readonly events: EventType[];
  readonly secret: Uint8Array<ArrayBuffer>;
  readonly created_at: Date;
  readonly replaced_at: Date | null;
  readonly disabled_at: Date | null;
  readonly disabled_reason: string | null;
  readonly failing_since: Date | null;
  readonly now: Date;
}

const of = ({ projectId, environment }: WebhookPlace) =>
  Prisma.sql`project_id = ${projectId}::uuid AND environment = ${environment}::environment`;

const ofUrl = (place: WebhookPlace, url: string) => Prisma.sql`${of(place)} AND url = ${url}`;

const versionColumns = Prisma.sql`
  id, project_id, environment::text, url, events::text[], secret, created_at, replaced_at, disabled_at, disabled_reason,
  failing_since, now()`;

const isDisabled = (version: VersionRow) => version.disabled_at !== null;

/** The versions that satisfy a condition, the newest first. */
function versions(connection: Pick<Transaction, "$queryRaw">, condition: Prisma.Sql): Promise<VersionRow[]> {
  return connection.$queryRaw<VersionRow[]>`
    SELECT ${versionColumns} FROM webhook_configuration WHERE ${condition} ORDER BY version DESC`;
}

/** The versions with a URL, the newest first. Locks them by id, the order in which versions are always locked. */
async function versionsOf(transaction: Transaction, place: WebhookPlace, url: string): Promise<VersionRow[]> {
  const condition = ofUrl(place, url);
  await transaction.$queryRaw`
    SELECT id FROM webhook_configuration WHERE ${condition} ORDER BY id FOR NO KEY UPDATE`;
  return versions(transaction, condition);
}

async function versionWith(transaction: Transaction, id: string): Promise<Webhook> {
  const [row] = await versions(transaction, Prisma.sql`id = ${id}::uuid`);
  if (!row) throw new Error("a webhook disappeared while it was being changed");
  return webhookOf(row);
}

const disabledAtOnce = 5_000;

/**
 * Takes the pending deliveries of a URL's disabled versions out of the queue, as claims also do now and then: once a version is
 * enabled again, they could not be distinguished from those that are to be sent. Waits for rows that a claim has locked; the result of
 * an attempt under way still counts. Takes some of them, and returns how many: 0 if none is left.
 */
function holdBackSome(
  transaction: Pick<Transaction, "$executeRaw">,
  place: WebhookPlace,
  url: string,
): Promise<number> {
  return transaction.$executeRaw`
    WITH waiting AS MATERIALIZED (
      SELECT d.verification_id FROM webhook_delivery d
      WHERE d.state = 'pending' AND d.webhook_configuration_id = ANY (ARRAY(
        SELECT id FROM webhook_configuration WHERE ${of(place)} AND url = ${url} AND disabled_at IS NOT NULL
      ))
      ORDER BY d.webhook_configuration_id, d.next_attempt_at LIMIT ${disabledAtOnce}
    ),
    locked AS MATERIALIZED (
      SELECT d.verification_id FROM webhook_delivery d
      WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM waiting)) AND d.state = 'pending'
      ORDER BY d.verification_id FOR NO KEY UPDATE
    )
    UPDATE webhook_delivery d SET state = 'disabled', next_attempt_at = NULL
    WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM locked))`;
}

/**
 * Replaces the version in force. Uses `statement_timestamp()`, which is read under the project's lock, not the transaction's
 * start.
 */
async function replaceInForce(transaction: Transaction, place: WebhookPlace): Promise<VersionRow | null> {
  const [replaced] = await transaction.$queryRaw<VersionRow[]>`
    UPDATE webhook_configuration SET replaced_at = date_trunc('milliseconds', statement_timestamp())
    WHERE ${of(place)} AND replaced_at IS NULL
    RETURNING ${versionColumns}`;
  return replaced ?? null;
}

async function insert(
  transaction: Transaction,
  place: WebhookPlace,
  webhook: { readonly url: string; readonly events: readonly EventType[]; readonly secret: Uint8Array },
): Promise<string> {
  const id = newId();
  await transaction.$executeRaw`
    INSERT INTO webhook_configuration (id, project_id, environment, version, url, events, secret, created_at)
    VALUES (
      ${id}::uuid, ${place.projectId}::uuid, ${place.environment}::environment,
      (SELECT coalesce(max(version), 0) + 1 FROM webhook_configuration WHERE ${of(place)}),
      ${webhook.url}, ${[...webhook.events]}::text[]::event_type[], ${Uint8Array.from(webhook.secret)},
      date_trunc('milliseconds', statement_timestamp())
    )`;
  return id;
}

function webhookOf(row: VersionRow): Webhook {
  return {
    id: row.id,
    projectId: row.project_id,
    environment: row.environment,
    url: row.url,
    events: row.events,
    createdAt: row.created_at,
    replacedAt: row.replaced_at,
    disabledAt: row.disabled_at,
    disabledReason: row.disabled_reason,
    failingSince: row.failing_since,
  };
}

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
async function listDeliveries(
  database: PrismaDatabase,
  filter: DeliveryFilter,
): Promise<readonly Delivery[] | "no_project" | "no_verification"> {
  const { verificationId, projectId, environment, states, limit } = filter;
  const before = filter.before ?? lastUuid;
  const wanted: readonly DeliveryState[] = states.length === 0 ? deliveryStates : states;
  const page = (which: Prisma.Sql) => deliveriesWhere(database.prisma, which, limit + 1);
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
    const known = await database.prisma.verification.count({ where: { id: verificationId } });
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
