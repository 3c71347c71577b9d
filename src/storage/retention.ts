import { firstUuid } from "../core/ids.ts";
import { missWindowMs } from "../core/inbound-judgement.ts";
import { validityRange } from "../core/project.ts";
import { isLetGo } from "./code-occupancy.ts";
import { keyLife } from "./creations.ts";
import { type Database, runStatement } from "./database.ts";
import { erasedMessages, erasedVerifications } from "./erasure.ts";
import { duplicateWindow } from "./inbound-state.ts";
import { dueExpired, movedColumns, noticeSent, tellMoved } from "./transition.ts";
import { firstIdAt } from "./verification-row.ts";

/** How long things are kept, in days. */
export interface RetentionSettings {
  /** Texts and numbers of messages that matched nothing. */
  readonly unmatchedDays: number;
  /** Phones, texts and deliveries of finished verifications. */
  readonly finishedDays: number;
  /** Hours of the statistics. */
  readonly statisticsDays: number;
}

/** One kind of thing that has an end. */
export interface RetentionTask {
  readonly name: string;
  /** Handles a batch and answers whether more may be waiting; null where another process is at it. */
  work(): Promise<boolean | null>;
}

/** Small enough that no lock is held for long, large enough to keep up with ten thousand a second. */
const batchSize = 1_000;

/** After its text is gone a message stays known as a duplicate for this long. */
const knownDays = 30;

/**
 * Deletes what has ended, skipping what another process holds. Needs an index on what `ended` asks, or a small table. The
 * days are $1 where it asks for them.
 */
function deletion(table: string, ended: string): string {
  return `
DELETE FROM ${table} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM ${table} WHERE ${ended} LIMIT ${batchSize} FOR UPDATE SKIP LOCKED
)) RETURNING 1`;
}

/**
 * A pass over a growing table, once over each row, in the order of a column: what stays behind is not looked at
 * again. The bound takes rows with equal values together, since a pass remembers the value only. Whoever holds the
 * row of the pass makes it; others find nothing to do, and are answered null.
 *
 * Where it has come to is put into the conditions as a value, not joined: joined, all that lies behind was walked for each batch
 * once a table had grown, since its index gives the order that is asked for (200 ms at 1.5 million messages, now 0.4).
 */
function pass(parts: {
  readonly task: string;
  readonly table: string;
  readonly order: string;
  readonly type: "timestamptz" | "uuid";
  /** The last value whose row is old enough, with the days as $1. */
  readonly cutOff: string;
  /** The pass goes no further than to the first row `t` of which this is so. */
  readonly before?: string;
  /** CTEs that do the work, over the rows that lie `within` the batch. */
  readonly work: string;
}): string {
  const { task, table, order, type, cutOff, before = "false", work } = parts;
  return `
WITH progress AS MATERIALIZED (
  SELECT done_up_to::${type} AS since FROM retention_progress WHERE task = '${task}' FOR UPDATE SKIP LOCKED
),
bound AS MATERIALIZED (
  SELECT (array_agg(value ORDER BY value DESC))[1] AS upto, count(*) AS found
  FROM (
    SELECT value, bool_or(stops) OVER (ORDER BY value) AS stopped
    FROM (
      SELECT t.${order} AS value, ${before} AS stops FROM ${table} t
      WHERE t.${order} > (SELECT since FROM progress) AND t.${order} <= ${cutOff}
      ORDER BY t.${order} LIMIT ${batchSize}
    ) batch
  ) looked_at
  WHERE NOT stopped
),
${work},
moved AS (
  UPDATE retention_progress r SET done_up_to = bound.upto::text
  FROM bound WHERE r.task = '${task}' AND bound.upto IS NOT NULL
)
SELECT CASE WHEN EXISTS (SELECT FROM progress) THEN found::float8 END FROM bound`;
}

/** Rows with a value of `column` between where a pass has come to and the end of its batch. */
const within = (column: string) =>
  `${column} > (SELECT since FROM progress) AND ${column} <= (SELECT upto FROM bound)`;

function messagePass(task: string, work: string): string {
  return pass({
    task,
    table: "inbound_message",
    order: "ingested_at",
    type: "timestamptz",
    cutOff: "now() - make_interval(days => $1::int)",
    work,
  });
}

function messageErasure(task: string, which: string): string {
  return messagePass(task, erasedMessages({ where: `${which} AND ${within("m.ingested_at")}` }));
}

function messageDeletion(task: string, which: string): string {
  const text = `DELETE FROM inbound_message m WHERE ${which} AND ${within("m.ingested_at")}`;
  return messagePass(task, `deleted AS (${text})`);
}

/** Ids of verifications made before the days, and the longest validity, begin with less. */
const oldestKept = firstIdAt(`now() - make_interval(days => $1::int, secs => ${validityRange.max})`);

/**
 * Verifications by their ids, which begin with the time they were made. One made the longest validity before the days is
 * over, though it may have yet to be moved: the pass goes no further until then (`overdueEnd`). It passes by those whose event
 * is still tried; they are erased once that has ended.
 */
const verificationErasure = pass({
  task: "erase_verifications",
  table: "verification",
  order: "id",
  type: "uuid",
  cutOff: oldestKept,
  before: "t.status = 'pending'",
  work: `
${erasedVerifications({
  where: `${within("v.id")} AND NOT EXISTS (
    SELECT FROM webhook_delivery WHERE verification_id = v.id AND state = 'pending' OFFSET 0
  )`,
})},
undelivered AS (
  DELETE FROM webhook_delivery d WHERE ${within("d.verification_id")} AND d.state <> 'pending'
)`,
});

/**
 * Expires what that pass stands before. After a long downtime the expiry has not come to it yet; after a time in which the
 * database's clock was ahead it may never do, since it looks at no code twice.
 */
const overdueEnd = `
WITH batch AS MATERIALIZED (
  SELECT v.id, v.status FROM verification v
  WHERE v.id > (SELECT done_up_to::uuid FROM retention_progress WHERE task = 'erase_verifications') AND v.id <= ${oldestKept}
  ORDER BY v.id LIMIT ${batchSize}
),${dueExpired("v.id = ANY (ARRAY(SELECT id FROM batch WHERE status = 'pending'))", "skip")}
SELECT ${movedColumns("expired")}, ${noticeSent("expired")}`;

/**
 * What that pass went by, found by its deliveries: none but theirs are left behind it. Looks at a batch after $1 and answers the
 * last of it.
 */
const triedLongerErasure = `
WITH batch AS MATERIALIZED (
  SELECT d.verification_id, d.state FROM webhook_delivery d
  WHERE d.verification_id > $1::uuid
    AND d.verification_id <= (SELECT done_up_to::uuid FROM retention_progress WHERE task = 'erase_verifications')
  ORDER BY d.verification_id LIMIT ${batchSize}
),
ended AS MATERIALIZED (
  SELECT d.verification_id FROM webhook_delivery d
  WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM batch WHERE state <> 'pending')) AND d.state <> 'pending'
  ORDER BY d.verification_id FOR UPDATE SKIP LOCKED
),
${erasedVerifications({ where: "v.id = ANY (ARRAY(SELECT verification_id FROM ended))" })},
undelivered AS (
  DELETE FROM webhook_delivery d WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM ended))
)
SELECT (array_agg(verification_id ORDER BY verification_id DESC))[1]::text, count(*)::float8 FROM batch`;

/** Every environment is named for the key of the receptions, which begins with it. */
const hasPassed = "hour < now() - make_interval(days => $1::int)";
const endedHours = {
  number_statistics: hasPassed,
  carrier_statistics: hasPassed,
  reception_statistics: `environment = ANY (enum_range(NULL::environment)) AND ${hasPassed}`,
};

/** Everything that is deleted or erased by the clock. */
export function createRetentionTasks(database: Database, settings: RetentionSettings): RetentionTask[] {
  const { unmatchedDays, finishedDays, statisticsDays } = settings;

  function deleting(name: string, text: string, ...days: number[]): RetentionTask {
    return {
      name,
      async work() {
        return (await runStatement(database, { name: `delete_${name}`, text }, days)).length === batchSize;
      },
    };
  }

  function passing(name: string, text: string, days: number): RetentionTask {
    return {
      name,
      async work() {
        const [row] = await runStatement(database, { name, text }, [days]);
        const found = row?.[0] ?? null;
        return found === null ? null : found === batchSize;
      },
    };
  }

  function erasingVerifications(): RetentionTask {
    const erasing = passing("erase_verifications", verificationErasure, finishedDays);
    return {
      name: erasing.name,
      async work() {
        const isLeft = await erasing.work();
        if (isLeft) return true;
        const statement = { name: "expire_overdue", text: overdueEnd };
        const [moved = []] = await runStatement(database, statement, [finishedDays]);
        return tellMoved(database.observer, "expired", moved) > 0 || isLeft;
      },
    };
  }

  /** Goes on where it left off, and from the beginning once it has looked at all. */
  function erasingTriedLonger(): RetentionTask {
    const name = "erase_tried_longer";
    let since = firstUuid;
    return {
      name,
      async work() {
        const [row] = await runStatement(database, { name, text: triedLongerErasure }, [since]);
        const more = row?.[1] === batchSize;
        since = more ? (row?.[0] as string) : firstUuid;
        return more;
      },
    };
  }

  return [
    deleting("idempotency_records", deletion("idempotency_record", `created_at <= now() - ${keyLife}`)),
    deleting("codes", deletion("live_code", isLetGo("live_code"))),
    deleting("window_tokens", deletion("window_token", "delete_after <= now()")),
    // Each of the nine waits between a delivery's attempts may be a day where the endpoint asks for it.
    deleting("creation_traces", deletion("creation_trace", "created_at <= now() - interval '10 days'")),
    // None is looked at once its verification is over.
    deleting(
      "pending_hints",
      deletion("pending_hint", `noticed_at <= now() - interval '${2 * validityRange.max} seconds'`),
    ),
    deleting("fingerprints", deletion("message_fingerprint", `first_at <= now() - ${duplicateWindow}`)),
    deleting(
      "senders",
      deletion(
        "inbound_sender",
        `coalesce(muted_until <= now(), true)
         AND coalesce(miss_times[cardinality(miss_times)] <= now() - interval '${missWindowMs} milliseconds', true)`,
      ),
    ),
    passing(
      "erase_unmatched_messages",
      messageErasure("erase_unmatched_messages", "m.verification_id IS NULL"),
      unmatchedDays,
    ),
    passing(
      "erase_matched_messages",
      messageErasure("erase_matched_messages", "m.verification_id IS NOT NULL"),
      finishedDays,
    ),
    passing(
      "delete_unmatched_messages",
      messageDeletion("delete_unmatched_messages", "m.verification_id IS NULL"),
      unmatchedDays + knownDays,
    ),
    passing(
      "delete_matched_messages",
      messageDeletion("delete_matched_messages", "m.verification_id IS NOT NULL"),
      finishedDays + knownDays,
    ),
    erasingVerifications(),
    erasingTriedLonger(),
    ...Object.entries(endedHours).map(([table, ended]) =>
      deleting(table, deletion(table, ended), statisticsDays),
    ),
  ];
}
