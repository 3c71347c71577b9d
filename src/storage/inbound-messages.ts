import {
  type Answered,
  type CodeHolder,
  codeKey,
  duplicateWindowMs,
  type FingerprintedContent,
  fingerprintOf,
  type InboundMessage,
  type InboundOutcome,
  type InboundState,
  type JudgeInboundMessage,
  type Judgement,
  type Judgements,
  judge,
  messageKey,
  type Sender,
  senderKey,
} from "../core/inbound-judgement.ts";
import { type Environment, environments, validityRange } from "../core/project.ts";
import type { Settle } from "../core/settle.ts";
import type { VerificationMode, VerificationStatus } from "../core/verification.ts";
import { Failure } from "../failures.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { createCaution } from "./caution.ts";
import {
  type Database,
  inTransaction,
  isDataRefused,
  refusedState,
  runStatement,
  type Statements,
} from "./database.ts";
import type { StorageObserver } from "./observer.ts";
import { changedMeanwhile, mayBePlain, type PlainMessage, verifyPlain } from "./plain-messages.ts";
import {
  expiredLive,
  expiredTest,
  hintChannel,
  noticeSent,
  noticesInPayload,
  transitionEffects,
} from "./transition.ts";
import { clockTrust, epochMs, firstIdAt } from "./verification-row.ts";

/**
 * What of a batch is not plain is judged in two statements: one reads what the messages may touch, one stores the judgements.
 * Judging happens here and not in SQL, because a message's fate hangs on those before it in the same batch (the fifth miss
 * mutes the sixth message, the first of two with one code verifies); a set-based statement cannot see that without
 * giving up order.
 *
 * Nothing is locked in between. What was judged upon is checked by the statement that stores: verifications are still
 * pending, senders' misses are as they were read, ids and contents are new. Otherwise it fails as a whole and they
 * are judged again. So they have the effect they would have had at the moment of the read, all at once.
 */
export function createInboundMessages(
  database: Database,
  parts: { readonly onFault: (error: unknown) => void },
): JudgeInboundMessage {
  const caution = createCaution();
  const plainCaution = createCaution();

  const inbound = createBatcher<Judging, Judgement>({
    observer: database.observer.batch("inbound"),
    maxSize: 500,
    // Streams bound what they have under way; refusing here would only make them send it again.
    maxWaiting: Number.POSITIVE_INFINITY,
    keysOf: ({ keys }) => keys,
    async run(batch) {
      const left = () => batch.filter(({ judgement }) => judgement === undefined);
      if (!plainCaution.isDue()) await judgePlain(left());
      const rest = left();
      if (rest.length > 0) await judgeRest(rest);
      return batch.map(({ judgement }) => judgement as Judgement);
    },
  });

  /** Those that are plain. Where many were asked about and few were, it is work in vain for the next batches too. */
  async function judgePlain(batch: readonly Judging[]): Promise<void> {
    const asked = plainAmong(batch);
    if (asked.length === 0) return;
    const verified = await verifyPlain(
      database,
      asked.map(({ message }) => message),
    );
    const seconds: Record<Environment, number[]> = { live: [], test: [] };
    let count = 0;
    for (const [position, judging] of asked.entries()) {
      const plainly = verified?.[position];
      if (plainly === undefined) continue;
      count += 1;
      const { verificationId } = plainly;
      judging.judgement = { outcome: "verified", verificationId, duplicate: false };
      seconds[judging.message.content.environment].push(plainly.seconds);
    }
    if (asked.length >= manyAsked && count < asked.length / 2) plainCaution.learn();
    tell(database.observer, { ...unmoved, verified: seconds });
  }

  async function judgeRest(batch: readonly Judging[]): Promise<void> {
    const messages = batch.map(({ message }) => message);
    // Most messages are new, and it suffices that storing them says so. Where one was not, as when a source begins again
    // where it left off, ids and contents are looked up first.
    let stored = await judgeBatch(database, messages, { cautious: caution.isDue() });
    if (stored === null) {
      caution.learn();
      stored = await judgeAgain(database, messages);
    }
    tell(database.observer, stored.moved);
    for (const [position, judging] of batch.entries()) judging.judgement = stored.judgements[position];
  }

  return (message, settle) => {
    const judging = new Judging(message, settle, parts.onFault);
    inbound.take(judging, judging);
  };
}

/** Of fewer the look in vain costs next to nothing. */
const manyAsked = 16;

type PlainJudging = Judging & { readonly message: PlainMessage };

/** Those that may be plain and have nothing to do with any other of their batch. */
function plainAmong(batch: readonly Judging[]): PlainJudging[] {
  const keys = new Set<string>();
  const shared = new Set<string>();
  for (const judging of batch) {
    for (const key of judging.keys) {
      if (keys.has(key)) shared.add(key);
      else keys.add(key);
    }
  }
  return batch.filter(
    (judging): judging is PlainJudging =>
      mayBePlain(judging.message) && (shared.size === 0 || !judging.keys.some((key) => shared.has(key))),
  );
}

/** One message on its way through the batches. */
class Judging implements Settle<Judgement> {
  readonly message: InboundMessage;
  readonly keys: readonly string[];
  /** Once it is stored. Its batch may still fail, for others' sake, and those of it that are left be tried again. */
  judgement: Judgement | undefined = undefined;
  readonly #settle: Settle<Judgement>;
  readonly #onFault: (error: unknown) => void;

  constructor(message: InboundMessage, settle: Settle<Judgement>, onFault: (error: unknown) => void) {
    this.message = message;
    this.keys = keysOf(message);
    this.#settle = settle;
    this.#onFault = onFault;
  }

  resolve(judgement: Judgement): void {
    this.#settle.resolve(judgement);
  }

  reject(error: unknown): void {
    if (this.judgement !== undefined) {
      this.#settle.resolve(this.judgement);
      return;
    }
    if (error instanceof Failure) {
      this.#settle.reject(error);
      return;
    }
    this.#onFault(error);
    // What the schema does not take it will never take: only that costs the message its receipt. Whatever else went
    // wrong is ours, and the source keeps the message and sends it again.
    if (isDataRefused(error)) {
      this.#settle.resolve({ outcome: "invalid", verificationId: null, duplicate: false });
    } else this.#settle.reject(new Failure("service_unavailable", { cause: error }));
  }
}

/**
 * What a message's fate may hang on, and what may hang on it: its own id, its sender's other messages (misses, muting,
 * repeated contents), and the codes it may have.
 */
function keysOf({ source, messageId, content }: InboundMessage): string[] {
  const keys = [messageKey(source, messageId)];
  if (content) {
    keys.push(content.from);
    for (const candidate of content.candidates) keys.push(codeKey(content.to, candidate));
  }
  return keys;
}

const maxTries = 20;

/** One batch at a time is judged again, so that those who do it cannot keep one another from it. */
async function judgeAgain(database: Database, messages: readonly InboundMessage[]): Promise<Stored> {
  for (let tries = 1; tries <= maxTries; tries++) {
    const stored = await inTransaction(database, async (client) => {
      await client.query("SELECT pg_advisory_xact_lock(hashtext('phoneproof inbound'))");
      const statements: Statements = {
        observer: database.observer,
        query: (statement) => client.query(statement),
      };
      return judgeBatch(statements, messages, { cautious: true });
    });
    if (stored) return stored;
  }
  throw new Error("what inbound messages touch kept being changed by somebody else");
}

/** What a batch was answered, and what it did. */
interface Stored {
  readonly judgements: Judgement[];
  readonly moved: Moved;
}

/** Of what a batch has verified the seconds since its creation, and how much it found expired. */
interface Moved {
  readonly verified: Readonly<Record<Environment, readonly number[]>>;
  readonly expired: Readonly<Record<Environment, number>>;
}

const unmoved: Moved = { verified: { live: [], test: [] }, expired: { live: 0, test: 0 } };

function tell(observer: StorageObserver, { verified, expired }: Moved): void {
  for (const environment of environments) {
    observer.verified(environment, verified[environment]);
    observer.moved("expired", environment, expired[environment]);
  }
}

/** Null where something has changed between the read and the write: then nothing is stored. */
async function judgeBatch(
  statements: Statements,
  messages: readonly InboundMessage[],
  { cautious }: { readonly cautious: boolean },
): Promise<Stored | null> {
  const state = await readState(statements, messages, cautious);
  const before = new Map([...state.senders].map(([key, sender]) => [key, { ...sender }]));
  const judgements = judge(messages, state);
  const moved = await store(statements, judgements, state, before);
  return moved && { judgements: judgements.judged.map(({ judgement }) => judgement), moved };
}

/** By verification where its row lay, so that it is not searched for a second time to be changed. */
type ReadState = InboundState & { readonly rowOf: ReadonlyMap<string, string> };

export const duplicateWindow = `interval '${duplicateWindowMs} milliseconds'`;

/**
 * What the messages may touch: the verifications that candidates are codes of, the senders with misses, and the answers
 * to known ids and contents. A content older than `duplicateWindow` answers nothing. What a content was answered stands in its
 * fingerprint, but for what has verified: a repeat of that carries the code, and so finds the verification and its message.
 * The clock is read after the snapshot was taken: a verification that it shows must not look younger than now. Each is
 * looked up by itself: planned as joins while the tables were small, they would read them whole when they have grown.
 */
const stateStatement = {
  name: "inbound_state",
  text: `
WITH held AS MATERIALIZED (
  SELECT k.position, v.row, v.id, v.environment, v.status, v.mode, v.expected_phone, v.expires_at, v.verified_at
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (destination, code, position)
  CROSS JOIN LATERAL (SELECT * FROM live_code WHERE destination = k.destination AND code = k.code OFFSET 0) l
  CROSS JOIN LATERAL (SELECT ctid AS row, * FROM verification WHERE id = l.verification_id OFFSET 0) v
)
SELECT 'clock', NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text,
  ${epochMs("date_trunc('milliseconds', clock_timestamp())")}, NULL::bool
UNION ALL
SELECT 'code', position::text, row::text, id::text, status::text, mode::text, expected_phone, environment::text,
  ${epochMs("expires_at")}, NULL
FROM held
UNION ALL
SELECT 'verifying', m.sender, m.destination, h.id::text, h.environment::text, m.text, NULL, NULL, NULL, NULL
FROM held h
CROSS JOIN LATERAL (
  SELECT * FROM inbound_message WHERE verification_id = h.id AND outcome = 'verified' AND NOT duplicate LIMIT 1
) m
WHERE h.status = 'verified' AND h.verified_at > clock_timestamp() - ${duplicateWindow} AND m.text IS NOT NULL
UNION ALL
SELECT 'sender', n.environment::text, n.phone, array_to_string(ARRAY(SELECT ${epochMs("t")} FROM unnest(s.miss_times) AS t), ','),
  NULL, NULL, NULL, NULL, ${epochMs("s.muted_until")}, NULL
FROM unnest($3::environment[], $4::text[]) AS n (environment, phone)
CROSS JOIN LATERAL (SELECT * FROM inbound_sender WHERE environment = n.environment AND phone = n.phone OFFSET 0) s
UNION ALL
SELECT 'message', m.source, m.message_id, m.verification_id::text, m.outcome::text, NULL, m.destination, NULL, NULL, m.duplicate
FROM unnest($5::text[], $6::text[]) AS k (source, message_id)
CROSS JOIN LATERAL (SELECT * FROM inbound_message WHERE source = k.source AND message_id = k.message_id OFFSET 0) m
UNION ALL
SELECT 'fingerprint', encode(f.digest, 'hex'), NULL, f.verification_id::text, f.outcome::text, NULL, NULL, NULL, NULL, false
FROM unnest($7::text[]) AS k (digest)
CROSS JOIN LATERAL (SELECT * FROM message_fingerprint WHERE digest = decode(k.digest, 'hex') OFFSET 0) f
WHERE f.first_at > clock_timestamp() - ${duplicateWindow}`,
};

async function readState(
  statements: Statements,
  messages: readonly InboundMessage[],
  cautious: boolean,
): Promise<ReadState> {
  const fingerprints: string[] = [];
  const destinations: string[] = [];
  const candidates: string[] = [];
  const phoneEnvironments: Environment[] = [];
  const phones: string[] = [];
  const asked = new Set<string>();
  for (const { content } of messages) {
    if (!content) continue;
    fingerprints.push(content.fingerprint);
    if (content.environment === null) continue;
    const sender = senderKey(content.environment, content.from);
    if (!asked.has(sender)) {
      asked.add(sender);
      phoneEnvironments.push(content.environment);
      phones.push(content.from);
    }
    for (const candidate of content.candidates) {
      const key = codeKey(content.to, candidate);
      if (asked.has(key)) continue;
      asked.add(key);
      destinations.push(content.to);
      candidates.push(candidate);
    }
  }
  const rows = await runStatement(statements, stateStatement, [
    textArray(destinations),
    plainArray(candidates),
    plainArray(phoneEnvironments),
    plainArray(phones),
    cautious ? textArray(messages.map(({ source }) => source)) : nothing,
    cautious ? textArray(messages.map(({ messageId }) => messageId)) : nothing,
    plainArray(fingerprints),
  ]);
  let now = 0;
  const codes = new Map<string, CodeHolder>();
  const rowOf = new Map<string, string>();
  const holders = new Map<string, CodeHolder>();
  const senders = new Map<string, Sender>();
  const answered = new Map<string, Answered>();
  const seen = new Map<string, Judgement>();
  for (const [kind, first, second, third, fourth, fifth, sixth, seventh, time, duplicate] of rows) {
    const judgement = () => ({
      outcome: fourth as InboundOutcome,
      verificationId: third as string | null,
      duplicate: duplicate as boolean,
    });
    switch (kind) {
      case "clock":
        now = time as number;
        break;
      case "code": {
        const position = Number(first) - 1;
        rowOf.set(third as string, second as string);
        const holder = holders.get(third as string) ?? {
          verificationId: third as string,
          environment: seventh as Environment,
          status: fourth as VerificationStatus,
          mode: fifth as VerificationMode,
          expectedPhone: sixth as string | null,
          expiresAt: time as number,
        };
        holders.set(holder.verificationId, holder);
        codes.set(codeKey(destinations[position] as string, candidates[position] as string), holder);
        break;
      }
      case "sender":
        senders.set(senderKey(first as Environment, second as string), {
          missTimes: (third as string) === "" ? [] : (third as string).split(",").map(Number),
          mutedUntil: time as number | null,
        });
        break;
      case "verifying": {
        const content = { from: first, to: second, environment: fourth, text: fifth } as FingerprintedContent;
        const verificationId = third as string;
        seen.set(fingerprintOf(content), { outcome: "verified", verificationId, duplicate: false });
        break;
      }
      case "message":
        answered.set(messageKey(first as string, second as string), {
          ...judgement(),
          destination: sixth as string | null,
        });
        break;
      // What verified comes before: a process of a version before this one may have told its repeat otherwise.
      default:
        if (!seen.has(first as string)) seen.set(first as string, judgement());
    }
  }
  return { now, answered, fingerprints: seen, senders, codes, rowOf };
}

const nothing = "{}";

/** Ids of what may still be pending are greater, however long it is valid and whatever clock made them. */
const oldestPending = firstIdAt(`now() - interval '${validityRange.max} seconds' - ${clockTrust}`);

/** Verifications that may wait for one sender on one destination and be told of a message: the newest. */
const expectingLimit = 8;
/** Of those made for a sender on a destination the newest, whether or not they are over. */
const lookedAtLimit = 100;

/** Of each that was verified, joined by commas. */
function secondsToVerify(environment: Environment): string {
  return `(SELECT string_agg(extract(epoch FROM took)::text, ',') FROM verified WHERE environment = '${environment}')`;
}

function secondsIn(joined: unknown): number[] {
  return joined === null ? [] : (joined as string).split(",").map(Number);
}

/**
 * Stores a batch's judgements in one statement, or fails where they no longer hold: on the key of a message or of a
 * sender, or on the division by zero of its last line. The rows of a table are locked in order of their keys, and the
 * tables in the same order by every such statement. A sender or a verification that somebody else has changed since is not
 * found where it lay. Nothing is joined to a table that grows, for the reason above.
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
  WHERE f.first_at <= excluded.first_at - ${duplicateWindow}
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
found AS MATERIALIZED (
  SELECT row, id, phone, carrier, 'verified'::verification_status AS status
  FROM unnest($25::tid[], $26::uuid[], $27::text[], $28::carrier[]) AS n (row, id, phone, carrier)
  UNION ALL
  SELECT row, id, NULL, NULL, 'expired' FROM unnest($29::tid[], $30::uuid[]) AS n (row, id)
  ORDER BY id
),
verified AS (
  UPDATE verification v SET
    status = 'verified', phone = n.phone, carrier = n.carrier, verified_at = to_timestamp($1::float8 / 1000)
  FROM found n WHERE v.ctid = n.row AND v.id = n.id AND n.status = 'verified' AND v.status = 'pending'
  RETURNING v.id, v.webhook_configuration_id, v.environment, v.verified_at - v.created_at AS took
),
expired AS (
  UPDATE verification v SET status = 'expired'
  FROM found n WHERE v.ctid = n.row AND v.id = n.id AND n.status = 'expired' AND v.status = 'pending'
  RETURNING v.id, v.webhook_configuration_id, v.environment
),${transitionEffects("verified")},${transitionEffects("expired")},
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
        SELECT l.verification_id FROM live_code l
        WHERE l.expected_phone = m.sender AND l.destination = m.destination
          AND l.verification_id > ${oldestPending} AND l.expires_at > now()
        ORDER BY l.verification_id DESC LIMIT ${lookedAtLimit}
      ) l
      CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = l.verification_id OFFSET 0) v
      WHERE v.environment = m.environment AND v.status = 'pending'
      ORDER BY v.id DESC LIMIT ${expectingLimit}
    ) v
  ) n
  -- Who is mute is told so, whatever else came with it.
  ORDER BY n.id, n.reason <> 'muted', n.reason
  ON CONFLICT (verification_id) DO UPDATE SET reason = excluded.reason, noticed_at = excluded.noticed_at
  WHERE pending_hint.noticed_at <= excluded.noticed_at
  RETURNING verification_id
),
hint_notice AS (
  SELECT pg_notify('${hintChannel}', string_agg(verification_id::text, ','))
  FROM (SELECT verification_id, (row_number() OVER () - 1) / ${noticesInPayload} AS payload FROM hinted) numbered
  GROUP BY payload
)
SELECT ${secondsToVerify("live")}, ${secondsToVerify("test")}, ${expiredLive}, ${expiredTest},
  ${noticeSent("verified")}, ${noticeSent("expired")}, (SELECT count(*) FROM hint_notice)::float8, 1 / (
  (SELECT count(*) FROM stored) = cardinality($3::text[])
  AND (SELECT count(*) FROM fingerprinted) = cardinality($12::text[])
  AND (SELECT count(*) FROM remembered) = cardinality($20::text[])
  AND (SELECT count(*) FROM verified) = cardinality($26::uuid[])
  AND (SELECT count(*) FROM expired) = cardinality($30::uuid[])
)::int`,
};

async function store(
  statements: Statements,
  judgements: Judgements,
  state: ReadState,
  before: ReadonlyMap<string, Sender>,
): Promise<Moved | null> {
  const { judged, verified, expired, changedSenders, hints, withoutCode } = judgements;
  const news = judged.filter(({ repeated }) => !repeated);
  if (news.length === 0) return unmoved;
  const first = news.filter(
    ({ firstOfContent, judgement }) => firstOfContent && judgement.outcome !== "verified",
  );
  const contents = news.map(({ message }) => message.content);
  const met = [...changedSenders].filter((key) => !before.has(key));
  const known = [...changedSenders].filter((key) => before.has(key));
  const missesIn = (senders: ReadonlyMap<string, Sender>, keys: readonly string[]) =>
    textArray(keys.map((key) => plainArray((senders.get(key)?.missTimes ?? []).map(quotedTime))));
  const mutedIn = (senders: ReadonlyMap<string, Sender>, keys: readonly string[]) =>
    plainArray(keys.map((key) => senders.get(key)?.mutedUntil ?? null));
  const rowsOf = (ids: readonly string[]) => textArray(ids.map((id) => state.rowOf.get(id) ?? null));
  try {
    const [row] = await runStatement(statements, storeStatement, [
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
      plainArray(news.map(({ judgement }) => (judgement.duplicate ? "t" : "f"))),
      plainArray(first.map(({ message }) => message.content?.fingerprint ?? null)),
      plainArray(first.map(({ judgement }) => judgement.outcome)),
      plainArray(first.map(({ judgement }) => judgement.verificationId)),
      plainArray(met.map(environmentIn)),
      plainArray(met.map(phoneIn)),
      missesIn(state.senders, met),
      mutedIn(state.senders, met),
      plainArray(known.map(environmentIn)),
      plainArray(known.map(phoneIn)),
      missesIn(state.senders, known),
      mutedIn(state.senders, known),
      missesIn(before, known),
      mutedIn(before, known),
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
    ]);
    const [live, test, liveExpired, testExpired] = row as [unknown, unknown, number, number];
    return {
      verified: { live: secondsIn(live), test: secondsIn(test) },
      expired: { live: liveExpired, test: testExpired },
    };
  } catch (error) {
    // A deadlock counts among the database's own troubles and comes wrapped.
    if (changedMeanwhile.test(refusedState(error) ?? "")) return null;
    throw error;
  }
}

/** The parts of a `senderKey`: either environment has four letters. */
const environmentIn = (key: string) => key.slice(0, 4);
const phoneIn = (key: string) => key.slice(4);
const quotedTime = (time: number) => `"${new Date(time).toISOString()}"`;
