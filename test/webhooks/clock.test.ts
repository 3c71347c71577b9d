import { describe, expect, test, vi } from "vitest";
import { decodeId, newId } from "../../src/core/ids.ts";
import { leaseSeconds } from "../../src/core/webhook.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { createWebhookDeliveries } from "../../src/storage/webhook-deliveries.ts";
import { byTheClock, installClock, moveClock } from "../harness/clock.ts";
import { openOwnDatabase } from "../harness/database.ts";
import { startTestService } from "../harness/service.ts";
import { answerWith, hang, startReceiver, untilReceived } from "./receiver.ts";
import { delivered, deliveryWhen, openShop } from "./shop.ts";

const hour = 3_600_000;

const plain = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });
await installClock(plain.db);
const url = byTheClock(plain.databaseUrl);
const service = await plain.startAnother({ ROLES: "api", DATABASE_URL: url });
const startWorker = () => plain.startAnother({ ROLES: "worker", DATABASE_URL: url });

/** Waits until counting has come up to the clock: only then does a clock that was set back show. */
async function countedUpToNow(): Promise<void> {
  await vi.waitUntil(
    async () => {
      const { rows } = await plain.db.query(
        "SELECT min(counted_until) > clock.now() - interval '1 minute' AS is_near FROM statistics_progress",
      );
      return rows[0].is_near;
    },
    { timeout: 45_000, interval: 50 },
  );
}

/** Seconds until the next attempt of a delivery is due. */
async function secondsLeft(verificationId: string): Promise<number> {
  const { rows } = await plain.db.query(
    "SELECT extract(epoch FROM next_attempt_at - clock.now())::float8 AS seconds FROM webhook_delivery WHERE verification_id = $1",
    [decodeId("vrf_", verificationId)],
  );
  return rows[0].seconds;
}

describe("after the database's clock was an hour ahead, without waiting for that hour,", () => {
  test("a retry is made by the schedule", async () => {
    const worker = await startWorker();
    const shop = await openShop(service);
    const receiver = await startReceiver(answerWith(503));
    await shop.setWebhook(receiver.url);
    await moveClock(plain.db, hour);
    const id = await shop.event();
    // By then the second attempt may have been made, too.
    await deliveryWhen(service, id, ({ attempts }) => attempts[0]?.duration !== undefined);
    await countedUpToNow();
    receiver.answer = answerWith(204);
    await moveClock(plain.db, -hour);
    await deliveryWhen(service, id, delivered);
    await worker.close();
  });

  test("a first attempt is made at once, and so is one that was requested by hand", async () => {
    const first = await startWorker();
    const shop = await openShop(service);
    const receiver = await startReceiver(answerWith(204));
    await shop.setWebhook(receiver.url);
    const resent = await shop.event();
    await deliveryWhen(service, resent, delivered);
    await moveClock(plain.db, hour);
    await countedUpToNow();
    await first.close();
    const id = await shop.event();
    await service.client(WebhookService).resendWebhookEvent({ eventId: resent.replace("vrf_", "evt_") });
    await moveClock(plain.db, -hour);
    const worker = await startWorker();
    await deliveryWhen(service, id, delivered);
    await deliveryWhen(service, resent, (delivery) => delivered(delivery) && delivery.attempts.length === 2);
    await worker.close();
  });

  test("an attempt that was cut off is made again once its lease is over, and not before", async () => {
    const first = await startWorker();
    const shop = await openShop(service);
    const receiver = await startReceiver(hang);
    await shop.setWebhook(receiver.url);
    await moveClock(plain.db, hour);
    await countedUpToNow();
    const id = await shop.event();
    await untilReceived(receiver, 1);
    await first.close();
    await moveClock(plain.db, -hour);
    const worker = await startWorker();
    await vi.waitUntil(async () => (await secondsLeft(id)) <= leaseSeconds, { timeout: 45_000 });
    expect(await secondsLeft(id)).toBeGreaterThan(leaseSeconds - 15);
    expect((await deliveryWhen(service, id, () => true)).attempts.length).toBe(1);
    await worker.close();
  });
});

describe("bringing attempts forward", () => {
  /** Adds retries, given as the minutes from now of the attempt before and of the next one. */
  async function openDeliveries(retries: readonly (readonly [before: number, next: number])[]) {
    const { database, db } = await openOwnDatabase();
    const ids = retries.map(() => newId());
    const client = await db.connect();
    // The rows that these refer to do not matter.
    await client.query("SET session_replication_role = replica");
    const at = (minutes: string) => `date_trunc('milliseconds', now() + make_interval(mins => ${minutes}))`;
    for (const [row, [before, next]] of retries.entries()) {
      await client.query(
        `WITH d AS (
           INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, claim, next_attempt_at)
           VALUES ($1, $2, 'pending', 1, $2, ${at("$4")})
         )
         INSERT INTO webhook_attempt (verification_id, number, started_at) VALUES ($1, 1, ${at("$3")})`,
        [ids[row], newId(), before, next],
      );
    }
    client.release(true);
    const minutesLeft = async () => {
      const { rows } = await db.query(
        `SELECT round(extract(epoch FROM next_attempt_at - now()) / 60)::int AS minutes
         FROM unnest($1::uuid[]) WITH ORDINALITY AS k (id, row) JOIN webhook_delivery ON verification_id = id ORDER BY row`,
        [ids],
      );
      return rows.map(({ minutes }) => minutes);
    };
    return { db, ids, minutesLeft, ...createWebhookDeliveries(database, { onDisabled() {} }) };
  }

  test("is done once, and not for a distance that is longer than the clock was ahead", async () => {
    const { bringForward, minutesLeft } = await openDeliveries([
      [60, 65],
      [60, 180],
      [-5, 20],
    ]);
    await bringForward();
    expect(await minutesLeft()).toEqual([5, 180, 20]);
    await bringForward();
    expect(await minutesLeft()).toEqual([5, 180, 20]);
  });

  test("leaves an attempt that another process has begun meanwhile", async () => {
    const { bringForward, minutesLeft, db, ids } = await openDeliveries([[60, 65]]);
    const other = await db.connect();
    await other.query("BEGIN");
    await other.query(
      "UPDATE webhook_delivery SET attempts = 2, next_attempt_at = now() + interval '30 minutes' WHERE verification_id = $1",
      ids,
    );
    const bringing = bringForward();
    const waiting =
      "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    await vi.waitUntil(async () => (await db.query(waiting)).rowCount === 1, { timeout: 45_000 });
    await other.query("COMMIT");
    other.release();
    await bringing;
    expect(await minutesLeft()).toEqual([30]);
  });
});
