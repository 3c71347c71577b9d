/** Stores the judgements of inbound messages if the state that they were based on still holds. */

import type { Judgements, Sender } from "../core/inbound-judgement.ts";
import { type Environment, validityRange } from "../core/project.ts";
import { flagArray, plainArray, textArray } from "./array-literal.ts";
import { type Statements, tryStatement } from "./database.ts";
import { changedMeanwhile } from "./fast-path-messages.ts";
import { isRemembered, type ReadState } from "./inbound-state.ts";
import { waitForStandby } from "./standby-wait.ts";
import {
  hintChannel,
  noticesInPayload,
  noticesSent,
  transitionCounts,
  transitionEffects,
  transitionTime,
} from "./transition.ts";
import { lowestIdAt, maxClockSkew } from "./verification-row.ts";

/** The seconds from creation to verification of each verification a batch has verified, and how many it has expired. */
export interface Moved {
  readonly verified: Readonly<Record<Environment, readonly number[]>>;
  /** As `reportTransitions` takes them. */
  readonly expired: readonly number[];
}

export const unmoved: Moved = { verified: { live: [], test: [] }, expired: [0, 0] };

/** All verifications that may still be pending have greater ids, whatever their validity and whichever clock made them. */
const oldestPending = lowestIdAt(`now() - interval '${validityRange.max} seconds' - ${maxClockSkew}`);

/** How many pending verifications that expect a sender on a destination get a hint about its message: the newest. */
const expectingLimit = 8;
/** How many verifications for a sender on a destination are looked at for that: the newest, ended or not. */
const lookedAtLimit = 100;

/** The time of the read if $37 has it, which is then in the same transaction; otherwise that of this statement. */
const verifiedAt = `coalesce(to_timestamp($37::float8 / 1000), ${transitionTime})`;

/** The seconds from creation to verification of each row of `verified`, comma-separated. */
function secondsToVerify(environment: Environment): string {
  return `(SELECT string_agg(extract(epoch FROM took)::text, ',') FROM verified WHERE environment = '${environment}')`;
}

function secondsIn(joined: unknown): number[] {
  return joined === null ? [] : (joined as string).split(",").map(Number);
}

/**
 * Stores a batch's judgements in one statement. Fails if they no longer hold: with a unique violation on the key of a message
 * or a sender, or with the division by zero in its last line. The rows of a table are locked in key order, and the tables in
 * the same order by every such statement. A sender or verification that another transaction has changed since is not found at
 * its ctid. Nothing is joined to a table that grows, for the reason given at `stateStatement`. Verifications are locked
 * before any is changed: with an update of those that are verified and then one of those that have expired, they would be locked
 * in two orders, one after the other.
 *
 * A verification is verified at the time of its event: different times could lie in different hours, which statistics tell apart.
 * No event may be earlier than its transaction, so this is the time of the read only if that was in the same transaction. If it
 * is that of the store, one that has expired since the read is judged again.
 *
 * The planner has no statistics of phones, and expects many codes for each. So their expiry is compared after they were found: it
 * would be looked up, too, for all codes in use. And their number is limited by a subquery: with a constant, all codes that expect
 * the phone might be read and sorted.
 */
const storeStatement = {
  name: "inbound_store",
  text: `
WITH stored AS (
  INSERT INTO inbound_message (
    source, message_id, sender, destination, text, carrier, received_at, ingested_at, outcome, verification_id, duplicate
  )
  SELECT m.source, m.message_id, m.sender, m.destination, m.text, m.carrier,
    to_timestamp(m.received_at / 1000), to_timestamp($1::float8 / 1000), m.outcome, m.verification_id, m.duplicate
  FROM unnest(
    $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::carrier[], $8::float8[],
    $9::inbound_message_outcome[], $10::uuid[], $11::bool[]
  ) AS m (
    source, message_id, sender, destination, text, carrier, received_at, outcome, verification_id, duplicate
  )
  ORDER BY m.source, m.message_id
  RETURNING 1
),
fingerprinted AS (
  INSERT INTO message_fingerprint AS f (digest, first_at, outcome, verification_id)
  SELECT decode(n.digest, 'hex') AS digest, to_timestamp($1::float8 / 1000), n.outcome, n.verification_id
  FROM unnest($12::text[], $13::inbound_message_outcome[], $14::uuid[]) AS n (digest, outcome, verification_id)
  ORDER BY 1
  ON CONFLICT (digest) DO UPDATE SET
    first_at = excluded.first_at, outcome = excluded.outcome, verification_id = excluded.verification_id
  WHERE NOT (${isRemembered("f.first_at", "excluded.first_at")})
  RETURNING 1
),
met AS (
  INSERT INTO inbound_sender (environment, phone, miss_times, muted_until)
  SELECT n.environment, n.phone, n.miss_times::timestamptz[], to_timestamp(n.muted_until / 1000)
  FROM unnest($15::environment[], $16::text[], $17::text[], $18::float8[]) AS n (environment, phone, miss_times, muted_until)
  ORDER BY n.environment, n.phone
),
locked_sender AS MATERIALIZED (
  SELECT s.row, n.*
  FROM (
    SELECT * FROM unnest($19::environment[], $20::text[], $21::text[], $22::float8[], $23::text[], $24::float8[])
      AS n (environment, phone, miss_times, muted_until, misses_before, muted_before)
    ORDER BY n.environment, n.phone
  ) n
  CROSS JOIN LATERAL (
    SELECT ctid AS row FROM inbound_sender WHERE environment = n.environment AND phone = n.phone FOR NO KEY UPDATE
  ) s
),
remembered AS (
  UPDATE inbound_sender s SET
    miss_times = n.miss_times::timestamptz[], muted_until = to_timestamp(n.muted_until / 1000)
  FROM locked_sender n
  WHERE s.ctid = n.row AND s.miss_times = n.misses_before::timestamptz[]
    AND s.muted_until IS NOT DISTINCT FROM to_timestamp(n.muted_before / 1000)
  RETURNING 1
),
locked AS MATERIALIZED (
  SELECT v.row, n.phone, n.carrier, n.status
  FROM (
    SELECT row, id, phone, carrier, 'verified'::verification_status AS status
    FROM unnest($25::tid[], $26::uuid[], $27::text[], $28::carrier[]) AS n (row, id, phone, carrier)
    UNION ALL
    SELECT row, id, NULL, NULL, 'expired' FROM unnest($29::tid[], $30::uuid[]) AS n (row, id)
    ORDER BY id
  ) n
  CROSS JOIN LATERAL (SELECT ctid AS row FROM verification WHERE ctid = n.row AND id = n.id FOR NO KEY UPDATE) v
),
moved AS (
  UPDATE verification v SET
    status = n.status, phone = n.phone, carrier = n.carrier,
    verified_at = CASE WHEN n.status = 'verified' THEN ${verifiedAt} END
  FROM locked n WHERE v.ctid = ANY (ARRAY(SELECT row FROM locked)) AND v.ctid = n.row AND v.status = 'pending'
    AND (n.status = 'expired' OR v.expires_at > ${verifiedAt})
  RETURNING v.id, v.status, v.webhook_configuration_id, v.environment, v.verified_at - v.created_at AS took
),
verified AS (
  SELECT id, webhook_configuration_id, environment, took FROM moved WHERE status = 'verified'
),
expired AS (
  SELECT id, webhook_configuration_id, environment FROM moved WHERE status = 'expired'
),${transitionEffects("verified", verifiedAt)},${transitionEffects("expired")},
hinted AS (
  INSERT INTO pending_hint (verification_id, reason, noticed_at)
  SELECT DISTINCT ON (n.id) n.id, n.reason, to_timestamp($1::float8 / 1000)
  FROM (
    SELECT h.id, h.reason FROM unnest($31::uuid[], $32::pending_reason[]) AS h (id, reason)
    UNION ALL
    SELECT v.id, m.reason
    FROM unnest($33::environment[], $34::text[], $35::text[], $36::pending_reason[])
      AS m (environment, sender, destination, reason)
    CROSS JOIN LATERAL (
      SELECT v.id FROM (
        SELECT l.verification_id, l.expires_at FROM live_code l
        WHERE l.expected_phone = m.sender AND l.destination = m.destination
          AND l.verification_id > ${oldestPending}
        ORDER BY l.verification_id DESC LIMIT (SELECT ${lookedAtLimit})
      ) l
      CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = l.verification_id OFFSET 0) v
      WHERE l.expires_at > now() AND v.environment = m.environment AND v.status = 'pending'
      ORDER BY v.id DESC LIMIT ${expectingLimit}
    ) v
  ) n
  -- If several reasons apply to a verification, 'muted' takes precedence.
  ORDER BY n.id, n.reason <> 'muted', n.reason
  -- An open window tells hints apart by their times. One whose time is still to come is not the newer one: the clock was set back.
  ON CONFLICT (verification_id) DO UPDATE SET reason = excluded.reason,
    noticed_at = CASE WHEN excluded.noticed_at > pending_hint.noticed_at THEN excluded.noticed_at
      ELSE pending_hint.noticed_at + interval '1 millisecond' END
  WHERE pending_hint.noticed_at <= excluded.noticed_at OR pending_hint.noticed_at > clock_timestamp()
  RETURNING verification_id
),
hint_notice AS (
  SELECT pg_notify('${hintChannel}', string_agg(verification_id::text, ','))
  FROM (SELECT verification_id, (row_number() OVER () - 1) / ${noticesInPayload} AS payload FROM hinted) numbered
  GROUP BY payload
)
SELECT ${secondsToVerify("live")}, ${secondsToVerify("test")}, ${transitionCounts("expired")},
  ${noticesSent("verified")}, ${noticesSent("expired")}, (SELECT count(*) FROM hint_notice)::float8, 1 / (
  (SELECT count(*) FROM stored) = cardinality($3::text[])
  AND (SELECT count(*) FROM fingerprinted) = cardinality($12::text[])
  AND (SELECT count(*) FROM remembered) = cardinality($20::text[])
  AND (SELECT count(*) FROM verified) = cardinality($26::uuid[])
  AND (SELECT count(*) FROM expired) = cardinality($30::uuid[])
)::int`,
};

/** Null, with nothing stored, if something has changed since the read. `before`: the senders as they were read. */
export async function storeJudgements(
  statements: Statements,
  judgements: Judgements,
  state: ReadState,
  before: ReadonlyMap<string, Sender>,
  verifyAt: "read" | "store",
): Promise<Moved | null> {
  const { judged, verified, expired, changedSenders, hints, withoutCode } = judgements;
  const news = judged.filter(({ repeated }) => !repeated);
  if (news.length === 0) {
    await waitForStandby(statements);
    return unmoved;
  }
  const first = news.filter(
    ({ firstOfContent, judgement }) => firstOfContent && judgement.outcome !== "verified",
  );
  const contents = news.map(({ message }) => message.content);
  const met: Sender[] = [];
  const known: Sender[] = [];
  const asRead: Sender[] = [];
  for (const key of changedSenders) {
    const sender = state.senders.get(key) as Sender;
    const wasRead = before.get(key);
    if (wasRead === undefined) met.push(sender);
    else {
      known.push(sender);
      asRead.push(wasRead);
    }
  }
  const environmentsOf = (senders: readonly Sender[]) =>
    plainArray(senders.map((sender) => sender.environment));
  const phonesOf = (senders: readonly Sender[]) => plainArray(senders.map(({ phone }) => phone));
  const missesOf = (senders: readonly Sender[]) =>
    textArray(senders.map(({ missTimes }) => plainArray(missTimes.map(quotedTime))));
  const mutesOf = (senders: readonly Sender[]) => plainArray(senders.map(({ mutedUntil }) => mutedUntil));
  const rowsOf = (ids: readonly string[]) => textArray(ids.map((id) => state.rowOf.get(id) ?? null));
  const values = [
    state.now,
    textArray(news.map(({ message }) => message.source)),
    textArray(news.map(({ message }) => message.messageId)),
    plainArray(contents.map((content) => content?.from ?? null)),
    plainArray(contents.map((content) => content?.to ?? null)),
    textArray(contents.map((content) => content?.text ?? null)),
    plainArray(contents.map((content) => content?.carrier ?? null)),
    plainArray(contents.map((content) => content?.receivedAtMs ?? null)),
    plainArray(news.map(({ judgement }) => judgement.outcome)),
    plainArray(news.map(({ judgement }) => judgement.verificationId)),
    flagArray(news.map(({ judgement }) => judgement.duplicate)),
    plainArray(first.map(({ message }) => message.content?.fingerprint ?? null)),
    plainArray(first.map(({ judgement }) => judgement.outcome)),
    plainArray(first.map(({ judgement }) => judgement.verificationId)),
    environmentsOf(met),
    phonesOf(met),
    missesOf(met),
    mutesOf(met),
    environmentsOf(known),
    phonesOf(known),
    missesOf(known),
    mutesOf(known),
    missesOf(asRead),
    mutesOf(asRead),
    rowsOf(verified.map(({ verificationId }) => verificationId)),
    plainArray(verified.map(({ verificationId }) => verificationId)),
    plainArray(verified.map(({ phone }) => phone)),
    plainArray(verified.map(({ carrier }) => carrier)),
    rowsOf(expired),
    plainArray(expired),
    plainArray([...hints.keys()]),
    plainArray([...hints.values()]),
    plainArray(withoutCode.map(({ content }) => content.environment)),
    plainArray(withoutCode.map(({ content }) => content.from)),
    textArray(withoutCode.map(({ content }) => content.to)),
    plainArray(withoutCode.map(({ reason }) => reason)),
    verifyAt === "read" ? state.now : null,
  ];
  const rows = await tryStatement(statements, storeStatement, values, changedMeanwhile);
  if (rows === null) return null;
  const [live, test, ...moved] = rows[0] as unknown[];
  return { verified: { live: secondsIn(live), test: secondsIn(test) }, expired: moved as number[] };
}

const quotedTime = (time: number) => `"${new Date(time).toISOString()}"`;
