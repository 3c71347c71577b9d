/**
 * Compares the answers that clients received with the content of the database. Runs when no request is in progress, so that every
 * difference is permanent.
 */

import { encodeId } from "../../src/core/ids.ts";
import type { DatabaseServer } from "./database-server.ts";
import type { Operation, TimedEntry } from "./journal.ts";

interface Stored {
  readonly verifications: ReadonlyMap<string, { readonly status: string; readonly key: string }>;
  /** The verification of each idempotency key. */
  readonly records: ReadonlyMap<string, string>;
  /** The event type of each verification. */
  readonly events: ReadonlyMap<string, string>;
  readonly deliveries: ReadonlyMap<string, { readonly state: string; readonly attempts: number }>;
  /** Keyed by source and message id. */
  readonly messages: ReadonlyMap<string, { readonly outcome: string; readonly verificationId: string }>;
  readonly calls: number;
}

const idOf = (uuid: string | null) => (uuid === null ? "" : encodeId("vrf_", uuid));

async function readStored({ query }: DatabaseServer): Promise<Stored> {
  const [verifications, records, events, deliveries, messages, usage] = await Promise.all([
    query<{ id: string; status: string; key: string }>(
      "SELECT id::text, status::text, client_reference AS key FROM verification",
    ),
    query<{ key: string; id: string }>("SELECT key, verification_id::text AS id FROM idempotency_record"),
    query<{ id: string; type: string }>("SELECT verification_id::text AS id, type::text FROM event"),
    query<{ id: string; state: string; attempts: number }>(
      "SELECT verification_id::text AS id, state::text, attempts::int FROM webhook_delivery",
    ),
    query<{ name: string; outcome: string; id: string | null }>(
      "SELECT source || ' ' || message_id AS name, upper(outcome::text) AS outcome, verification_id::text AS id FROM inbound_message",
    ),
    query<{ calls: number }>("SELECT coalesce(sum(calls), 0)::float8 AS calls FROM usage"),
  ]);
  return {
    verifications: new Map(verifications.map(({ id, ...verification }) => [idOf(id), verification])),
    records: new Map(records.map(({ key, id }) => [key, idOf(id)])),
    events: new Map(events.map(({ id, type }) => [idOf(id), type])),
    deliveries: new Map(deliveries.map(({ id, ...delivery }) => [idOf(id), delivery])),
    messages: new Map(messages.map(({ name, outcome, id }) => [name, { outcome, verificationId: idOf(id) }])),
    calls: usage[0]?.calls ?? 0,
  };
}

interface Call {
  readonly operation: Operation;
  readonly subject: string;
  readonly asked: number;
}

/** Statuses that the load's own behaviour explains; any other is a fault of the service. */
const expectedStatuses: Record<Operation, readonly number[]> = {
  create: [200, 201, 503],
  read: [200, 503],
  cancel: [200, 409, 503],
};

/** The maximum response time, whatever has happened to the database: somebody is waiting for the answer. */
const slowestAnswerMs = 15_000;

export async function findViolations(
  entries: readonly TimedEntry[],
  database: DatabaseServer,
): Promise<string[]> {
  const stored = await readStored(database);
  return [
    ...entries.flatMap((entry) => (entry.what === "violation" ? [entry.text] : [])),
    ...violationsOfAnswers(entries),
    ...violationsOfPromises(entries, stored),
    ...violationsOfReceipts(entries, stored),
    ...violationsOfDeliveries(entries, stored),
    ...violationsOfRows(stored),
  ];
}

/** Checks that every answer has the contract's shape, and that every call was answered, except on a process that was killed. */
function violationsOfAnswers(entries: readonly TimedEntry[]): string[] {
  const found: string[] = [];
  const calls = callsIn(entries);
  for (const entry of entries) {
    if (entry.what === "unanswered" && !entry.excused) {
      found.push(`${describeCall(calls, entry.call)} had no answer after ${entry.ms} ms: ${entry.error}`);
    }
    if (entry.what === "stream lost" && !entry.excused)
      found.push(`${entry.source} lost its stream: ${entry.error}`);
    if (entry.what !== "answered") continue;
    const of = `${describeCall(calls, entry.call)} was answered ${entry.status}`;
    const call = calls.get(entry.call);
    if (call && !expectedStatuses[call.operation].includes(entry.status)) found.push(`${of}: ${entry.body}`);
    if (entry.undescribed.length > 0) found.push(`${of}, which violates the contract: ${entry.undescribed}`);
    if (entry.ms > slowestAnswerMs) found.push(`${of} after ${entry.ms} ms`);
    if (entry.status !== 503) continue;
    const { code } = JSON.parse(entry.body).error;
    if (code !== "service_unavailable") found.push(`${of}: ${code}`);
    if (!(Number(entry.retryAfter) > 0)) found.push(`${of} without Retry-After`);
  }
  return found;
}

/** Checks the answers to creations, replays, cancels and reads against the rows that they concern. */
function violationsOfPromises(entries: readonly TimedEntry[], stored: Stored): string[] {
  const found: string[] = [];
  const calls = callsIn(entries);
  const answers = new Map<string, string>();
  const created = new Set<string>();
  const usages = new Map<string, string>();
  /** When a client first received a final status. */
  const endings = new Map<string, { readonly status: string; readonly at: number }>();
  let charged = 0;
  let asked = 0;

  for (const entry of entries) {
    if (entry.what === "asked") asked += 1;
    if (entry.what !== "answered" || entry.status === 503) continue;
    const call = calls.get(entry.call);
    if (call === undefined) continue;
    const of = describeCall(calls, entry.call);
    if (entry.usage !== null) {
      charged += 1;
      const other = usages.get(entry.usage);
      if (other !== undefined) found.push(`${of} is call ${entry.usage} of the month, and so is ${other}`);
      usages.set(entry.usage, of);
    }
    if (call.operation === "cancel" && entry.status === 409) {
      const now = stored.verifications.get(call.subject)?.status ?? "missing";
      if (now !== "verified" && now !== "expired") found.push(`${of} was refused, but it is ${now}`);
    }
    const { id, status } = JSON.parse(entry.body) as { id?: string; status?: string };
    if (call.operation === "create" && id !== undefined) {
      const first = answers.get(call.subject) ?? entry.body;
      answers.set(call.subject, first);
      if (first !== entry.body) found.push(`${of} was answered ${entry.body}, but before that ${first}`);
      if (entry.status === 201 && created.has(call.subject)) found.push(`${of} was answered 201 twice`);
      if (entry.status === 201) created.add(call.subject);
      if ((entry.status === 200) !== (entry.replayed === "true"))
        found.push(`${of} replayed: ${entry.replayed}`);
      if (stored.records.get(call.subject) !== id) found.push(`${of} created ${id}, but its key is lost`);
      if (stored.verifications.get(id)?.key !== call.subject)
        found.push(`${of} created ${id}, which is lost`);
    } else if (call.operation !== "create" && status !== undefined) {
      const ending = endings.get(call.subject);
      const begunAfter = ending !== undefined && call.asked >= ending.at;
      if (begunAfter && ending.status !== status) found.push(`${of} is ${status}, but was ${ending.status}`);
      if (status !== "pending" && ending === undefined) endings.set(call.subject, { status, at: entry.at });
      if (call.operation === "cancel" && status !== "cancelled") found.push(`${of} was answered ${status}`);
    }
  }
  for (const [id, { status }] of endings) {
    const now = stored.verifications.get(id)?.status;
    if (now !== status) found.push(`${id} was reported as ${status}, but is ${now}`);
  }
  // A charged call may have remained unanswered, but no answered call may be uncharged.
  if (stored.calls < charged)
    found.push(`${charged} calls got a usage count, but ${stored.calls} are counted`);
  if (stored.calls > asked) found.push(`${asked} calls were made, but ${stored.calls} are counted`);
  return found;
}

/** The statuses that a verification may have in the end if a receipt with this outcome named it. */
const possibleStatuses: Readonly<Record<string, readonly string[]>> = {
  VERIFIED: ["verified"],
  NOT_PENDING: ["verified", "cancelled"],
  LATE: ["expired"],
};

/**
 * Checks that every message has one receipt per time it was sent, always with the same content, and that the content is true.
 */
function violationsOfReceipts(entries: readonly TimedEntry[], stored: Stored): string[] {
  const found: string[] = [];
  const waiting = new Map<string, number>();
  const first = new Map<string, string>();
  for (const entry of entries) {
    if (entry.what !== "message" && entry.what !== "receipt") continue;
    const name = `${entry.source} ${entry.messageId}`;
    waiting.set(name, (waiting.get(name) ?? 0) + (entry.what === "message" ? 1 : -1));
    if (entry.what === "message") continue;
    const { outcome, verificationId } = entry;
    const receiptText = `${outcome} ${verificationId}`;
    const before = first.get(name) ?? receiptText;
    first.set(name, before);
    if (before !== receiptText)
      found.push(`the receipt of ${name} says ${receiptText}, but before that ${before}`);
    const message = stored.messages.get(name);
    if (message?.outcome !== outcome || message.verificationId !== verificationId) {
      found.push(
        `the receipt of ${name} says ${receiptText}, but the database says ${JSON.stringify(message)}`,
      );
    }
    const status = stored.verifications.get(verificationId)?.status ?? "missing";
    const possible = possibleStatuses[outcome];
    if (possible && !possible.includes(status))
      found.push(`${name} was ${outcome}, but ${verificationId} is ${status}`);
    if (outcome === "INVALID" || outcome === "MUTED") found.push(`${name} was ${outcome}`);
  }
  for (const [name, count] of waiting) if (count !== 0) found.push(`${name} lacks ${count} receipts`);
  return found;
}

/** Checks that every event reached the endpoint, and that every event that reached it happened. */
function violationsOfDeliveries(entries: readonly TimedEntry[], stored: Stored): string[] {
  const found: string[] = [];
  const got = new Map<string, number>();
  for (const entry of entries) {
    if (entry.what !== "delivered") continue;
    const { eventId, type, verificationId } = entry;
    got.set(verificationId, (got.get(verificationId) ?? 0) + 1);
    if (eventId !== verificationId.replace("vrf_", "evt_"))
      found.push(`${eventId} is about ${verificationId}`);
    if (stored.events.get(verificationId) !== type) {
      found.push(
        `the endpoint received ${type} for ${verificationId}, not ${stored.events.get(verificationId)}`,
      );
    }
  }
  for (const [id] of stored.events) {
    const { state, attempts } = stored.deliveries.get(id) ?? { state: "missing", attempts: 0 };
    const times = got.get(id) ?? 0;
    if (state !== "delivered" || times === 0)
      found.push(`the event of ${id} is ${state}, and arrived ${times} times`);
    if (times > attempts)
      found.push(`the event of ${id} arrived ${times} times, but ${attempts} attempts are recorded`);
  }
  return found;
}

/** Checks that there is one verification per idempotency key and one event per transition. */
function violationsOfRows(stored: Stored): string[] {
  const found: string[] = [];
  const keys = new Set<string>();
  for (const [id, { status, key }] of stored.verifications) {
    if (keys.has(key)) found.push(`${key} created two verifications, ${id} is one of them`);
    keys.add(key);
    if (stored.records.get(key) !== id) found.push(`its key ${key} does not return ${id}`);
    const event = stored.events.get(id);
    const expected = status === "pending" ? undefined : `verification.${status}`;
    if (event !== expected) found.push(`${id} is ${status}, but its event is ${event}`);
  }
  return found;
}

function callsIn(entries: readonly TimedEntry[]): Map<number, Call> {
  return new Map(
    entries.flatMap((entry) => {
      if (entry.what !== "asked") return [];
      const { operation, subject, at } = entry;
      return [[entry.call, { operation, subject, asked: at }] as const];
    }),
  );
}

function describeCall(calls: ReadonlyMap<number, Call>, call: number): string {
  const { operation, subject } = calls.get(call) ?? {};
  return `call ${call} (${operation} ${subject})`;
}
