/** Newly created verifications, and their data that no response shows. */
import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import { decodeId } from "../../src/core/ids.ts";
import { type Merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { moveExpiry } from "../harness/expiry.ts";

export interface Pending {
  readonly id: string;
  /** The destination. */
  readonly to: string;
  /** The whole SMS text. */
  readonly text: string;
  readonly code: string;
  readonly expiresAt: Date;
}

/** Creates a verification over REST, and retries for as long as the service is overloaded. */
export async function createPending(shop: Merchant, request: object = {}): Promise<Pending> {
  const key = newIdempotencyKey();
  let answer = await shop.create(request, key);
  while (answer.body.error?.code === "service_unavailable") {
    await delay(200);
    answer = await shop.create(request, key);
  }
  const { status, text, body } = answer;
  if (status !== 201 && status !== 200) throw new Error(`not created: ${status} ${text}`);
  const { id, destination, sms_text, expires_at } = body;
  return {
    id,
    to: destination,
    text: sms_text,
    code: codeIn(sms_text),
    expiresAt: new Date(expires_at),
  };
}

/** The code in a text of the default template. */
export function codeIn(smsText: string): string {
  const code = /\b[0-9A-Z]{6,12}\b/.exec(smsText)?.[0];
  if (code === undefined) throw new Error(`no code in ${smsText}`);
  return code;
}

/** The types of a verification's events. */
export async function eventsOf(db: pg.Pool, verificationId: string): Promise<string[]> {
  const { rows } = await db.query<{ type: string }>("SELECT type FROM event WHERE verification_id = $1", [
    uuidOf(verificationId),
  ]);
  return rows.map(({ type }) => type);
}

/** Moves a pending verification an hour into the past, without a read that would expire it. */
export async function letExpire(db: pg.Pool, verificationId: string): Promise<void> {
  const moved = await moveExpiry(db, {
    expiresAt: "expires_at - interval '1 hour'",
    where: "id = $1 AND status = 'pending'",
    values: [uuidOf(verificationId)],
  });
  if (moved !== 1) throw new Error("there is no such pending verification");
}

export function uuidOf(verificationId: string): string {
  const uuid = decodeId("vrf_", verificationId);
  if (uuid === null) throw new Error(`${verificationId} is no id of a verification`);
  return uuid;
}
