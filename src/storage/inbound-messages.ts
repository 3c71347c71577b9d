import type pg from "pg";
import {
  type CodeHolder,
  codeKey,
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
import type { Environment } from "../core/project.ts";
import type { VerificationMode, VerificationStatus } from "../core/verification.ts";
import { Failure } from "../failures.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { asStorageError, type Database, isDataRefused } from "./database.ts";
import { noticeSent, transitionEffects } from "./transition.ts";
import { epochMs } from "./verification-row.ts";

/**
 * A batch is judged in one transaction of three steps: lock the senders, read what the messages may touch
 * and lock those verifications, write the judgements. Judging happens here and not in SQL, because a
 * message's fate hangs on those before it in the same batch (the fifth miss mutes the sixth message, the
 * first of two with one code verifies); a set-based statement cannot see that without giving up order.
 *
 * What serialises processes: a sender's row, which every message of that sender locks first, and the
 * verification's. All locks are taken in one order: senders by key, verifications by id, messages by id.
 */
export function createInboundMessages(
  database: Database,
  parts: { readonly onFault: (error: unknown) => void },
): JudgeInboundMessage {
  const enqueue = createBatcher<InboundMessage, Judgement>({
    maxSize: 500,
    // Streams bound what they have under way; refusing here would only make them send it again.
    maxWaiting: Number.POSITIVE_INFINITY,
    run: (messages) => takeBatch(database, messages),
  });
  return async (message) => {
    try {
      return await enqueue(message);
    } catch (error) {
      if (error instanceof Failure) throw error;
      parts.onFault(error);
      // What the schema does not take it will never take: only that costs the message its receipt. Whatever else went
      // wrong is ours, and the source keeps the message and sends it again.
      if (isDataRefused(error)) return { outcome: "invalid", verificationId: null, duplicate: false };
      throw new Failure("service_unavailable", { cause: error });
    }
  };
}

/** What another process stored between the look and the write makes the batch be judged again. */
const maxTries = 5;

async function takeBatch(database: Database, messages: readonly InboundMessage[]): Promise<Judgement[]> {
  for (let tries = 1; ; tries++) {
    const judgements = await inTransaction(database, (client) => judgeBatch(client, messages));
    if (judgements) return judgements.judged.map(({ judgement }) => judgement);
    if (tries === maxTries) throw new Error("inbound messages kept being stored by somebody else");
  }
}

/** Commits if `work` answers something. A connection that failed in a transaction is not used again. */
async function inTransaction<T>(
  database: Database,
  work: (client: pg.PoolClient) => Promise<T | null>,
): Promise<T | null> {
  const client = await database.pool.connect().catch((error: unknown) => {
    throw asStorageError(error);
  });
  try {
    await client.query("BEGIN");
    const result = await work(client);
    await client.query(result === null ? "ROLLBACK" : "COMMIT");
    client.release();
    return result;
  } catch (error) {
    client.release(true);
    throw asStorageError(error);
  }
}

async function judgeBatch(
  client: pg.PoolClient,
  messages: readonly InboundMessage[],
): Promise<Judgements | null> {
  const senders = await lockSenders(client, messages);
  const state: InboundState = { senders, ...(await readState(client, messages)) };
  const judgements = judge(messages, state);
  return (await store(client, judgements, state)) ? judgements : null;
}

/** Makes and locks the row of every sender in the batch: what follows sees all that others did before. */
const lockSendersText = `
INSERT INTO inbound_sender AS s (environment, phone, miss_times)
SELECT n.environment, n.phone, '{}'
FROM unnest($1::environment[], $2::text[]) AS n (environment, phone)
ORDER BY 1, 2
ON CONFLICT (environment, phone) DO UPDATE SET miss_times = s.miss_times
RETURNING s.environment::text, s.phone, s.miss_times, ${epochMs("s.muted_until")}`;

async function lockSenders(
  client: pg.PoolClient,
  messages: readonly InboundMessage[],
): Promise<Map<string, Sender>> {
  const senders = new Map<string, Sender>();
  const environments: Environment[] = [];
  const phones: string[] = [];
  for (const { content } of messages) {
    if (!content?.environment) continue;
    const key = senderKey(content.environment, content.from);
    if (senders.has(key)) continue;
    senders.set(key, { missTimes: [], mutedUntil: null });
    environments.push(content.environment);
    phones.push(content.from);
  }
  if (phones.length === 0) return senders;
  const rows = await query(client, "lock_senders", lockSendersText, [
    plainArray(environments),
    plainArray(phones),
  ]);
  for (const [environment, phone, missTimes, mutedUntil] of rows) {
    senders.set(senderKey(environment as Environment, phone as string), {
      missTimes: (missTimes as Date[]).map((time) => time.getTime()),
      mutedUntil: mutedUntil as number | null,
    });
  }
  return senders;
}

/** What the ids and the contents have been answered. A fingerprint older than a minute answers nothing. */
const answeredText = `
SELECT 'message', m.source, m.message_id, m.outcome::text, m.verification_id::text, m.duplicate
FROM unnest($1::text[], $2::text[]) AS k (source, message_id)
JOIN inbound_message m ON m.source = k.source AND m.message_id = k.message_id
UNION ALL
SELECT 'fingerprint', encode(f.digest, 'hex'), NULL, f.outcome::text, f.verification_id::text, false
FROM unnest($3::text[]) AS k (digest)
JOIN message_fingerprint f ON f.digest = decode(k.digest, 'hex')
WHERE f.first_at > to_timestamp($4::float8 / 1000) - interval '1 minute'`;

/**
 * The verifications that the candidates are codes of, locked. The clock is read by a statement of its own
 * start, not the transaction's: a verification created after BEGIN must not look younger than now.
 */
const codesText = `
SELECT k.destination, k.code, v.id::text, v.status::text, v.mode::text, v.expected_phone, ${epochMs("v.expires_at")}
FROM unnest($1::text[], $2::text[]) AS k (destination, code)
JOIN live_code l ON l.destination = k.destination AND l.code = k.code
JOIN verification v ON v.id = l.verification_id
ORDER BY v.id
FOR NO KEY UPDATE OF v`;

const clockText = `SELECT ${epochMs("statement_timestamp()")}`;

async function readState(
  client: pg.PoolClient,
  messages: readonly InboundMessage[],
): Promise<Omit<InboundState, "senders">> {
  const fingerprints: string[] = [];
  const destinations: string[] = [];
  const candidates: string[] = [];
  const asked = new Set<string>();
  for (const { content } of messages) {
    if (!content) continue;
    fingerprints.push(content.fingerprint.toString("hex"));
    if (content.environment === null) continue;
    for (const candidate of content.candidates) {
      const key = codeKey(content.to, candidate);
      if (asked.has(key)) continue;
      asked.add(key);
      destinations.push(content.to);
      candidates.push(candidate);
    }
  }
  const codes = new Map<string, CodeHolder>();
  const holders = new Map<string, CodeHolder>();
  if (candidates.length > 0) {
    const rows = await query(client, "inbound_codes", codesText, [
      textArray(destinations),
      plainArray(candidates),
    ]);
    for (const [destination, code, verificationId, status, mode, expectedPhone, expiresAt] of rows) {
      const holder = holders.get(verificationId as string) ?? {
        verificationId: verificationId as string,
        status: status as VerificationStatus,
        mode: mode as VerificationMode,
        expectedPhone: expectedPhone as string | null,
        expiresAt: expiresAt as number,
      };
      holders.set(holder.verificationId, holder);
      codes.set(codeKey(destination as string, code as string), holder);
    }
  }
  const [clock] = await query(client, "inbound_clock", clockText, []);
  const now = clock?.[0] as number;
  const answered = new Map<string, Judgement>();
  const seen = new Map<string, Judgement>();
  const answeredRows = await query(client, "inbound_answered", answeredText, [
    textArray(messages.map(({ source }) => source)),
    textArray(messages.map(({ messageId }) => messageId)),
    plainArray(fingerprints),
    now,
  ]);
  for (const [kind, first, second, outcome, verificationId, duplicate] of answeredRows) {
    const judgement = {
      outcome: outcome as InboundOutcome,
      verificationId: verificationId as string | null,
      duplicate: duplicate as boolean,
    };
    if (kind === "message") answered.set(messageKey(first as string, second as string), judgement);
    else seen.set(first as string, judgement);
  }
  return { now, answered, fingerprints: seen, codes };
}

/**
 * Stores a batch's judgements in one statement. It answers how many messages, transitions and fingerprints it
 * stored: fewer than were judged means that another process stored one of these ids or contents meanwhile. (The
 * contents of one sender are serialised by its row, but for numbers that nobody has, which have no environment.)
 */
const storeText = `
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
  ON CONFLICT DO NOTHING
  RETURNING 1
),
fingerprinted AS (
  INSERT INTO message_fingerprint AS f (digest, first_at, outcome, verification_id)
  SELECT decode(n.digest, 'hex') AS digest, to_timestamp($1::float8 / 1000), n.outcome, n.verification_id
  FROM unnest($12::text[], $13::inbound_message_outcome[], $14::uuid[]) AS n (digest, outcome, verification_id)
  ORDER BY 1
  ON CONFLICT (digest) DO UPDATE SET
    first_at = excluded.first_at, outcome = excluded.outcome, verification_id = excluded.verification_id
  WHERE f.first_at <= excluded.first_at - interval '1 minute'
  RETURNING 1
),
remembered AS (
  UPDATE inbound_sender s SET
    miss_times = n.miss_times::timestamptz[], muted_until = to_timestamp(n.muted_until / 1000)
  FROM unnest($15::environment[], $16::text[], $17::text[], $18::float8[])
    AS n (environment, phone, miss_times, muted_until)
  WHERE s.environment = n.environment AND s.phone = n.phone
),
verified AS (
  UPDATE verification v SET
    status = 'verified', phone = n.phone, carrier = n.carrier, verified_at = to_timestamp($1::float8 / 1000)
  FROM unnest($19::uuid[], $20::text[], $21::carrier[]) AS n (id, phone, carrier)
  WHERE v.id = n.id AND v.status = 'pending'
  RETURNING v.id, v.webhook_configuration_id
),
expired AS (
  UPDATE verification v SET status = 'expired' WHERE v.id = ANY ($22::uuid[]) AND v.status = 'pending'
  RETURNING v.id, v.webhook_configuration_id
),${transitionEffects("verified")},${transitionEffects("expired")}
SELECT (SELECT count(*) FROM stored)::float8, (SELECT count(*) FROM verified)::float8,
  (SELECT count(*) FROM expired)::float8, (SELECT count(*) FROM fingerprinted)::float8, ${noticeSent("verified")}, ${noticeSent("expired")}`;

async function store(client: pg.PoolClient, judgements: Judgements, state: InboundState): Promise<boolean> {
  const { judged, verified, expired, changedSenders } = judgements;
  const news = judged.filter(({ repeated }) => !repeated);
  if (news.length === 0) return true;
  const first = news.filter(({ firstOfContent }) => firstOfContent);
  const contents = news.map(({ message }) => message.content);
  const senders = [...changedSenders].map((key) => state.senders.get(key) as Sender);
  const [row] = await query(client, "inbound_store", storeText, [
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
    plainArray(first.map(({ message }) => message.content?.fingerprint.toString("hex") ?? null)),
    plainArray(first.map(({ judgement }) => judgement.outcome)),
    plainArray(first.map(({ judgement }) => judgement.verificationId)),
    plainArray([...changedSenders].map((key) => key.slice(0, 4))),
    plainArray([...changedSenders].map((key) => key.slice(4))),
    textArray(senders.map(({ missTimes }) => plainArray(missTimes.map(quotedTime)))),
    plainArray(senders.map(({ mutedUntil }) => mutedUntil)),
    plainArray(verified.map(({ verificationId }) => verificationId)),
    plainArray(verified.map(({ phone }) => phone)),
    plainArray(verified.map(({ carrier }) => carrier)),
    plainArray(expired),
  ]);
  const [stored, moved, lapsed, fingerprinted] = row ?? [];
  if (moved !== verified.length || lapsed !== expired.length) {
    throw new Error("a verification that was locked has been changed by somebody else");
  }
  return stored === news.length && fingerprinted === first.length;
}

const quotedTime = (time: number) => `"${new Date(time).toISOString()}"`;

async function query(
  client: pg.PoolClient,
  name: string,
  text: string,
  values: unknown[],
): Promise<unknown[][]> {
  const result = await client.query<unknown[]>({ name, text, values, rowMode: "array" });
  return result.rows;
}
