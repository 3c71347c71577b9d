/** A batch of creations as both statements take it: the fast path (fast-path-creations.ts) and the careful path (careful-creations.ts). */

import {
  type Charged,
  type CreatedVerification,
  type CreationOutcome,
  type NewVerification,
  noDestination,
} from "../core/verification.ts";
import { plainArray, textArray } from "./array-literal.ts";
import type { UsageLimitReached } from "./usage.ts";
import { isOfNow } from "./verification-row.ts";

export interface ChargedCreation {
  readonly request: NewVerification;
  readonly chargeTo: string | null;
}

/** What became of one request of a batch. */
export type Outcome = Charged<CreationOutcome> | UsageLimitReached;

export interface Roles {
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
export function rolesOf(items: readonly ChargedCreation[]): Roles {
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

/** An idempotency key with its scope: equal values mean the same creation. */
const scopeOf = (request: NewVerification) =>
  `${request.projectId}${request.environment}${request.idempotencyKey}`;

/** The parameters $3 to $20 of both statements. */
export function columnsOf(items: readonly ChargedCreation[]): string[] {
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

/** The webhook configuration in force for a request `r`. */
export const webhookInForce = `(
  SELECT w.id FROM webhook_configuration w
  WHERE w.project_id = r.project_id AND w.environment = r.environment AND w.replaced_at IS NULL
)`;

/**
 * How old an id may be for its number to count as in use without a look, which would cost up to a twelfth of a statement. A creation
 * makes its id before it chooses a number.
 */
export const freshSeconds = 3.5;

export const isFresh = (lowest: string, highest = lowest) =>
  isOfNow(lowest, highest, `interval '${freshSeconds} seconds'`);

export function answerOf(
  request: NewVerification,
  createdAt: number,
  expiresAt: number,
): CreatedVerification {
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
