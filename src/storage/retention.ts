import { firstUuid } from "../core/ids.ts";
import { maxAheadMs, missWindowMs, muteMs } from "../core/inbound-judgement.ts";
import { validityRange } from "../core/project.ts";
import { isReleasable } from "./code-occupancy.ts";
import { type Database, runStatement } from "./database.ts";
import { erasedMessages, erasedVerifications } from "./erased-rows.ts";
import { keyLife } from "./idempotency-records.ts";
import { isRemembered } from "./inbound-state.ts";
import { isStillSteady } from "./retention-clock.ts";
import { expireDue, noticesSent, reportTransitions, transitionCounts } from "./transition.ts";
import { lowestIdAt, nowMs } from "./verification-row.ts";

/** How long data is kept, in days. */
export interface RetentionSettings {
  /** Texts and numbers of messages that matched nothing. */
  readonly unmatchedDays: number;
  /** Phones, texts and deliveries of finished verifications. */
  readonly finishedDays: number;
  /** Hourly rows of the statistics. */
  readonly statisticsDays: number;
}

/** Deletes or erases one kind of data. */
export interface RetentionTask {
  readonly name: string;
  /**
   * Handles a batch, unless the clock has jumped since the last look at it. Resolves to whether more may be waiting, or to null if
   * that is not known: another process is at work on it, or the clock has jumped.
   */
  work(): Promise<boolean | null>;
  /** Brings a position that is ahead of the clock back. Erases nothing, so that it is also done while the clock may be wrong. */
  goBack?(): Promise<void>;
}

/** Small enough that no lock is held for long, large enough to keep up with ten thousand a second. */
const batchSize = 1_000;

/** How long a message is still recognised as a duplicate after its text was erased. */
const knownDays = 30;

interface Pass {
  readonly task: string;
  /** The statements; $1 are the days. */
  readonly batch: string;
  readonly goBack: string;
}

/**
 * A pass over a growing table, once over each row, in the order of a column: rows behind its position are not looked at again.
 * Rows with equal values are handled in one batch, since only the value is remembered. The process that locks the row of the
 * pass works; others find nothing to do and get null, as do all once the clock is not steady.
 *
 * A position ahead of the clock was reached before the clock was set back. Rows written since lie behind it and would be kept
 * for ever, so it goes back to where it would be now: with the next batch, and by `goBack` while retention waits because of the
 * clock, which may be right again before that is over.
 *
 * The position enters the conditions as a scalar subquery, not as a join. With a join each batch of a grown table scanned all
 * that lies behind the position, since the index already gives the requested order (200 ms at 1.5 million messages, instead of
 * 0.4).
 */
function pass(parts: {
  readonly task: string;
  readonly table: string;
  readonly order: string;
  readonly type: "timestamptz" | "uuid";
  /** SQL for the last value whose row is old enough; $1 are the days. */
  readonly cutOff: string;
  /** The pass stops before the first row `t` that satisfies this. */
  readonly before?: string;
  /** CTEs that do the work, over the rows that lie `within` the batch. */
  readonly work: string;
}): Pass {
  const { task, table, order, type, cutOff, before = "false", work } = parts;
  const present = type === "uuid" ? lowestIdAt("now()") : "now()";
  const progress = (condition: string) => `
WITH progress AS MATERIALIZED (
  SELECT done_up_to::${type} AS since FROM retention_progress WHERE task = '${task}' AND ${condition} FOR UPDATE SKIP LOCKED
)`;
  const batch = `${progress(isStillSteady)},
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
  UPDATE retention_progress r
  SET done_up_to = CASE WHEN progress.since > ${present} THEN ${cutOff} ELSE bound.upto END::text
  FROM bound, progress WHERE r.task = '${task}' AND (bound.upto IS NOT NULL OR progress.since > ${present})
)
SELECT CASE WHEN EXISTS (SELECT FROM progress) THEN found::float8 END FROM bound`;
  const goBack = `${progress("true")}
UPDATE retention_progress SET done_up_to = (${cutOff})::text
FROM progress WHERE task = '${task}' AND progress.since > ${present}`;
  return { task, batch, goBack };
}

/** Whether `column` lies between the position of the pass and the end of its batch. */
const within = (column: string) =>
  `${column} > (SELECT since FROM progress) AND ${column} <= (SELECT upto FROM bound)`;

function messagePass(task: string, work: string): Pass {
  return pass({
    task,
    table: "inbound_message",
    order: "ingested_at",
    type: "timestamptz",
    cutOff: "now() - make_interval(days => $1::int)",
    work,
  });
}

function messageErasure(task: string, which: string): Pass {
  return messagePass(task, erasedMessages({ where: `${which} AND ${within("m.ingested_at")}` }));
}

/**
 * Locks the rows in key order, as erasures do: what another process has not yet erased may be due for both. They are found again by
 * their time: by their keys alone, Postgres may read all messages if a pooler drops the planner's settings.
 */
function messageDeletion(task: string, which: string): Pass {
  return messagePass(
    task,
    `
old_message AS MATERIALIZED (
  SELECT m.source, m.message_id FROM inbound_message m WHERE ${which} AND ${within("m.ingested_at")}
  ORDER BY m.source, m.message_id FOR UPDATE
),
deleted AS (
  DELETE FROM inbound_message m USING old_message o
  WHERE m.source = o.source AND m.message_id = o.message_id AND ${within("m.ingested_at")}
)`,
  );
}

/** All verifications made more than $1 days and the longest validity ago have lower ids. */
const oldestKept = lowestIdAt(`now() - make_interval(days => $1::int, secs => ${validityRange.max})`);

/** A CTE `ended` of the deliveries `d` that satisfy the condition and are no longer attempted. It locks them. */
function endedDeliveries(which: string): string {
  return `
ended AS MATERIALIZED (
  SELECT d.verification_id FROM webhook_delivery d
  WHERE ${which} AND d.state <> 'pending'
  ORDER BY d.verification_id FOR UPDATE SKIP LOCKED
)`;
}

/** Deletes them. */
const undelivered = `
undelivered AS (
  DELETE FROM webhook_delivery d WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM ended))
)`;

/**
 * Erases verifications in the order of their ids, which begin with the creation time. A verification that old is past its
 * expiry, but its row may still be pending: the pass stops there until the row has been moved (`overdueEnd`). The pass skips
 * verifications whose event is still being delivered; `triedLongerErasure` erases them once that has ended.
 *
 * The deliveries that have ended are locked first: one that is just being sent again would otherwise be kept, and sent without the
 * phone. Those that another transaction has locked are skipped as well.
 */
const verificationErasure = pass({
  task: "erase_verifications",
  table: "verification",
  order: "id",
  type: "uuid",
  cutOff: oldestKept,
  before: "t.status = 'pending'",
  work: `
${endedDeliveries(within("d.verification_id"))},
${erasedVerifications({
  where: `${within("v.id")} AND NOT EXISTS (
    SELECT FROM webhook_delivery
    WHERE verification_id = v.id AND verification_id NOT IN (SELECT verification_id FROM ended) OFFSET 0
  )`,
})},
${undelivered}`,
});

/**
 * Expires the pending rows that the pass stops at. After a long downtime the expiry has not reached them yet; after a time in
 * which the database's clock was ahead it may never reach them, since it looks at no code twice.
 *
 * Up to 0.3.0, the first rows that a process stored after a jump of the clock had ids from before it. Those of a clock that was
 * ahead are not due until their `expires_at`, which may be months away, and the pass must not stop for that long: they are expired
 * as well.
 */
const overdueEnd = `
WITH batch AS MATERIALIZED (
  SELECT v.id FROM verification v
  WHERE v.id > (SELECT done_up_to::uuid FROM retention_progress WHERE task = 'erase_verifications') AND v.id <= ${oldestKept}
  ORDER BY v.id LIMIT ${batchSize}
),${expireDue(
  "v.id = ANY (ARRAY(SELECT id FROM batch))",
  "skip",
  `v.expires_at <= ${nowMs} OR v.created_at > ${nowMs}`,
)}
SELECT ${transitionCounts("expired")}, ${noticesSent("expired")}`;

/**
 * Erases what the pass has skipped, found by the deliveries: no others are left behind the pass. Looks at a batch after $1 and
 * returns the last id of it and its size, which is null once the clock is not steady: the pass's position may then be ahead of it.
 */
const triedLongerErasure = `
WITH batch AS MATERIALIZED (
  SELECT d.verification_id, d.state FROM webhook_delivery d
  WHERE d.verification_id > $1::uuid
    AND d.verification_id <= (SELECT done_up_to::uuid FROM retention_progress WHERE task = 'erase_verifications')
    AND ${isStillSteady}
  ORDER BY d.verification_id LIMIT ${batchSize}
),
${endedDeliveries("d.verification_id = ANY (ARRAY(SELECT verification_id FROM batch WHERE state <> 'pending'))")},
${erasedVerifications({ where: "v.id = ANY (ARRAY(SELECT verification_id FROM ended))" })},
${undelivered}
SELECT (array_agg(verification_id ORDER BY verification_id DESC))[1]::text,
  CASE WHEN ${isStillSteady} THEN count(*)::float8 END
FROM batch`;

/** The receptions' condition names every environment, so that their primary key, which begins with it, can be used. */
const hasPassed = "hour < now() - make_interval(days => $1::int)";
const endedHours = {
  number_statistics: hasPassed,
  carrier_statistics: hasPassed,
  reception_statistics: `environment = ANY (enum_range(NULL::environment)) AND ${hasPassed}`,
};

const lastMiss = "miss_times[cardinality(miss_times)]";

/** Everything that is deleted or erased when its time is over. */
export function createRetentionTasks(database: Database, settings: RetentionSettings): RetentionTask[] {
  const { unmatchedDays, finishedDays, statisticsDays } = settings;

  /**
   * Deletes the rows that satisfy `ended`, skipping locked ones. Needs an index for `ended`, or a small table. $1 are the days,
   * if `ended` uses them.
   */
  function deleting(name: string, table: string, ended: string, ...days: number[]): RetentionTask {
    const statement = {
      name: `delete_${name}`,
      text: `
DELETE FROM ${table} WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM ${table} WHERE (${ended}) AND ${isStillSteady} LIMIT ${batchSize} FOR UPDATE SKIP LOCKED
)) RETURNING 1`,
    };
    return {
      name,
      async work() {
        return (await runStatement(database, statement, days)).length === batchSize;
      },
    };
  }

  function passing({ task, batch, goBack }: Pass, days: number): RetentionTask {
    return {
      name: task,
      async work() {
        const [row] = await runStatement(database, { name: task, text: batch }, [days]);
        const found = row?.[0] ?? null;
        return found === null ? null : found === batchSize;
      },
      async goBack() {
        await runStatement(database, { name: `${task}_back`, text: goBack }, [days]);
      },
    };
  }

  function erasingVerifications(): RetentionTask {
    const erasing = passing(verificationErasure, finishedDays);
    return {
      ...erasing,
      async work() {
        const isLeft = await erasing.work();
        if (isLeft) return true;
        const statement = { name: "expire_overdue", text: overdueEnd };
        const [moved = []] = await runStatement(database, statement, [finishedDays]);
        return reportTransitions(database.observer, "expired", moved) > 0 || isLeft;
      },
    };
  }

  /** Continues where it left off, and starts over once it has looked at all. */
  function erasingTriedLonger(): RetentionTask {
    const name = "erase_tried_longer";
    let since = firstUuid;
    return {
      name,
      async work() {
        const [row] = await runStatement(database, { name, text: triedLongerErasure }, [since]);
        const found = row?.[1] ?? null;
        if (found === null) return null;
        const more = found === batchSize;
        since = more ? (row?.[0] as string) : firstUuid;
        return more;
      },
    };
  }

  return [
    deleting("idempotency_records", "idempotency_record", `created_at <= now() - ${keyLife}`),
    deleting("codes", "live_code", isReleasable("live_code")),
    deleting("window_tokens", "window_token", "delete_after <= now()"),
    // Each of the nine waits between a delivery's attempts may be a day, if the endpoint asks for that.
    deleting("creation_traces", "creation_trace", "created_at <= now() - interval '10 days'"),
    // A window shows no hint once its verification has ended; a history does, for as long as it is kept.
    deleting(
      "pending_hints",
      "pending_hint",
      `noticed_at <= now() - interval '${2 * validityRange.max} seconds'`,
    ),
    deleting("fingerprints", "message_fingerprint", `NOT (${isRemembered("first_at", "now()")})`),
    deleting(
      "senders",
      "inbound_sender",
      `(muted_until > now() AND muted_until <= now() + interval '${muteMs + maxAheadMs} milliseconds') IS NOT TRUE
       AND (${lastMiss} > now() - interval '${missWindowMs} milliseconds'
         AND ${lastMiss} <= now() + interval '${maxAheadMs} milliseconds') IS NOT TRUE`,
    ),
    passing(messageErasure("erase_unmatched_messages", "m.verification_id IS NULL"), unmatchedDays),
    passing(messageErasure("erase_matched_messages", "m.verification_id IS NOT NULL"), finishedDays),
    passing(
      messageDeletion("delete_unmatched_messages", "m.verification_id IS NULL"),
      unmatchedDays + knownDays,
    ),
    passing(
      messageDeletion("delete_matched_messages", "m.verification_id IS NOT NULL"),
      finishedDays + knownDays,
    ),
    erasingVerifications(),
    erasingTriedLonger(),
    ...Object.entries(endedHours).map(([table, ended]) => deleting(table, table, ended, statisticsDays)),
  ];
}
