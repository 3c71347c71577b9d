/** Erasures beside what happens at the same time, and erasures that are interrupted. */

import type { ServerResponse } from "node:http";
import { Code } from "@connectrpc/connect";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { tablesWith } from "../harness/every-table.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { refuseForLong } from "../webhooks/receiver.ts";
import { attempted, delivered, deliveryWhen, makeDue } from "../webhooks/shop.ts";
import { raceTo, untilWaiting } from "./barrier.ts";
import {
  type Counts,
  echo,
  erasePhone,
  eraseVerification,
  expecting,
  nothing,
  prepareShop,
  receiver,
  send,
  service,
  shop,
  tablesWithPhone,
  verifiedBy,
} from "./erasures.ts";
import { createPending, eventsOf, type Pending, uuidOf } from "./pending.ts";
import { newPhone } from "./sms-source.ts";

prepareShop();

describe("webhooks", () => {
  test("an answer that arrives after the erasure is not stored", async () => {
    const phone = newPhone();
    let held: ServerResponse | undefined;
    receiver.answer = (response, { body }) => {
      if (body.includes(phone)) held = response;
      else response.writeHead(204).end();
    };
    const { id } = await verifiedBy(phone);
    const response = await vi.waitUntil(() => held, { timeout: 45_000, interval: 5 });
    await erasePhone(phone);
    response.writeHead(200).end(`thanks for ${phone}`);
    const { attempts } = await deliveryWhen(service, id, delivered);
    expect(attempts).toMatchObject([{ status: 200, answer: "" }]);
    expect(await tablesWithPhone(phone)).toEqual([]);
    receiver.answer = echo;
  });

  test("an event not yet delivered is delivered without the phone", async () => {
    const phone = newPhone();
    receiver.answer = refuseForLong(500);
    const { id } = await verifiedBy(phone);
    const eventId = id.replace("vrf_", "evt_");
    const untilReceived = (count: number) =>
      vi.waitUntil(
        () => {
          const own = receiver.received.filter(({ headers }) => headers["webhook-id"] === eventId);
          return own.length >= count ? own : undefined;
        },
        { timeout: 45_000, interval: 5 },
      );
    await deliveryWhen(service, id, attempted(1));
    // The endpoint's answer was empty.
    expect(await eraseVerification(id)).toMatchObject({ verifications: 1, answers: 0 });
    receiver.answer = echo;
    await makeDue(service, id);
    await deliveryWhen(service, id, delivered);
    const [beforeErasure, again] = (await untilReceived(2)).map(({ body }) => JSON.parse(body));
    expect(beforeErasure.data.phone).toBe(phone);
    expect(again).toEqual({ ...beforeErasure, data: { ...beforeErasure.data, phone: null } });
    await service.client(WebhookService).resendWebhookEvent({ eventId });
    await untilReceived(3);
    expect(await tablesWithPhone(phone)).toEqual([]);
  });
});

describe("concurrency", () => {
  test("an SMS that is first verifies, and its data is erased", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    const [outcome] = await raceTo(service.db, "event", [
      () => send(pending, phone),
      () => eraseVerification(pending.id),
    ]);
    expect(outcome).toBe("VERIFIED");
    expect((await shop.read(pending.id)).body).toMatchObject({ status: "verified", phone: null });
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.verified"]);
  });

  test("an erasure that is first cancels, and the SMS gets NOT_PENDING", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    const [erasure, outcome] = await raceTo(service.db, "event", [
      () => erasePhone(phone),
      () => send(pending, phone),
    ]);
    expect([erasure.cancelled, outcome]).toEqual([1, "NOT_PENDING"]);
    expect((await shop.read(pending.id)).body).toMatchObject({ status: "cancelled", phone: null });
  });

  test("many at once leave connections to other calls", async () => {
    const lock = await service.db.connect();
    try {
      await lock.query("BEGIN; LOCK TABLE inbound_sender");
      const erasures = Array.from({ length: 30 }, () => erasePhone(newPhone()));
      await untilWaiting(service.db, 1);
      expect((await shop.create()).status).toBe(201);
      await lock.query("ROLLBACK");
      for (const counts of await Promise.all(erasures)) expect(counts.verifications).toBe(0);
    } finally {
      lock.release(true);
    }
  });

  test("a key that meanwhile belongs to another verification can still be replayed", async () => {
    const [key, nextKey] = [newIdempotencyKey(), newIdempotencyKey()];
    const phone = newPhone();
    const { body } = await shop.create(expecting(phone), key);
    const next = await shop.create({}, nextKey);
    const client = await service.db.connect();
    // Its records can be read, and not be changed yet.
    await client.query("BEGIN; LOCK TABLE idempotency_record IN EXCLUSIVE MODE");
    const erasing = eraseVerification(body.id);
    await untilWaiting(service.db, 1);
    // Should it be interrupted, the next one finds by the phone what is left.
    expect(await tablesWithPhone(phone)).toContain("verification");
    // As if a day had passed.
    await client.query("DELETE FROM idempotency_record WHERE key = $1", [key]);
    await client.query("UPDATE idempotency_record SET key = $1 WHERE key = $2", [key, nextKey]);
    await client.query("COMMIT");
    client.release();
    await erasing;
    const again = await shop.create({}, key);
    expect([again.status, again.text]).toEqual([200, next.text]);
  });

  test("data that arrives from the phone after the erasure began is neither waited for nor erased", async () => {
    const phone = newPhone();
    const before = await verifiedBy(phone);
    const holder = await service.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM verification WHERE id = $1 FOR UPDATE", [uuidOf(before.id)]);
    const erasing = erasePhone(phone);
    const after: Pending[] = [];
    try {
      await untilWaiting(service.db, 1);
      const verified = await verifiedBy(phone);
      await deliveryWhen(service, verified.id, delivered);
      after.push(verified, await createPending(shop, expecting(phone)));
    } finally {
      await holder.query("COMMIT");
      holder.release();
    }
    expect(await erasing).toMatchObject({ verifications: 1, messages: 1 });
    expect((await shop.read(before.id)).body).toMatchObject({ phone: null });
    const places = await tablesWithPhone(phone);
    expect(places).toEqual(
      expect.arrayContaining(["inbound_message", "live_code", "verification", "webhook_attempt"]),
    );
    expect(await erasePhone(phone)).toMatchObject({ verifications: after.length, messages: 1 });
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("concurrent erasures remove thousands of messages and verifications while SMS arrive", async () => {
    const [phone, other] = [newPhone(), newPhone()];
    const model = await createPending(shop);
    await service.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'bulk', n::text, CASE WHEN n % 2 = 0 THEN $1 ELSE $2 END, '0200000000', 'bulk',
         now() - CASE WHEN n < 7000 THEN interval '1 day' ELSE make_interval(secs => n) END, 'no_match', false
       FROM generate_series(1, 12000) n`,
      [phone, other],
    );
    await service.db.query(
      `INSERT INTO verification (id, project_id, environment, mode, status, phone, client_reference, state, destination,
         sms_text, created_at, expires_at, verified_at)
       SELECT uuidv7(), project_id, environment, mode, 'verified', CASE WHEN n % 2 = 0 THEN $1 ELSE $2 END,
         '', '', destination, '', created_at, expires_at, created_at
       FROM verification, generate_series(1, 6000) n WHERE id = $3`,
      [phone, other, uuidOf(model.id)],
    );
    const neighbour = await service.startAnother({ ROLES: "api" });
    let busy = true;
    const outcomes = new Set<string | undefined>();
    const living = (async () => {
      while (busy) {
        const pending = await createPending(shop);
        outcomes.add(await send(pending, newPhone()));
      }
    })();
    const counts = await Promise.all([
      erasePhone(phone),
      erasePhone(other, neighbour),
      erasePhone(phone, neighbour),
      erasePhone(other),
    ]);
    busy = false;
    await living;
    const sum = (name: keyof Counts) => counts.reduce((total, count) => total + count[name], 0);
    expect([sum("verifications"), sum("messages")]).toEqual([6000, 12000]);
    for (const erased of [phone, other]) expect(await tablesWithPhone(erased)).toEqual([]);
    expect([...outcomes]).toEqual(["VERIFIED"]);
  });
});

describe("an interrupted erasure", () => {
  let quiet: TestService;

  beforeAll(async () => {
    quiet = await startTestService({ ROLES: "api" });
  });

  /** Inserts three batches of messages from a new phone; the second cannot be erased until `release`. */
  async function heldInTheMiddle() {
    const phone = newPhone();
    await quiet.db.query("DELETE FROM inbound_message");
    await quiet.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'bulk', n::text, $1, '0200000000', 'bulk', now() - make_interval(secs => n), 'no_match', false
       FROM generate_series(1, 15000) n`,
      [phone],
    );
    const holder = await quiet.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM inbound_message WHERE message_id = '7000' FOR UPDATE");
    return {
      phone,
      async release() {
        await holder.query("COMMIT");
        holder.release();
      },
      async isLeft(n: number) {
        const { rows } = await quiet.db.query("SELECT sender FROM inbound_message WHERE message_id = $1", [
          n,
        ]);
        return rows[0].sender === phone;
      },
    };
  }

  test("stops after the current batch when the client disconnects, and the next erasure finishes it", async () => {
    const { phone, release, isLeft } = await heldInTheMiddle();
    const client = quiet.client(ErasureService);
    const leave = new AbortController();
    const erasing = Array.fromAsync(client.erasePhone({ phone }, { signal: leave.signal }));
    erasing.catch(() => {});
    await untilWaiting(quiet.db, 1);
    expect([await isLeft(15000), await isLeft(7000)]).toEqual([false, true]);
    leave.abort();
    await expect(erasing).rejects.toMatchObject({ code: Code.Canceled });
    // Sent on the same connection: once this is answered, the service knows of the cancellation.
    await answerOf(() => client.eraseVerification({ verificationId: "nonsense" }));
    await release();
    await vi.waitUntil(async () => !(await isLeft(7000)), { timeout: 45_000, interval: 5 });
    await erasePhone("01099999999", quiet);
    expect(await isLeft(1)).toBe(true);
    expect(await erasePhone(phone, quiet)).toEqual({ ...nothing, messages: 5000 });
    expect(await tablesWith(quiet.db, phone)).toEqual([]);
  });

  test("is not reported as done when the service stops", async () => {
    const { phone, release, isLeft } = await heldInTheMiddle();
    const stopping = await quiet.startAnother();
    const erasing = erasePhone(phone, stopping);
    erasing.catch(() => {});
    await untilWaiting(quiet.db, 1);
    const stopped = stopping.close();
    await release();
    await expect(erasing).rejects.toMatchObject({ code: Code.Unavailable });
    await stopped;
    expect(await isLeft(1)).toBe(true);
    await erasePhone(phone, quiet);
    expect(await tablesWith(quiet.db, phone)).toEqual([]);
  });

  test.for([
    { what: "a phone", erase: (phone: string) => erasePhone(phone, quiet) },
    {
      what: "a verification",
      async erase(phone: string) {
        const project = await quiet.createProject();
        const { id } = await createPending(merchant(quiet.httpUrl, project.liveKey), expecting(phone));
        return await quiet.client(ErasureService).eraseVerification({ verificationId: id });
      },
    },
  ])("of $what has removed it from the codes before the batch that it waits for", async ({ erase }) => {
    const phone = newPhone();
    // Codes without a verification, as of creations that lost their idempotency keys.
    await quiet.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       SELECT '0200000000', $1 || n, 'numeric', lpad(n::text, 32, '0')::uuid, now() + interval '1 hour', $1
       FROM generate_series(1, 15000) n`,
      [phone],
    );
    const isLeft = async (n: number) => {
      const { rows } = await quiet.db.query("SELECT expected_phone FROM live_code WHERE code = $1", [
        phone + n,
      ]);
      return rows[0].expected_phone === phone;
    };
    const holder = await quiet.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM live_code WHERE code = $1 FOR UPDATE", [`${phone}7000`]);
    const erasing = erase(phone);
    await untilWaiting(quiet.db, 1);
    expect([await isLeft(1), await isLeft(7000), await isLeft(15000)]).toEqual([false, true, true]);
    await holder.query("COMMIT");
    holder.release();
    await erasing;
    const { rowCount } = await quiet.db.query("SELECT FROM live_code WHERE expected_phone = $1", [phone]);
    expect(rowCount).toBe(0);
  });

  test("of a verification whose phone retention has erased finds the rest of its codes when it is repeated", async () => {
    const phone = newPhone();
    const project = await quiet.createProject();
    const shopThere = merchant(quiet.httpUrl, project.liveKey);
    const pending = await createPending(shopThere, expecting(phone));
    await shopThere.cancel(pending.id);
    await quiet.db.query("UPDATE verification SET expected_phone = NULL WHERE id = $1", [uuidOf(pending.id)]);
    // Behind its own code, which is in the first batch.
    await quiet.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       SELECT '0299999999', 'lost ' || n, 'numeric', lpad(n::text, 32, '0')::uuid, now() + interval '1 hour', $1
       FROM generate_series(1, 6000) n`,
      [phone],
    );
    const erase = () => quiet.client(ErasureService).eraseVerification({ verificationId: pending.id });
    const holder = await quiet.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM live_code WHERE code = 'lost 6000' FOR UPDATE");
    const interrupted = answerOf(erase);
    await untilWaiting(quiet.db, 1);
    await quiet.db.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    );
    expect(await interrupted).toMatchObject({ code: "service_unavailable" });
    await holder.query("COMMIT");
    holder.release();
    expect(await tablesWith(quiet.db, phone)).toEqual(["live_code"]);
    await erase();
    expect(await tablesWith(quiet.db, phone)).toEqual([]);
  });
});
