import { type Act, type AuditAction, auditedUrl } from "../../core/administration/audit.ts";
import type { WebhookPlace, WebhookStore } from "../../core/administration/webhooks.ts";
import { encodeId, newId } from "../../core/ids.ts";
import type { Environment } from "../../core/project.ts";
import type { EventType, Webhook } from "../../core/webhook.ts";
import { Prisma } from "../../gen/prisma/client.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";
import type { Administer } from "./administer.ts";
import { lockProject } from "./existing-project.ts";
import { listDeliveries, resendDelivery } from "./webhook-deliveries.ts";

export function createWebhookStore(database: PrismaDatabase, administer: Administer): WebhookStore {
  const { reads } = database;

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
            WHERE ${ofUrl(place, url)} AND (disabled_at IS NOT NULL OR failing_since IS NOT NULL)`;
            await transaction.$executeRaw`
            UPDATE webhook_configuration SET set_at = date_trunc('milliseconds', statement_timestamp())
            WHERE ${of(place)} AND version = (
              SELECT min(version) FROM webhook_configuration WHERE ${ofUrl(place, url)}
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
      const [row] = await versions(reads, isInForce(place));
      return row ? { webhook: webhookOf(row), secret: row.secret, now: row.now } : null;
    },

    async find(id) {
      const [row] = await versions(reads, Prisma.sql`id = ${id}::uuid`);
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
          const named = url ?? (await versions(transaction, isInForce(place)))[0]?.url;
          if (named === undefined) return null;
          const [newest] = await versionsOf(transaction, place, named);
          if (!newest) return null;
          const changed = await transaction.$executeRaw`
          UPDATE webhook_configuration
          SET disabled_at = date_trunc('milliseconds', now()), disabled_reason = ${reason}
          WHERE ${ofUrl(place, named)} AND disabled_at IS NULL`;
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
        (transaction) => resendDelivery(transaction, verificationId),
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

const isInForce = (place: WebhookPlace) => Prisma.sql`${of(place)} AND replaced_at IS NULL`;

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
        SELECT id FROM webhook_configuration WHERE ${ofUrl(place, url)} AND disabled_at IS NOT NULL
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
    WHERE ${isInForce(place)}
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
