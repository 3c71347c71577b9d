import { idempotencyKeyHours } from "../core/idempotency-key.ts";
import { isSameRequest } from "../core/request-digest.ts";
import { type UsageCount, usageLimitExceeded } from "../core/usage.ts";
import {
  type Charged,
  type CreatedVerification,
  type CreationOutcome,
  type NewVerification,
  noDestination,
} from "../core/verification.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { isReleasable } from "./code-occupancy.ts";
import { type Database, type Pipeline, runStatement, tryStatement } from "./database.ts";
import { createFastPathGuard } from "./fast-path-guard.ts";
import { waitForStandby } from "./standby-wait.ts";
import {
  type BatchCharges,
  chargedCalls,
  chargesOf,
  countCharged,
  secondsToNextMonth,
  UsageLimitReached,
  usageOf,
} from "./usage.ts";
import { epochMs, isOfNow, nowMs, verificationColumns, verificationOf } from "./verification-row.ts";

/** An idempotency key with its scope: equal values mean the same creation. */
const scopeOf = (request: NewVerification) =>
  `${request.projectId}${request.environment}${request.idempotencyKey}`;

/** How long an idempotency key is retained, from its creation response on. */
export const keyLife = `interval '${idempotencyKeyHours} hours'`;

/**
 * The creation response, from an idempotency record `i` and its verification `v`: `repeated` resets the columns that have
 * changed since.
 */
const firstAnswerColumns = `encode(i.request_digest, 'hex'), i.verification_url, v.destination, v.sms_text, ${verificationColumns}`;

/** The webhook configuration in force for a request `r`. */
const webhookInForce = `(
  SELECT w.id FROM webhook_configuration w
  WHERE w.project_id = r.project_id AND w.environment = r.environment AND w.replaced_at IS NULL
)`;

/**
 * Whether an idempotency record `i` is still retained. Written so that the index on `created_at` does not serve it: planned on a
 * single page of records, the look-up of a key would go through all records of a day by that index.
 */
export const liveRecord = `i.created_at + ${keyLife} > now()`;

/**
 * How old an id may be for its number to count as in use unseen: to look costs up to a twelfth of a statement. A creation makes its id
 * before it chooses a number.
 */
export const freshSeconds = 3.5;

const isFresh = (lowest: string, highest = lowest) =>
  isOfNow(lowest, highest, `interval '${freshSeconds} seconds'`);

/**
 * The fast path: charges and creates if there is no conflict, as is nearly always the case: every key is new, every code is
 * free, every call is within its limit, every id was made a moment ago. On any conflict the statement fails as a whole, with a
 * unique violation or a division by zero, and has no effect. It takes half the database time of `createStatement`, since it looks up,
 * joins and returns nothing per row.
 *
 * Locks tables and rows in the order of `createStatement`, but lists the CTEs in reverse: Postgres runs data-modifying CTEs
 * that nothing refers to from the last to the first. A code that is taken thus fails the statement before keys and
 * verifications are written.
 */
const createNewStatement = {
  name: "create_new",
  text: `
WITH ${chargedCalls},
created AS (
  INSERT INTO verification (
    id, project_id, environment, mode, status, expected_phone, client_reference, state, parent_origin, return_url,
    destination, sms_text, created_at, expires_at, webhook_configuration_id
  )
  SELECT r.id, r.project_id, r.environment, r.mode, 'pending', r.expected_phone, r.client_reference, r.state,
    r.parent_origin, r.return_url, r.destination, r.sms_text, ${nowMs},
    ${nowMs} + make_interval(secs => r.validity_seconds), ${webhookInForce}
  FROM unnest(
    $7::uuid[], $3::uuid[], $4::environment[], $8::verification_mode[], $9::text[], $10::text[], $11::text[],
    $12::text[], $13::text[], $14::text[], $17::text[], $20::int[]
  ) AS r (
    id, project_id, environment, mode, expected_phone, client_reference, state, parent_origin, return_url,
    destination, sms_text, validity_seconds
  )
),
keyed AS (
  INSERT INTO idempotency_record
    (project_id, environment, key, request_digest, verification_id, verification_url, created_at)
  SELECT r.project_id, r.environment, r.key, decode(r.request_digest, 'hex'), r.verification_id, r.verification_url, ${nowMs}
  FROM unnest($3::uuid[], $4::environment[], $5::text[], $6::text[], $7::uuid[], $18::text[])
    AS r (project_id, environment, key, request_digest, verification_id, verification_url)
  ORDER BY r.project_id, r.environment, r.key
),
reserved AS (
  INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone, window_digest)
  SELECT r.destination, r.code, r.code_format, r.verification_id, ${nowMs} + make_interval(secs => r.validity_seconds),
    r.expected_phone, decode(r.window_digest, 'hex')
  FROM unnest($14::text[], $15::text[], $16::code_format[], $7::uuid[], $20::int[], $9::text[], $19::text[])
    AS r (destination, code, code_format, verification_id, validity_seconds, expected_phone, window_digest)
  ORDER BY r.destination, r.code
)
SELECT ${epochMs(nowMs)}, c.project_id::text, c.calls::float8, c.granted::float8, c.call_limit::float8,
  1 / (coalesce(c.granted, -1) = d.calls)::int,
  (SELECT 1 / (${isFresh("$21::uuid", "$22::uuid")})::int)
FROM (VALUES (0)) AS always
LEFT JOIN unnest($1::uuid[], $2::bigint[]) AS d (project_id, calls) ON true
LEFT JOIN charged c ON c.project_id = d.project_id`,
};

/** The SQLSTATEs of a conflict in `createNewStatement`: unique_violation, division_by_zero. */
const notAllNew = /^(23505|22012)$/;

/**
 * The careful path: charges and creates in one statement, so that neither happens without the other. Tables are locked in the
 * order that every statement keeps: usage, codes, idempotency keys, verifications.
 *
 * `reserved` reserves the codes: a code in use or in quarantine is skipped; one past its quarantine, which the expiry has also
 * looked at, is reused. For an id that is not of now none is reserved: retention goes by ids, and would erase at the wrong time.
 * Nor is one on a number that was chosen long ago and does not serve the environment any more.
 * `keyed` stores the idempotency keys: an expired record is replaced; a live one stays, and its request creates nothing. A request
 * that loses a race for its key sees neither its own insert nor the winner's, so its columns come back null:
 * `firstAnswerStatement` then reads the winner's response. The code that the loser reserved stays barred until it ages out, which
 * costs nothing and saves a delete.
 *
 * `known` aggregates the one record of a key: the planner has no statistics of keys, and would expect a two-hundredth of all
 * records for each. With a million records it made each execution prepare a hash table for five million rows, which took longer than
 * all the rest.
 */
const createStatement = {
  name: "create",
  text: `
WITH ${chargedCalls},
request AS MATERIALIZED (
  SELECT r.*, ${nowMs} AS created_at,
    ${nowMs} + make_interval(secs => r.validity_seconds) AS expires_at,
    c.calls, c.granted, c.call_limit, r.rank = 0 OR r.rank <= c.granted AS admitted,
    ${isOfNow("r.verification_id")} AS of_now,
    CASE WHEN r.destination = '${noDestination}' THEN false WHEN ${isFresh("r.verification_id")} THEN true ELSE coalesce((
      SELECT d.environment = r.environment FROM destination_number d
      WHERE d.number = r.destination AND d.removed_at IS NULL
    ), false) END AS in_use
  FROM ROWS FROM (
    generate_series(0, $21::int - 1), unnest(
    $3::uuid[], $4::environment[], $5::text[], $6::text[], $7::uuid[], $8::verification_mode[], $9::text[], $10::text[],
    $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::code_format[], $17::text[], $18::text[],
    $19::text[], $20::int[], $22::uuid[], $23::int[], $24::bool[])
  ) AS r (
    position, project_id, environment, key, request_digest, verification_id, mode, expected_phone, client_reference,
    state, parent_origin, return_url, destination, code, code_format, sms_text, verification_url,
    window_digest, validity_seconds, charge_to, rank, leads
  )
  LEFT JOIN charged c ON c.project_id = r.charge_to
),
known AS MATERIALIZED (
  SELECT r.position, i.request_digest, i.verification_url, i.verification_id
  FROM request r
  CROSS JOIN LATERAL (
    SELECT (array_agg(request_digest))[1] AS request_digest, (array_agg(verification_url))[1] AS verification_url,
      (array_agg(verification_id))[1] AS verification_id
    FROM idempotency_record i
    WHERE r.admitted AND i.project_id = r.project_id AND i.environment = r.environment AND i.key = r.key
      AND ${liveRecord}
    HAVING count(*) > 0
  ) i
),
reserved AS (
  INSERT INTO live_code AS l
    (destination, code, code_format, verification_id, expires_at, expected_phone, window_digest)
  SELECT r.destination, r.code, r.code_format, r.verification_id, r.expires_at, r.expected_phone, decode(r.window_digest, 'hex')
  FROM request r
  WHERE r.admitted AND r.leads AND r.of_now AND r.in_use
    AND NOT EXISTS (SELECT FROM known k WHERE k.position = r.position)
  ORDER BY r.destination, r.code
  ON CONFLICT (destination, code) DO UPDATE SET
    code_format = excluded.code_format, verification_id = excluded.verification_id, expires_at = excluded.expires_at,
    expected_phone = excluded.expected_phone, window_digest = excluded.window_digest
  WHERE ${isReleasable("l")}
  RETURNING l.verification_id
),
keyed AS (
  INSERT INTO idempotency_record AS i
    (project_id, environment, key, request_digest, verification_id, verification_url, created_at)
  SELECT r.project_id, r.environment, r.key, decode(r.request_digest, 'hex'), r.verification_id,
    r.verification_url, r.created_at
  FROM request r JOIN reserved USING (verification_id)
  ORDER BY r.project_id, r.environment, r.key
  ON CONFLICT (project_id, environment, key) DO UPDATE SET
    request_digest = excluded.request_digest, verification_id = excluded.verification_id,
    verification_url = excluded.verification_url, created_at = excluded.created_at
  WHERE i.created_at <= excluded.created_at - ${keyLife}
  RETURNING i.verification_id
),
created AS (
  INSERT INTO verification (
    id, project_id, environment, mode, status, expected_phone, client_reference, state, parent_origin, return_url,
    destination, sms_text, created_at, expires_at, webhook_configuration_id
  )
  SELECT r.verification_id, r.project_id, r.environment, r.mode, 'pending', r.expected_phone, r.client_reference,
    r.state, r.parent_origin, r.return_url, r.destination, r.sms_text, r.created_at, r.expires_at,
    ${webhookInForce}
  FROM request r JOIN keyed USING (verification_id)
  RETURNING id
)
SELECT r.position, r.calls::float8, r.granted::float8, r.call_limit::float8,
  c.id IS NOT NULL, s.verification_id IS NOT NULL, ${epochMs("r.created_at")}, ${epochMs("r.expires_at")},
  CASE WHEN NOT coalesce(r.admitted, false) THEN ${secondsToNextMonth} END, r.of_now, r.in_use,
  ${firstAnswerColumns}
FROM request r
LEFT JOIN created c ON c.id = r.verification_id
LEFT JOIN reserved s ON s.verification_id = r.verification_id
LEFT JOIN known i ON i.position = r.position
LEFT JOIN LATERAL (SELECT * FROM verification v WHERE v.id = i.verification_id OFFSET 0) v ON true`,
};

/** The columns of `createStatement` before those of the first answer. */
type CreationRow = readonly [
  position: number,
  calls: unknown,
  granted: unknown,
  callLimit: unknown,
  isCreated: boolean,
  isReserved: boolean,
  createdAt: number,
  expiresAt: number,
  secondsToNextMonth: unknown,
  isOfNow: boolean,
  isInUse: boolean,
];
const firstAnswerColumn = 11;

/** Reads the recorded responses of keys that were lost in a race. */
const firstAnswerStatement = {
  name: "first_answer",
  text: `
SELECT r.position::int, ${firstAnswerColumns}
FROM unnest($1::uuid[], $2::environment[], $3::text[]) WITH ORDINALITY AS r (project_id, environment, key, position)
CROSS JOIN LATERAL (
  SELECT * FROM idempotency_record i
  WHERE i.project_id = r.project_id AND i.environment = r.environment AND i.key = r.key AND ${liveRecord} OFFSET 0
) i
CROSS JOIN LATERAL (SELECT * FROM verification v WHERE v.id = i.verification_id OFFSET 0) v`,
};

interface ChargedCreation {
  readonly request: NewVerification;
  readonly chargeTo: string | null;
}

/** The result of the statement for one request. */
type Outcome = Charged<CreationOutcome> | UsageLimitReached;

export interface Creations {
  create(request: NewVerification, chargeTo: string | null): Promise<Charged<CreationOutcome>>;
  isOverloaded(): boolean;
}

export function createCreations(database: Database): Creations {
  const guard = createFastPathGuard();
  const pipeline = database.openPipeline();

  const enqueue = createBatcher<ChargedCreation, Outcome>({
    observer: database.observer.batch("create"),
    maxSize: 256,
    maxWaiting: 10_000,
    isPipelined: pipeline.isPipelined,
    // A burst of one merchant must not have all others wait for the whole of it.
    senderOf: ({ request }) => request.projectId,
    async run(items) {
      const roles = rolesOf(items);
      const batchCharges = chargesOf(items.map(({ chargeTo }) => chargeTo));
      if (!guard.mustSkip() && !roles.leads.includes("f")) {
        const outcomes = await createOnFastPath(pipeline, items, batchCharges);
        if (outcomes !== null) return outcomes;
        guard.recordConflict();
      }
      return createBatch(pipeline, items, roles, batchCharges);
    },
  });

  async function create(
    request: NewVerification,
    chargeTo: string | null,
  ): Promise<Charged<CreationOutcome>> {
    const outcome = await enqueue({ request, chargeTo });
    if (outcome instanceof UsageLimitReached) throw usageLimitExceeded(outcome.secondsToNextMonth);
    return outcome;
  }

  return { create, isOverloaded: enqueue.isOverloaded };
}

interface Roles {
  /** By position: the position of the first request with the same idempotency key. */
  readonly leaderOf: readonly number[];
  /** By position: `t` if the request leads, else `f`. */
  readonly leads: readonly string[];
}

/**
 * Of the requests in a batch with the same key, or the same code, only the first leads and may create, since a statement cannot
 * see its own inserts. The others are charged too; those with the leader's key get its response, those with only its code
 * `code_taken`.
 */
function rolesOf(items: readonly ChargedCreation[]): Roles {
  const leaders = new Map<string, number>();
  const leaderOf = items.map(({ request }, position) => {
    const scope = scopeOf(request);
    const leader = leaders.get(scope) ?? position;
    leaders.set(scope, leader);
    return leader;
  });
  const codes = new Set<string>();
  const leads = items.map(({ request: { destination, code } }, position) => {
    if (
      destination === noDestination ||
      leaderOf[position] !== position ||
      codes.has(`${destination} ${code}`)
    )
      return "f";
    codes.add(`${destination} ${code}`);
    return "t";
  });
  return { leaderOf, leads };
}

/** Null if not all could be created: then nothing has happened. */
async function createOnFastPath(
  pipeline: Pipeline,
  items: readonly ChargedCreation[],
  batchCharges: BatchCharges,
): Promise<Outcome[] | null> {
  const ids = items.map(({ request }) => request.id);
  const values = [
    batchCharges.projects,
    batchCharges.calls,
    ...columnsOf(items),
    ids.reduce((one, other) => (one < other ? one : other)),
    ids.reduce((one, other) => (one > other ? one : other)),
  ];
  const rows = await tryStatement(pipeline, createNewStatement, values, notAllNew);
  if (rows === null) return null;
  const createdAt = rows[0]?.[0] as number;
  const charged = new Map(rows.map((row) => [row[1], row]));
  const usages = items.map(({ chargeTo }, position) => {
    const [, , calls, granted, limit] = charged.get(chargeTo) ?? [];
    return usageOf(batchCharges.ranks[position] ?? 0, calls, granted, limit, null);
  });
  pipeline.observer.charged(countCharged(usages));
  return items.map(({ request }, position): Outcome => {
    const usage = usages[position];
    if (usage instanceof UsageLimitReached) throw new Error("a call was answered without being charged");
    const created = answerOf(request, createdAt, createdAt + request.validitySeconds * 1000);
    return { usage, value: { kind: "created", created } };
  });
}

/** The parameters $3 to $20 of both statements. */
function columnsOf(items: readonly ChargedCreation[]): string[] {
  const plain = (pick: (request: NewVerification) => string | number | null) =>
    plainArray(items.map(({ request }) => pick(request)));
  const text = (pick: (request: NewVerification) => string | null) =>
    textArray(items.map(({ request }) => pick(request)));
  return [
    plain(({ projectId }) => projectId),
    plain(({ environment }) => environment),
    text(({ idempotencyKey }) => idempotencyKey),
    plain(({ requestDigest }) => requestDigest),
    plain(({ id }) => id),
    plain(({ mode }) => mode),
    text(({ expectedPhone }) => expectedPhone),
    text(({ clientReference }) => clientReference),
    text(({ state }) => state),
    text(({ parentOrigin }) => parentOrigin),
    text(({ returnUrl }) => returnUrl),
    text(({ destination }) => destination),
    text(({ code }) => code),
    plain(({ codeFormat }) => codeFormat),
    text(({ smsText }) => smsText),
    text(({ verificationUrl }) => verificationUrl),
    plain(({ windowDigest }) => windowDigest),
    plain(({ validitySeconds }) => validitySeconds),
  ];
}

async function createBatch(
  pipeline: Pipeline,
  items: readonly ChargedCreation[],
  { leaderOf, leads }: Roles,
  batchCharges: BatchCharges,
): Promise<Outcome[]> {
  const rows = await runStatement(pipeline, createStatement, [
    batchCharges.projects,
    batchCharges.calls,
    ...columnsOf(items),
    items.length,
    plainArray(items.map(({ chargeTo }) => chargeTo)),
    plainArray(batchCharges.ranks),
    plainArray(leads),
  ]);
  if (rows.length !== items.length) throw new Error("a creation returned no result");

  const outcomes = new Array<Outcome>(items.length);
  const created = new Map<number, CreatedVerification>();
  const undecided: Undecided[] = [];
  const usages = rows.map((row) => {
    const [position, calls, granted, limit, , , , , seconds] = row as unknown as CreationRow;
    return usageOf(batchCharges.ranks[position] ?? 0, calls, granted, limit, seconds);
  });
  pipeline.observer.charged(countCharged(usages));
  for (const [index, row] of rows.entries()) {
    const [position, , , , isCreated, isReserved, createdAt, expiresAt, , isOfNow, isInUse] =
      row as unknown as CreationRow;
    const { request } = items[position] as ChargedCreation;
    const usage = usages[index];
    if (usage instanceof UsageLimitReached) {
      outcomes[position] = usage;
    } else if (isCreated) {
      const answer = answerOf(request, createdAt, expiresAt);
      created.set(position, answer);
      outcomes[position] = { usage, value: { kind: "created", created: answer } };
    } else if (row[firstAnswerColumn] !== null) {
      outcomes[position] = { usage, value: repeated(request, row, firstAnswerColumn) };
    } else {
      const refused: CreationOutcome = isOfNow
        ? { kind: isInUse ? "code_taken" : "number_removed" }
        : { kind: "id_outdated", now: createdAt };
      undecided.push({ position, request, usage, reserved: isReserved, refused });
    }
  }

  for (const { position, request, usage, refused } of undecided) {
    const leader = leaderOf[position] as number;
    const answer = created.get(leader);
    const same = request.requestDigest === (items[leader] as ChargedCreation).request.requestDigest;
    const asLeader: CreationOutcome = !answer
      ? refused
      : same
        ? { kind: "replayed", created: answer }
        : { kind: "conflict" };
    outcomes[position] = { usage, value: asLeader };
  }
  await answerLost(
    pipeline,
    undecided.filter(({ reserved }) => reserved),
    outcomes,
  );
  const hasWritten = created.size > 0 || countCharged(usages) > 0;
  if (!hasWritten && outcomes.some(isReplayed)) await waitForStandby(pipeline);
  return outcomes;
}

const isReplayed = (outcome: Outcome) =>
  !(outcome instanceof UsageLimitReached) && outcome.value.kind === "replayed";

/** A request that was charged, but neither created nor found by its key. */
interface Undecided {
  readonly position: number;
  readonly request: NewVerification;
  readonly usage: UsageCount | undefined;
  /** Whether its code was reserved: then another process took its key while the statement ran. */
  readonly reserved: boolean;
  /** Why no code was reserved for it, unless it shares its key with a request that has created. */
  readonly refused: CreationOutcome;
}

/** Gives requests that lost their keys the responses of the winners. */
async function answerLost(
  pipeline: Pipeline,
  lost: readonly Undecided[],
  outcomes: Outcome[],
): Promise<void> {
  if (lost.length === 0) return;
  const requests = lost.map(({ request }) => request);
  const rows = await runStatement(pipeline, firstAnswerStatement, [
    plainArray(requests.map(({ projectId }) => projectId)),
    plainArray(requests.map(({ environment }) => environment)),
    textArray(requests.map(({ idempotencyKey }) => idempotencyKey)),
  ]);
  for (const row of rows) {
    const { position, request, usage } = lost[(row[0] as number) - 1] as Undecided;
    outcomes[position] = { usage, value: repeated(request, row, 1) };
  }
}

function answerOf(request: NewVerification, createdAt: number, expiresAt: number): CreatedVerification {
  return {
    verification: {
      id: request.id,
      projectId: request.projectId,
      environment: request.environment,
      mode: request.mode,
      status: "pending",
      phone: null,
      carrier: null,
      clientReference: request.clientReference,
      state: request.state,
      createdAt,
      expiresAt,
      verifiedAt: null,
      serverTime: createdAt,
    },
    verificationUrl: request.verificationUrl,
    destination: request.destination,
    smsText: request.smsText,
  };
}

/**
 * The recorded response in a row's `firstAnswerColumns` from `offset` on, as of its creation: pending, with that server time.
 */
function repeated(request: NewVerification, row: readonly unknown[], offset: number): CreationOutcome {
  if (!isSameRequest(row[offset] as string, request)) return { kind: "conflict" };
  const verification = verificationOf(row, offset + 4);
  if (verification === null)
    throw new Error("an idempotency record names a verification that does not exist");
  return {
    kind: "replayed",
    created: {
      verification: {
        ...verification,
        status: "pending",
        phone: null,
        carrier: null,
        verifiedAt: null,
        serverTime: verification.createdAt,
      },
      verificationUrl: row[offset + 1] as string,
      destination: row[offset + 2] as string,
      smsText: row[offset + 3] as string,
    },
  };
}
