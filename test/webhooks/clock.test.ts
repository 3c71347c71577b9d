import { describe, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { leaseSeconds } from "../../src/core/webhook.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { byTheClock, installClock, moveClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { answerWith, hang, startReceiver, untilReceived } from "./receiver.ts";
import { attempted, delivered, deliveryWhen, openShop } from "./shop.ts";

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
    { timeout: 20_000, interval: 50 },
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
    await deliveryWhen(service, id, attempted(1));
    await countedUpToNow();
    receiver.answer = answerWith(204);
    await moveClock(plain.db, -hour);
    await deliveryWhen(service, id, delivered, 20_000);
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
    await deliveryWhen(service, id, delivered, 20_000);
    await deliveryWhen(
      service,
      resent,
      (delivery) => delivered(delivery) && delivery.attempts.length === 2,
      20_000,
    );
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
    await vi.waitUntil(async () => (await secondsLeft(id)) <= leaseSeconds, { timeout: 20_000 });
    expect(await secondsLeft(id)).toBeGreaterThan(leaseSeconds - 15);
    expect((await deliveryWhen(service, id, () => true)).attempts.length).toBe(1);
    await worker.close();
  });
});
