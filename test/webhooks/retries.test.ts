import { beforeAll, describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { WebhookDeliveryState, WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { retryDelaysSeconds } from "../../src/webhooks/schedule.ts";
import { byTheClock, installClock, stopClock } from "../harness/clock.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import {
  answerWith,
  hang,
  type Receiver,
  refuseForLong,
  startReceiver,
  untilReceived,
  verified,
} from "./receiver.ts";
import {
  attempted,
  delivered,
  deliveriesOf,
  deliveryWhen,
  endLease,
  makeDue,
  openShop,
  type Shop,
} from "./shop.ts";

/** The service's time throughout this file. */
const standsAt = new Date();

let service: TestService;

beforeAll(async () => {
  const plain = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });
  await installClock(plain.db);
  // Otherwise the second attempt, seconds after the first, could be made before a test has seen the first.
  await stopClock(plain.db, standsAt);
  service = await plain.startAnother({ ROLES: "api,worker", DATABASE_URL: byTheClock(plain.databaseUrl) });
});

/** Seconds from the last attempt until the next is due. */
async function secondsUntilNext(verificationId: string): Promise<number> {
  const { rows } = await service.db.query(
    `SELECT extract(epoch FROM d.next_attempt_at - a.started_at)::float8 AS seconds
     FROM webhook_delivery d JOIN webhook_attempt a ON a.verification_id = d.verification_id AND a.number = d.attempts
     WHERE d.verification_id = $1`,
    [decodeId("vrf_", verificationId)],
  );
  return rows[0]?.seconds;
}

async function shopWithReceiver(
  answer = answerWith(503),
): Promise<{ shop: Shop; receiver: Receiver; secret: string }> {
  const shop = await openShop(service);
  const receiver = await startReceiver(answer);
  const { secret } = await shop.setWebhook(receiver.url);
  return { shop, receiver, secret };
}

const ids = (receiver: Receiver) => receiver.received.map(({ headers }) => headers["webhook-id"]);
const resend = (eventId: string) => service.client(WebhookService).resendWebhookEvent({ eventId });
const eventOf = (verificationId: string) => verificationId.replace("vrf_", "evt_");

test("an event is attempted ten times by the schedule, with the same body and id, and has then failed", async () => {
  const { shop, receiver, secret } = await shopWithReceiver();
  const id = await shop.event();
  for (const [index, gap] of retryDelaysSeconds.entries()) {
    const { state } = await deliveryWhen(service, id, attempted(index + 1));
    expect(state).toBe(WebhookDeliveryState.PENDING);
    const seconds = await secondsUntilNext(id);
    expect(seconds).toBeGreaterThanOrEqual(gap * 0.8);
    expect(seconds).toBeLessThanOrEqual(gap * 1.2);
    await makeDue(service, id);
  }
  const failed = await deliveryWhen(service, id, ({ state }) => state === WebhookDeliveryState.FAILED);
  expect(failed.nextAttemptAt).toBeUndefined();
  expect(failed.attempts.map(({ number }) => number)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  expect(ids(receiver)).toEqual(new Array(10).fill(eventOf(id)));
  expect(new Set(receiver.received.map(({ body }) => body)).size).toBe(1);
  for (const request of receiver.received) verified(request, secret);
});

test("each attempt has its own timestamp and signature", async () => {
  const { shop, receiver, secret } = await shopWithReceiver(refuseForLong(503));
  const id = await shop.event();
  await deliveryWhen(service, id, attempted(1));
  // Moves the first attempt into the past.
  await service.db.query(
    "UPDATE webhook_attempt SET started_at = started_at - interval '1 hour' WHERE verification_id = $1",
    [decodeId("vrf_", id)],
  );
  await service.db.query(
    "UPDATE event SET occurred_at = occurred_at - interval '1 hour' WHERE verification_id = $1",
    [decodeId("vrf_", id)],
  );
  await makeDue(service, id);
  const { attempts } = await deliveryWhen(service, id, attempted(2));
  const [, second] = receiver.received;
  if (!second) throw new Error("unreachable");
  verified(second, secret);
  expect(Number(second.headers["webhook-timestamp"])).toBe(Number(attempts[1]?.startedAt?.seconds));
});

test("a success ends the attempts", async () => {
  const { shop, receiver } = await shopWithReceiver(refuseForLong(503));
  const id = await shop.event();
  await deliveryWhen(service, id, attempted(1));
  receiver.answer = answerWith(200);
  await makeDue(service, id);
  const { attempts } = await deliveryWhen(service, id, delivered);
  expect(attempts.map(({ status }) => status)).toEqual([503, 200]);
});

describe("Retry-After", () => {
  /** A date has no milliseconds, and what an attempt took counts. */
  const slackSeconds = 30;

  test.for([
    { name: "in seconds", value: () => "600", seconds: 600 },
    {
      name: "as a date",
      value: () => new Date(standsAt.getTime() + 600_000).toUTCString(),
      seconds: 600,
    },
    {
      name: "as a date in asctime format",
      value: () =>
        new Date(standsAt.getTime() + 600_000)
          .toUTCString()
          .replace(/^(\w+), 0?(\d+) (\w+) (\d+) (\S+) GMT$/, (_, day, date, month, year, time) =>
            [day, month, date.padStart(2), time, year].join(" "),
          ),
      seconds: 600,
    },
    { name: "of more than a day is reduced to a day", value: () => "999999", seconds: 86_400 },
    { name: "of thousands of years is reduced to a day", value: () => "99999999999", seconds: 86_400 },
    { name: "below the schedule's step does not shorten it", value: () => "1", seconds: 4 },
  ])("$name", async ({ value, seconds }) => {
    const { shop, receiver } = await shopWithReceiver();
    receiver.answer = (response) => response.writeHead(429, { "retry-after": value() }).end();
    const id = await shop.event();
    await deliveryWhen(service, id, attempted(1));
    const waits = await secondsUntilNext(id);
    expect(waits).toBeGreaterThanOrEqual(seconds === 4 ? 4 : seconds - slackSeconds);
    expect(waits).toBeLessThanOrEqual(seconds + slackSeconds);
  });

  test.for([301, 400, 404, 408, 425, 500, 502, 503, 504])("is honoured with status %i", async (status) => {
    const { shop } = await shopWithReceiver(refuseForLong(status));
    const id = await shop.event();
    await deliveryWhen(service, id, attempted(1));
    expect(await secondsUntilNext(id)).toBeGreaterThanOrEqual(3_600);
  });

  test("is honoured with an answer that breaks off", async () => {
    const { shop } = await shopWithReceiver((response) => {
      response.writeHead(200, { "retry-after": "3600", "content-length": "100" });
      response.write("half", () => response.destroy());
    });
    const id = await shop.event();
    const { attempts } = await deliveryWhen(service, id, attempted(1));
    expect(attempts).toMatchObject([{ status: 200, answer: "half" }]);
    expect(await secondsUntilNext(id)).toBeGreaterThanOrEqual(3_600);
  });
});

test("a redirect is a failure and is not followed", async () => {
  const { shop, receiver } = await shopWithReceiver();
  const elsewhere = await startReceiver();
  receiver.answer = answerWith(307, { location: elsewhere.url });
  const { state, attempts } = await deliveryWhen(service, await shop.event(), attempted(1));
  expect(state).toBe(WebhookDeliveryState.PENDING);
  expect(attempts).toMatchObject([{ status: 307, error: "answered 307: redirects are not followed" }]);
  expect(elsewhere.received).toEqual([]);
});

test("a refused connection is a failure", async () => {
  const { shop, receiver } = await shopWithReceiver();
  await receiver.close();
  const { attempts } = await deliveryWhen(service, await shop.event(), attempted(1));
  expect(attempts[0]).toMatchObject({ status: 0, answer: "" });
  expect(attempts[0]?.error).toMatch(/ECONNREFUSED/);
});

describe("resending", () => {
  test("sends a delivered event again at once, with the same webhook-id", async () => {
    const { shop, receiver, secret } = await shopWithReceiver();
    receiver.answer = answerWith(204);
    const id = await shop.event();
    await deliveryWhen(service, id, delivered);
    // A newer one, which is not this.
    await (await shopWithReceiver()).shop.event();
    const { delivery } = await resend(eventOf(id));
    expect(delivery).toMatchObject({ eventId: eventOf(id), state: WebhookDeliveryState.PENDING, resends: 1 });
    const { attempts } = await deliveryWhen(
      service,
      id,
      (sent) => delivered(sent) && sent.attempts.length === 2,
    );
    expect(attempts).toMatchObject([1, 2].map((number) => ({ number, status: 204, error: "" })));
    expect(ids(receiver)).toEqual([eventOf(id), eventOf(id)]);
    expect(receiver.received[0]?.body).toBe(receiver.received[1]?.body);
    for (const request of receiver.received) verified(request, secret);
  });

  test("starts the schedule of a failed event from the beginning", async () => {
    const { shop } = await shopWithReceiver();
    const id = await shop.event();
    await deliveryWhen(service, id, attempted(1));
    await service.db.query(
      "UPDATE webhook_delivery SET state = 'failed', failures = 10, attempts = 10, next_attempt_at = NULL WHERE verification_id = $1",
      [decodeId("vrf_", id)],
    );
    await resend(eventOf(id));
    const { attempts, state } = await deliveryWhen(service, id, attempted(2));
    expect(attempts.map(({ number }) => number)).toEqual([1, 11]);
    expect(state).toBe(WebhookDeliveryState.PENDING);
    // The first step takes seconds, the second minutes.
    expect(await secondsUntilNext(id)).toBeLessThan(60);
  });

  test("can make many attempts: the last hundred are shown, oldest first", async () => {
    const { shop } = await shopWithReceiver();
    const id = await shop.event();
    await deliveryWhen(service, id, attempted(1));
    await service.db.query(
      `WITH more AS (
         INSERT INTO webhook_attempt (verification_id, number, started_at, duration_ms, status, error)
         SELECT $1, number, now(), 1, 500, 'answered 500' FROM generate_series(2, 250) number
       )
       UPDATE webhook_delivery SET state = 'failed', attempts = 250, next_attempt_at = NULL WHERE verification_id = $1`,
      [decodeId("vrf_", id)],
    );
    const [delivery] = await deliveriesOf(service, id);
    expect(delivery?.attempts.map(({ number }) => number)).toEqual(
      Array.from({ length: 100 }, (_, index) => 151 + index),
    );
  });

  test("starts another attempt during one; the first one's result no longer changes the state", async () => {
    const { shop, receiver } = await shopWithReceiver();
    const first = Promise.withResolvers<() => void>();
    receiver.answer = (response) => first.resolve(() => response.writeHead(500).end());
    const id = await shop.event();
    const answerFirst = await first.promise;
    receiver.answer = answerWith(204);
    await resend(eventOf(id));
    const meanwhile = await deliveryWhen(service, id, delivered);
    // The first attempt continues.
    expect(meanwhile.attempts).toMatchObject([
      { number: 1, status: 0, error: "" },
      { number: 2, status: 204 },
    ]);
    expect(meanwhile.attempts[0]?.duration).toBeUndefined();
    answerFirst();
    const { state, attempts } = await deliveryWhen(service, id, attempted(2));
    expect(state).toBe(WebhookDeliveryState.DELIVERED);
    expect(attempts.map(({ status }) => status)).toEqual([500, 204]);
  });

  test("refuses an unknown event, and one without a webhook, as not found", async () => {
    const shop = await openShop(service);
    const id = await shop.event();
    for (const eventId of [eventOf(id), "evt_01kaex4mpyf2xbtyt1s6vdr4e9", id, "", "evt_\u0000"]) {
      await expect(resend(eventId)).rejects.toThrow("no such event");
    }
  });

  test("is answered as done even if the event is delivered, and its record deleted by retention, at once", async () => {
    const { shop, receiver } = await shopWithReceiver();
    const id = await shop.event();
    await deliveryWhen(service, id, attempted(1));
    receiver.answer = answerWith(204);
    const proxy = await startCuttableProxy(service.databaseUrl);
    const other = await service.startAnother({ ROLES: "api", DATABASE_URL: proxy.patientUrl });
    const committed = proxy.holdAnswerTo("COMMIT");
    const resending = other.client(WebhookService).resendWebhookEvent({ eventId: eventOf(id) });
    resending.catch(() => {});
    await committed;
    // This other service's time is the real one.
    await makeDue(service, id);
    await deliveryWhen(service, id, delivered);
    await service.db.query("DELETE FROM webhook_delivery WHERE verification_id = $1", [decodeId("vrf_", id)]);
    proxy.restore();
    expect((await resending).delivery).toMatchObject({ state: WebhookDeliveryState.PENDING, resends: 1 });
  });
});

describe("an attempt whose lease runs out", () => {
  test("is made again, and the late result of the first no longer changes the state", async () => {
    const { shop, receiver } = await shopWithReceiver();
    const first = Promise.withResolvers<() => void>();
    receiver.answer = (response) => first.resolve(() => response.writeHead(500, {}).end("late"));
    const id = await shop.event();
    const answerFirst = await first.promise;
    receiver.answer = answerWith(204);
    await endLease(service, id);
    const cutOff = await deliveryWhen(service, id, delivered);
    expect(cutOff.attempts).toMatchObject([
      { number: 1, status: 0, error: "cut off: what came of it is not known" },
      { number: 2, status: 204, error: "" },
    ]);
    answerFirst();
    const { state, attempts } = await deliveryWhen(service, id, attempted(2));
    expect(state).toBe(WebhookDeliveryState.DELIVERED);
    expect(attempts).toMatchObject([
      { number: 1, status: 500, error: "answered 500", answer: "late" },
      { number: 2, status: 204 },
    ]);
    expect(ids(receiver)).toEqual([eventOf(id), eventOf(id)]);
  });

  test("does not count as a failure if its late result arrives during the attempt that replaces it", async () => {
    const { shop, receiver } = await shopWithReceiver();
    const answers: ((status: number) => void)[] = [];
    receiver.answer = (response) => answers.push((status) => response.writeHead(status).end());
    const id = await shop.event();
    await untilReceived(receiver);
    await endLease(service, id);
    await untilReceived(receiver, 2);
    const [late, current] = answers;
    late?.(500);
    await deliveryWhen(service, id, ({ attempts }) => attempts[0]?.status === 500);
    const { rows } = await service.db.query(
      "SELECT failures::int, next_attempt_at > clock.now() + interval '10 seconds' AS leased FROM webhook_delivery WHERE verification_id = $1",
      [decodeId("vrf_", id)],
    );
    expect(rows).toEqual([{ failures: 0, leased: true }]);
    current?.(204);
    const { attempts } = await deliveryWhen(service, id, delivered);
    expect(attempts.map(({ status }) => status)).toEqual([500, 204]);
  });

  test("does not use up a step of the schedule", async () => {
    const { shop, receiver } = await shopWithReceiver();
    receiver.answer = hang;
    const id = await shop.event();
    await untilReceived(receiver);
    receiver.answer = answerWith(503);
    await endLease(service, id);
    await deliveryWhen(service, id, ({ attempts }) => attempts[1]?.duration !== undefined);
    const seconds = await secondsUntilNext(id);
    expect(seconds).toBeGreaterThanOrEqual(4);
    expect(seconds).toBeLessThanOrEqual(60);
    await receiver.close();
  });
});
