/** What the tests of erasures share: a shop whose endpoint echoes its events, erasures in it, and what is left of a phone. */

import type pg from "pg";
import { beforeAll, expect } from "vitest";
import { type Erasure, ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { readPage } from "../docs/pages.ts";
import { type Merchant, merchant } from "../gateway/merchant.ts";
import { tablesWith } from "../harness/every-table.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { type Answer, type Receiver, startReceiver } from "../webhooks/receiver.ts";
import { openShop } from "../webhooks/shop.ts";
import { createPending, type Pending, uuidOf } from "./pending.ts";

export let service: TestService;
/** Gets the shop's events. */
export let receiver: Receiver;
export let liveKey: string;
export let shop: Merchant;

/** Echoes the event, as careless endpoints do. */
export const echo: Answer = (response, { body }) => response.writeHead(200).end(body);

/** To be called by each file: starts the service, with the shop and its webhook. */
export function prepareShop(): void {
  beforeAll(async () => {
    service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
    receiver = await startReceiver(echo);
    const opened = await openShop(service);
    await opened.setWebhook(receiver.url);
    liveKey = opened.liveKey;
    shop = merchant(service.httpUrl, liveKey);
  });
}

export type Counts = Record<"verifications" | "cancelled" | "messages" | "answers", number>;

export const countsOf = (erasure: Erasure | undefined): Counts => ({
  verifications: erasure?.verifications ?? -1,
  cancelled: erasure?.cancelledVerifications ?? -1,
  messages: erasure?.messages ?? -1,
  answers: erasure?.webhookAnswers ?? -1,
});

export async function erasePhone(phone: string, by = service): Promise<Counts> {
  const progress = await Array.fromAsync(by.client(ErasureService).erasePhone({ phone }));
  return countsOf(progress.at(-1)?.erasure);
}

export async function eraseVerification(verificationId: string): Promise<Counts> {
  return countsOf((await service.client(ErasureService).eraseVerification({ verificationId })).erasure);
}

export const nothing: Counts = { verifications: 0, cancelled: 0, messages: 0, answers: 0 };

export const spelled = (phone: string) => `${phone.slice(0, 3)}-${phone.slice(3, 7)}-${phone.slice(7)}`;

/** The tables that contain the number, in either spelling. */
export async function tablesWithPhone(phone: string): Promise<string[]> {
  const found = [...(await tablesWith(service.db, phone)), ...(await tablesWith(service.db, spelled(phone)))];
  return [...new Set(found)].sort();
}

/** How many rows of each kind the documented statement finds about the number, in the time that the service's own statements have. */
export async function countedAbout(phone: string): Promise<Record<string, number>> {
  const sql = readPage("docs/security.md").blocks.find(({ language }) => language === "sql")?.code ?? "";
  const results: unknown = await service.db.query(
    `SELECT set_config('statement_timeout', '8s', true); ${sql.replace("01012345678", phone)}`,
  );
  const [, { rows }] = results as [unknown, pg.QueryResult<{ what: string }>];
  const kinds = Map.groupBy(rows, ({ what }) => what);
  return Object.fromEntries([...kinds].map(([what, found]) => [what, found.length]));
}

export const everythingAbout = async (phone: string) => Object.keys(await countedAbout(phone)).sort();

export async function send(pending: Pending, from: string): Promise<string | undefined> {
  return (await service.sms({ to: pending.to, from, text: pending.text }))[0]?.outcome;
}

export async function verifiedBy(phone: string, request: object = {}): Promise<Pending> {
  const pending = await createPending(shop, request);
  expect(await send(pending, phone)).toBe("VERIFIED");
  return pending;
}

export const expecting = (phone: string) => ({ mode: "match", expected_phone: phone });

/** A code on another number, left behind by a request that lost the race for this verification's idempotency key. */
export async function addLostCode(verificationId: string): Promise<void> {
  await service.db.query(
    `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
     SELECT '0299999999', code, code_format, gen_random_uuid(), expires_at, expected_phone FROM live_code
     WHERE verification_id = $1`,
    [uuidOf(verificationId)],
  );
}
