import { randomUUID } from "node:crypto";
import { beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { decodeId, encodeId } from "../../src/core/ids.ts";
import { retryPollMs } from "../../src/core/webhook.ts";
import {
  WebhookDeliveryState,
  WebhookEventType,
  WebhookService,
} from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { createNotices } from "../../src/storage/notices.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { answerWith, refuseForLong, startReceiver, untilReceived, verified } from "./receiver.ts";
import { attempted, delivered, deliveriesOf, deliveryWhen, openShop } from "./shop.ts";

let service: TestService;

beforeAll(async () => {
  service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
});

async function read(key: string, id: string) {
  const response = await fetch(`${service.httpUrl}/v1/verifications/${id}`, {
    headers: { authorization: `Bearer ${key}` },
  });
  return (await response.json()) as Record<string, unknown>;
}

test("a verification has the time of its event, also if its SMS arrived with many others or holds another number", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  const { secret } = await shop.setWebhook(receiver.url);
  const count = 60;
  const pending = await Promise.all(Array.from({ length: count }, () => shop.create()));
  const receipts = await service.sms(
    ...pending.map(({ destination, smsText }, index) => ({
      to: destination,
      text: index === 0 ? smsText : `${smsText} (0212345678, 12345678)`,
      from: `010660000${index + 10}`,
    })),
  );
  expect(receipts.map(({ outcome }) => outcome)).toEqual(pending.map(() => "VERIFIED"));
  for (const request of await untilReceived(receiver, count)) {
    const { timestamp, data } = verified(request, secret);
    expect(data).toMatchObject({ verified_at: timestamp, server_time: timestamp });
    expect(await read(shop.liveKey, data.id as string)).toMatchObject({ verified_at: timestamp });
  }
});

test.for([
  {
    type: "verification.verified",
    end: async (destination: string, smsText: string) => {
      const [receipt] = await service.sms({ to: destination, text: smsText, from: "010-1234-5678" });
      expect(receipt?.outcome).toBe("VERIFIED");
    },
  },
  {
    type: "verification.expired",
    end: async (_destination: string, _smsText: string, id: string) => {
      await moveExpiry(service.db, { expiresAt: "now()", where: "id = $1", values: [decodeId("vrf_", id)] });
    },
  },
  { type: "verification.cancelled", end: null },
])("a $type event is sent, signed, with the verification as the API returns it", async ({ type, end }) => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  const { secret } = await shop.setWebhook(receiver.url);
  const { id, destination, smsText } = await shop.create({
    clientReference: "주문 42",
    state: "wHk2Rr0cXq7mYt5v",
  });
  if (end === null) await shop.cancel(id);
  else await end(destination, smsText, id);
  const [request] = await untilReceived(receiver);
  if (!request) throw new Error("unreachable");

  expect(request.headers).toMatchObject({
    "content-type": "application/json",
    "user-agent": "phoneproof-webhooks",
    "webhook-id": id.replace("vrf_", "evt_"),
  });
  const payload = verified(request, secret);
  const { rows } = await service.db.query("SELECT occurred_at FROM event WHERE verification_id = $1", [
    decodeId("vrf_", id),
  ]);
  const occurredAt = rows[0].occurred_at.toISOString();
  expect(Object.keys(payload)).toEqual(["type", "timestamp", "data"]);
  expect(payload).toMatchObject({ type, timestamp: occurredAt });
  const { server_time: _, ...now } = await read(shop.liveKey, id);
  expect(payload.data).toEqual({ ...now, server_time: occurredAt });
  expect(Object.keys(payload.data)).toEqual([...Object.keys(now), "server_time"]);
  expect(payload.data.phone).toBe(type === "verification.verified" ? "01012345678" : null);

  const delivery = await deliveryWhen(service, id, delivered);
  expect(delivery).toMatchObject({
    eventId: id.replace("vrf_", "evt_"),
    verificationId: id,
    url: receiver.url,
    attempts: [{ number: 1, status: 204, error: "", answer: "" }],
  });
  expect(delivery.nextAttemptAt).toBeUndefined();
  expect(receiver.received).toHaveLength(1);
});

test("a locked delivery is skipped until its lock is released, and does not block others", async () => {
  const [held, other] = [await openShop(service), await openShop(service)];
  const receiver = await startReceiver(refuseForLong(503));
  for (const shop of [held, other]) await shop.setWebhook(receiver.url);
  const id = await held.event();
  await deliveryWhen(service, id, attempted(1));
  receiver.answer = answerWith(204);
  const somebody = await service.db.connect();
  onTestFinished(() => somebody.release(true));
  // The row must be locked before it is due; if that was too slow, try again with more time.
  for (let [seconds, rows] = [1, 0]; rows === 0; seconds *= 3) {
    await somebody.query("BEGIN");
    const values = [decodeId("vrf_", id), seconds];
    await service.db.query(
      "UPDATE webhook_delivery SET state = 'pending', next_attempt_at = now() + make_interval(secs => $2) WHERE verification_id = $1",
      values,
    );
    const { rowCount } = await somebody.query(
      "SELECT FROM webhook_delivery WHERE verification_id = $1 AND next_attempt_at > clock_timestamp() FOR UPDATE",
      values.slice(0, 1),
    );
    rows = rowCount ?? 0;
    if (rows === 0) await somebody.query("COMMIT");
  }
  const isDue = async () =>
    (
      await service.db.query(
        "SELECT FROM webhook_delivery WHERE verification_id = $1 AND next_attempt_at <= now()",
        [decodeId("vrf_", id)],
      )
    ).rowCount === 1;
  await vi.waitUntil(isDue, { timeout: 45_000, interval: 20 });
  await deliveryWhen(service, await other.event(), delivered);
  await somebody.query("COMMIT");
  await deliveryWhen(service, id, delivered);
});

/** Ends a statement once it is blocked by a lock; `text` must be in its first KiB, since Postgres shows no more of it. */
async function endWaiting(text: string): Promise<void> {
  await vi.waitUntil(
    async () => {
      const { rows } = await service.db.query(
        `SELECT count(pg_terminate_backend(pid))::int AS ended FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND strpos(query, $1) > 0`,
        [text],
      );
      return rows[0].ended > 0;
    },
    { timeout: 45_000, interval: 5 },
  );
}

test("the result of an attempt is recorded although the database failed the first time", async () => {
  const shop = await openShop(service);
  const answer = Promise.withResolvers<() => void>();
  const receiver = await startReceiver((response) => answer.resolve(() => response.writeHead(204).end()));
  await shop.setWebhook(receiver.url);
  const id = await shop.event();
  const end = await answer.promise;
  const somebody = await service.db.connect();
  try {
    await somebody.query("BEGIN");
    await somebody.query("SELECT FROM webhook_delivery WHERE verification_id = $1 FOR UPDATE", [
      decodeId("vrf_", id),
    ]);
    end();
    await endWaiting("retry_in_seconds");
    await somebody.query("COMMIT");
  } finally {
    somebody.release(true);
  }
  const { attempts } = await deliveryWhen(service, id, delivered);
  expect(attempts).toMatchObject([{ number: 1, status: 204 }]);
  expect(receiver.received).toHaveLength(1);
});

test("deliveries continue after the database has aborted a claim", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver(refuseForLong(503));
  await shop.setWebhook(receiver.url);
  const id = await shop.event();
  await deliveryWhen(service, id, attempted(1));
  receiver.answer = answerWith(204);
  const somebody = await service.db.connect();
  try {
    await somebody.query("BEGIN; LOCK TABLE webhook_delivery IN ACCESS EXCLUSIVE MODE");
    await somebody.query("UPDATE webhook_delivery SET next_attempt_at = now() WHERE verification_id = $1", [
      decodeId("vrf_", id),
    ]);
    await endWaiting("WITH RECURSIVE bound");
    await somebody.query("COMMIT");
  } finally {
    somebody.release(true);
  }
  await deliveryWhen(service, id, delivered);
});

test("only the configured event types are sent", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url, [WebhookEventType.VERIFICATION_VERIFIED]);
  const unwanted = await shop.event();
  const { id, destination, smsText } = await shop.create();
  await service.sms({ to: destination, text: smsText });
  await deliveryWhen(service, id, delivered);
  expect(await deliveriesOf(service, unwanted)).toEqual([]);
  expect(receiver.received).toHaveLength(1);
});

test("the beginning of an answer is recorded, as text that Postgres can store", async () => {
  const shop = await openShop(service);
  const body = Buffer.concat([
    Buffer.from("\ufeffok\u0000 한글"),
    Buffer.from([0xff]),
    Buffer.alloc(3000, "가"),
  ]);
  const receiver = await startReceiver((response) => response.writeHead(200).end(body));
  await shop.setWebhook(receiver.url);
  const [attempt] = (await deliveryWhen(service, await shop.event(), delivered)).attempts;
  const answer = attempt?.answer ?? "";
  expect(answer.startsWith("\ufeffok\ufffd 한글\ufffd가가")).toBe(true);
  expect(answer).toMatch(/가$/);
  expect(Buffer.byteLength(answer)).toBeGreaterThan(1000);
  expect(Buffer.byteLength(answer)).toBeLessThan(1040);
});

test("an endless answer is cut off after its first KiB, and counts as accepted", async () => {
  const shop = await openShop(service);
  const closed = Promise.withResolvers<void>();
  const receiver = await startReceiver((response) => {
    response.writeHead(200).write("x".repeat(2000));
    response.on("close", closed.resolve);
  });
  await shop.setWebhook(receiver.url);
  const { attempts } = await deliveryWhen(service, await shop.event(), delivered);
  expect(attempts).toMatchObject([{ status: 200, answer: "x".repeat(1024) }]);
  await closed.promise;
});

test("without a webhook there are no deliveries", async () => {
  const shop = await openShop(service);
  expect(await deliveriesOf(service, await shop.event())).toEqual([]);
});

test("three processes that deliver make each attempt once", async () => {
  const others = await Promise.all([
    service.startAnother({ ROLES: "worker" }),
    service.startAnother({ ROLES: "worker" }),
  ]);
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  const ids = await Promise.all(Array.from({ length: 300 }, () => shop.event()));
  await vi.waitUntil(
    async () => {
      const { rows } = await service.db.query(
        "SELECT count(*)::int FROM webhook_delivery WHERE state = 'delivered' AND verification_id = ANY ($1)",
        [ids.map((id) => decodeId("vrf_", id))],
      );
      return rows[0].count === ids.length;
    },
    { timeout: 45_000, interval: 50 },
  );
  // An attempt that failed, on a machine that does not get to answering in time, is followed by another one.
  const { rows } = await service.db.query(
    `SELECT verification_id::text AS id, count(*)::int AS attempts,
       (array_agg(status ORDER BY number DESC))[1] = 204 AND count(*) FILTER (WHERE status = 204) = 1 AS ended
     FROM webhook_attempt WHERE verification_id = ANY ($1) GROUP BY 1`,
    [ids.map((id) => decodeId("vrf_", id))],
  );
  expect(rows).toHaveLength(ids.length);
  const sent = new Map<unknown, number>();
  for (const { headers } of receiver.received) {
    sent.set(headers["webhook-id"], (sent.get(headers["webhook-id"]) ?? 0) + 1);
  }
  const wrong = rows.filter(
    ({ id, attempts, ended }) => !ended || sent.get(encodeId("evt_", id)) !== attempts,
  );
  expect(wrong).toEqual([]);
  await Promise.all(others.map((other) => other.close()));
});

test("a refused event stays pending and has the time of its next attempt", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver(refuseForLong(500, "not today"));
  await shop.setWebhook(receiver.url);
  const delivery = await deliveryWhen(service, await shop.event(), ({ attempts }) =>
    Boolean(attempts[0]?.duration),
  );
  expect(delivery).toMatchObject({
    state: WebhookDeliveryState.PENDING,
    attempts: [{ number: 1, status: 500, error: "answered 500", answer: "not today" }],
  });
  expect(delivery.nextAttemptAt).toBeDefined();
});

test("a delivery's state and attempts are always read from one snapshot", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  const events = 150;
  let sent = false;
  const sending = Promise.all(Array.from({ length: events }, () => shop.event())).finally(() => {
    sent = true;
  });
  for (let done = false; !done; ) {
    const allSent = sent;
    const { deliveries } = await service
      .client(WebhookService)
      .listWebhookDeliveries({ projectId: shop.projectId, pageSize: 200 });
    for (const { state, attempts } of deliveries) {
      expect(attempts.some(({ status }) => status === 204)).toBe(state === WebhookDeliveryState.DELIVERED);
    }
    done = allSent && deliveries.every(({ state }) => state === WebhookDeliveryState.DELIVERED);
  }
  await sending;
  expect(receiver.received).toHaveLength(events);
});

test("a transition's notice says whether a delivery may be due; notices of older versions are understood", async () => {
  const dueById = new Map<string, boolean>();
  const notices = createNotices(
    { connectionString: service.databaseUrl },
    {
      onTransition: ({ verificationId, deliveryDue }) => dueById.set(verificationId, deliveryDue),
      onHint() {},
      onDirectoryChange() {},
      onGap() {},
      onError() {},
    },
  );
  await notices.start();
  onTestFinished(() => notices.stop());
  const [withWebhook, withoutWebhook] = [await openShop(service), await openShop(service)];
  await withWebhook.setWebhook((await startReceiver()).url);
  const ids = [await withWebhook.event(), await withoutWebhook.event()].map(
    (id) => decodeId("vrf_", id) ?? "",
  );
  const older = randomUUID();
  await service.db.query("SELECT pg_notify('phoneproof_transition', $1)", [`${older}:verified`]);
  await vi.waitUntil(() => dueById.has(older), { timeout: 45_000, interval: 5 });
  expect([...ids, older].map((id) => dueById.get(id))).toEqual([true, false, false]);
});

// The last test: the service does not look for retries any more after it.
test("a delivery starts when its transition is announced, without any poll", async () => {
  const shop = await openShop(service);
  await shop.setWebhook((await startReceiver()).url);
  // By this clock no poll is ever overdue: a claim that is would be waited for, and none is made in its place.
  const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
  onTestFinished(() => clock.mockRestore());
  suppressTimers(retryPollMs);
  // The first may still be found by a poll that was scheduled before.
  for (let event = 0; event < 3; event++) await deliveryWhen(service, await shop.event(), delivered);
});
