import { pino } from "pino";
import { beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { decodeId } from "../../src/core/ids.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import {
  type Webhook,
  WebhookDeliveryState,
  WebhookEventType,
  WebhookService,
} from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { startService } from "../../src/service.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { raceTo, untilWaiting } from "../service/barrier.ts";
import { uuidOf } from "../service/pending.ts";
import {
  answerWith,
  isVerifiedBy,
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
  isDisabled,
  makeDue,
  openShop,
  type Shop,
} from "./shop.ts";

let service: TestService;

beforeAll(async () => {
  service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
});

const environment = Environment.LIVE;
const slowly = { timeout: 45_000, interval: 50 };
const webhooks = () => service.client(WebhookService);

async function inForce({ projectId }: Shop): Promise<Webhook> {
  const { webhook } = await webhooks().getWebhook({ projectId, environment });
  if (!webhook) throw new Error("unreachable");
  return webhook;
}

const version = async (webhookId: string) => (await webhooks().getWebhook({ webhookId })).webhook;
const resend = (id: string) => webhooks().resendWebhookEvent({ eventId: id.replace("vrf_", "evt_") });

/** Waits for a request, which must be the only one, and returns it. */
async function only(receiver: Receiver) {
  const [request] = await untilReceived(receiver);
  expect(receiver.received).toHaveLength(1);
  if (!request) throw new Error("unreachable");
  return request;
}

const signatures = (request: { headers: Record<string, unknown> }) =>
  String(request.headers["webhook-signature"]).split(" ");

describe("a verification's event goes to the webhook that was in force when the verification was created", () => {
  test("if the URL has changed since: to the old URL, signed with the old secret", async () => {
    const shop = await openShop(service);
    const [before, after] = [await startReceiver(), await startReceiver()];
    const old = await shop.setWebhook(before.url);
    const early = await shop.create();
    const current = await shop.setWebhook(after.url);
    expect(current.secret).not.toBe(old.secret);
    await shop.cancel(early.id);
    const late = await shop.event();
    const first = await only(before);
    expect(first.headers["webhook-id"]).toBe(early.id.replace("vrf_", "evt_"));
    verified(first, old.secret);
    expect(signatures(first)).toHaveLength(1);
    const second = await only(after);
    expect(second.headers["webhook-id"]).toBe(late.replace("vrf_", "evt_"));
    verified(second, current.secret);
    expect(signatures(second)).toHaveLength(1);
  });

  test("if the webhook was removed since: it is still sent; verifications created later have none", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const { id, secret } = await shop.setWebhook(receiver.url);
    const early = await shop.create();
    await shop.removeWebhook();
    await expect(inForce(shop)).rejects.toThrow("no current webhook");
    expect((await version(id))?.replacedAt).toBeDefined();
    const late = await shop.event();
    await shop.cancel(early.id);
    verified(await only(receiver), secret);
    await deliveryWhen(service, early.id, delivered);
    expect(await deliveriesOf(service, late)).toEqual([]);
  });

  test("if it was set only after the creation: nothing is sent", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const early = await shop.create();
    await shop.setWebhook(receiver.url);
    await shop.cancel(early.id);
    await deliveryWhen(service, await shop.event(), delivered);
    expect(await deliveriesOf(service, early.id)).toEqual([]);
    expect(receiver.received).toHaveLength(1);
  });

  test("if the event types have changed since: the old ones apply", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    await shop.setWebhook(receiver.url, [WebhookEventType.VERIFICATION_CANCELLED]);
    const early = await shop.create();
    await shop.setWebhook(receiver.url, [WebhookEventType.VERIFICATION_VERIFIED]);
    await shop.cancel(early.id);
    await deliveryWhen(service, early.id, delivered);
    expect(await deliveriesOf(service, await shop.event())).toEqual([]);
  });

  test("the environments have separate webhooks", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    await webhooks().setWebhook({
      projectId: shop.projectId,
      environment: Environment.TEST,
      url: receiver.url,
    });
    expect(await deliveriesOf(service, await shop.event())).toEqual([]);
  });
});

describe("secrets", () => {
  test("after a rotation, older verifications are signed with both, newer ones with the new one", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const { secret: first } = await shop.setWebhook(receiver.url);
    const early = await shop.create();
    const second = await shop.rotateSecret();
    expect(second).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
    expect(second).not.toBe(first);

    await shop.cancel(early.id);
    const both = await only(receiver);
    verified(both, first);
    expect(isVerifiedBy(both, second)).toBe(true);
    expect(signatures(both)).toHaveLength(2);
    // The secret captured at creation comes first.
    const alone = (signature: string | undefined) => ({
      ...both,
      headers: { ...both.headers, "webhook-signature": signature },
    });
    expect(isVerifiedBy(alone(signatures(both)[0]), first)).toBe(true);
    expect(isVerifiedBy(alone(signatures(both)[1]), second)).toBe(true);

    receiver.received.length = 0;
    await shop.event();
    const late = await only(receiver);
    verified(late, second);
    expect(isVerifiedBy(late, first)).toBe(false);
    expect(signatures(late)).toHaveLength(1);
  });

  test("each rotation adds a signature, up to ten: that of the captured secret and the newest nine", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const { secret } = await shop.setWebhook(receiver.url);
    const early = await shop.create();
    const rotated: string[] = [];
    for (let count = 0; count < 12; count += 1) rotated.push(await shop.rotateSecret());
    await shop.cancel(early.id);
    const request = await only(receiver);
    expect(signatures(request)).toHaveLength(10);
    verified(request, secret);
    expect(rotated.map((newer) => isVerifiedBy(request, newer))).toEqual([
      ...new Array(3).fill(false),
      ...new Array(9).fill(true),
    ]);
  });

  test("the same URL keeps its secret in every version, and events have one signature", async () => {
    const shop = await openShop(service);
    const [receiver, elsewhere] = [await startReceiver(), await startReceiver()];
    const first = await shop.setWebhook(receiver.url);
    const early = await shop.create();
    await shop.setWebhook(elsewhere.url);
    const again = await shop.setWebhook(receiver.url);
    expect(again.secret).toBe(first.secret);
    expect(again.id).not.toBe(first.id);
    await shop.cancel(early.id);
    expect(signatures(await only(receiver))).toHaveLength(1);
  });

  test("differ by project and environment, even with the same URL", async () => {
    const receiver = await startReceiver();
    const [one, other] = [await openShop(service), await openShop(service)];
    const live = await one.setWebhook(receiver.url);
    const { secret: test } = await webhooks().setWebhook({
      projectId: one.projectId,
      environment: Environment.TEST,
      url: receiver.url,
    });
    const another = await other.setWebhook(receiver.url);
    expect(new Set([live.secret, test, another.secret]).size).toBe(3);
    await one.event();
    expect(signatures(await only(receiver))).toHaveLength(1);
  });

  test("are not shown by a read", async () => {
    const shop = await openShop(service);
    const { secret } = await shop.setWebhook("https://shop.example/hook");
    const shown = JSON.stringify(await inForce(shop), (_key, value) =>
      typeof value === "bigint" ? String(value) : value,
    );
    expect(shown).not.toContain(secret.slice("whsec_".length, 20));
  });
});

test("of concurrent changes each becomes a version, and exactly one is in force", async () => {
  const shop = await openShop(service);
  const urls = Array.from({ length: 8 }, (_, index) => `https://shop.example/${index}`);
  const set = await Promise.all(urls.map((url) => shop.setWebhook(url)));
  expect(new Set(set.map(({ id }) => id)).size).toBe(8);
  const { rows } = await service.db.query(
    "SELECT version, replaced_at IS NULL AS in_force FROM webhook_configuration WHERE project_id = $1 ORDER BY version",
    [decodeId("prj_", shop.projectId)],
  );
  expect(rows.map(({ version: number }) => number)).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  expect(rows.filter(({ in_force }) => in_force)).toHaveLength(1);
});

test("setting again what is set makes no version, however often, and enables it", async () => {
  const shop = await openShop(service);
  const url = "https://shop.example/hook";
  const { id, secret } = await shop.setWebhook(url);
  await webhooks().disableWebhook({ projectId: shop.projectId, environment });
  const again = await Promise.all(Array.from({ length: 5 }, () => shop.setWebhook(url)));
  expect(again.map((set) => [set.id, set.secret])).toEqual(new Array(5).fill([id, secret]));
  expect(await inForce(shop)).toMatchObject({ id, disabledReason: "" });
  const { rows } = await service.db.query(
    "SELECT count(*)::int FROM webhook_configuration WHERE project_id = $1",
    [decodeId("prj_", shop.projectId)],
  );
  expect(rows).toEqual([{ count: 1 }]);
});

describe("410 Gone", () => {
  /** A webhook with its first request in progress, which `answerFirst` answers with 410. */
  async function withRequestInProgress() {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const first = Promise.withResolvers<() => void>();
    receiver.answer = (response) => first.resolve(() => response.writeHead(410).end());
    const { id: webhookId } = await shop.setWebhook(receiver.url);
    const id = await shop.event();
    return { shop, webhookId, id, answerFirst: await first.promise };
  }

  test("disables every version with that URL, with the reason, and stops pending events", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver(refuseForLong(503));
    const { id: oldVersion } = await shop.setWebhook(receiver.url);
    const waiting = await shop.event();
    await deliveryWhen(service, waiting, attempted(1));
    await shop.rotateSecret();
    receiver.answer = answerWith(410);
    const gone = await shop.event();
    const refused = await deliveryWhen(service, gone, isDisabled);
    expect(refused.attempts).toMatchObject([{ status: 410, error: "answered 410" }]);

    for (const webhook of [await inForce(shop), await version(oldVersion)]) {
      expect(webhook?.disabledReason).toBe("the endpoint answered 410 Gone");
      expect(webhook?.disabledAt).toBeDefined();
    }
    const held = await deliveryWhen(service, waiting, isDisabled);
    expect(held.nextAttemptAt).toBeUndefined();
    // It leaves the queue when it is due.
    await makeDue(service, waiting);
    await vi.waitUntil(async () => {
      const { rows } = await service.db.query(
        "SELECT state FROM webhook_delivery WHERE verification_id = $1",
        [decodeId("vrf_", waiting)],
      );
      return rows[0].state === "disabled";
    }, slowly);
    // New events are kept undelivered, and resends are refused while the webhook is disabled.
    const [kept] = await deliveriesOf(service, await shop.event());
    expect(kept).toMatchObject({ state: WebhookDeliveryState.DISABLED, attempts: [] });
    await expect(resend(gone)).rejects.toThrow("disabled");
    expect(receiver.received).toHaveLength(2);
  });

  test("is logged with the webhook's id and the reason, unlike a failure after disabling by hand, and so is a delivery that is given up", async () => {
    const idle = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });
    const lines: string[] = [];
    const settings = parseConfig({
      OPS_PORT: "0",
      DATABASE_URL: idle.databaseUrl,
      ROLES: "worker",
      WEBHOOK_ALLOW_PRIVATE: "true",
    });
    const log = pino({ base: null, timestamp: false }, { write: (line) => lines.push(line) });
    const worker = await startService(settings, log);
    onTestFinished(() => worker.close());
    const byHand = await openShop(idle);
    const refusal = Promise.withResolvers<() => void>();
    const refusing = await startReceiver((response) => refusal.resolve(() => response.writeHead(500).end()));
    await byHand.setWebhook(refusing.url);
    const underWay = await byHand.event();
    const refuse = await refusal.promise;
    await idle.client(WebhookService).disableWebhook({ projectId: byHand.projectId, environment });
    refuse();
    await deliveryWhen(idle, underWay, attempted(1));
    const shop = await openShop(idle);
    const { url } = await startReceiver(answerWith(410));
    const { id: webhookId } = await shop.setWebhook(url);
    await deliveryWhen(idle, await shop.event(), isDisabled);
    const logLines = () =>
      lines.map((line) => JSON.parse(line)).filter((line) => line.webhookId !== undefined);
    const reason = "the endpoint answered 410 Gone";
    await expect.poll(logLines).toEqual([{ level: 40, webhookId, reason, msg: "a webhook was disabled" }]);

    const failing = await openShop(idle);
    await failing.setWebhook((await startReceiver(refuseForLong(503))).url);
    const event = await failing.event();
    await deliveryWhen(idle, event, attempted(1));
    await idle.db.query(
      "UPDATE webhook_delivery SET failures = 9, next_attempt_at = now() WHERE verification_id = $1",
      [decodeId("vrf_", event)],
    );
    await deliveryWhen(idle, event, ({ state }) => state === WebhookDeliveryState.FAILED);
    const eventId = event.replace("vrf_", "evt_");
    const givenUp = () => lines.map((line) => JSON.parse(line)).filter((line) => line.eventId === eventId);
    await expect
      .poll(givenUp)
      .toMatchObject([{ level: 40, number: 2, status: 503, msg: "a webhook delivery was given up" }]);
  });

  test("setting the webhook again enables it, also for older verifications; held-back events wait for a resend", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver(answerWith(410));
    await shop.setWebhook(receiver.url);
    const early = await shop.create();
    const gone = await shop.event();
    await deliveryWhen(service, gone, isDisabled);
    receiver.answer = answerWith(204);
    await shop.setWebhook(receiver.url);
    expect((await inForce(shop)).disabledAt).toBeUndefined();
    await deliveryWhen(service, await shop.event(), delivered);
    await shop.cancel(early.id);
    await deliveryWhen(service, early.id, delivered);
    const [held] = await deliveriesOf(service, gone);
    expect(held?.state).toBe(WebhookDeliveryState.DISABLED);
    await resend(gone);
    await deliveryWhen(service, gone, delivered);
  });

  test("that arrives while the webhook is set again disables none of its versions", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const older = await shop.setWebhook(receiver.url, [WebhookEventType.VERIFICATION_VERIFIED]);
    await shop.setWebhook(receiver.url);
    const first = Promise.withResolvers<() => void>();
    receiver.answer = (response) =>
      first.resolve(() => response.writeHead(410, { "retry-after": "3600" }).end());
    const id = await shop.event();
    const answerFirst = await first.promise;
    await raceTo(service.db, "audit_entry", [
      () => shop.setWebhook(receiver.url),
      async () => {
        answerFirst();
        await deliveryWhen(service, id, attempted(1));
      },
    ]);
    const { state } = await deliveryWhen(service, id, attempted(1));
    expect(state).toBe(WebhookDeliveryState.PENDING);
    for (const webhook of [await inForce(shop), await version(older.id)]) {
      expect([webhook?.disabledReason, webhook?.disabledAt]).toEqual(["", undefined]);
    }
  });

  test("that arrives while the secret is rotated disables the new version, too", async () => {
    const { shop, webhookId: oldVersion, id, answerFirst } = await withRequestInProgress();
    await raceTo(service.db, "audit_entry", [
      () => shop.rotateSecret(),
      async () => {
        answerFirst();
        await deliveryWhen(service, id, isDisabled);
      },
    ]);
    for (const webhook of [await inForce(shop), await version(oldVersion)]) {
      expect(webhook?.disabledReason).toBe("the endpoint answered 410 Gone");
    }
  });

  test("that arrives while its event is resent disables it first: the resend is refused", async () => {
    const { webhookId: versionId, id, answerFirst } = await withRequestInProgress();
    const holder = await service.db.connect();
    let resent: Promise<{ code: string }>;
    try {
      await holder.query("BEGIN");
      await holder.query("SELECT FROM webhook_configuration WHERE id = $1 FOR UPDATE", [
        decodeId("whk_", versionId),
      ]);
      answerFirst();
      await untilWaiting(service.db, 1);
      resent = answerOf(() => resend(id));
      await untilWaiting(service.db, 2);
      await holder.query("COMMIT");
    } finally {
      holder.release(true);
    }
    expect(await resent).toMatchObject({ code: "webhook_disabled" });
    expect(await deliveryWhen(service, id, isDisabled)).toMatchObject({ resends: 0 });
  });

  test("to a request sent before its secret was rotated disables it nevertheless", async () => {
    const { shop, webhookId: oldVersion, id, answerFirst } = await withRequestInProgress();
    await shop.rotateSecret();
    await shop.rotateSecret();
    answerFirst();
    await deliveryWhen(service, id, isDisabled);
    for (const webhook of [await inForce(shop), await version(oldVersion)]) {
      expect(webhook?.disabledReason).toBe("the endpoint answered 410 Gone");
    }
  });

  test.for([
    { name: "before the webhook was set again", changes: ["set"] },
    { name: "before a rotation and setting it again", changes: ["rotate", "set"] },
    { name: "before setting it again and a rotation", changes: ["set", "rotate"] },
    {
      name: "before a change to another URL and back, with rotations",
      changes: ["rotate", "leave", "set", "rotate"],
    },
  ] as const)("to a request sent $name does not disable it", async ({ changes }) => {
    const shop = await openShop(service);
    const receiver = await startReceiver();
    const first = Promise.withResolvers<() => void>();
    receiver.answer = (response) =>
      first.resolve(() => response.writeHead(410, { "retry-after": "3600" }).end());
    await shop.setWebhook(receiver.url);
    const id = await shop.event();
    const answerFirst = await first.promise;
    for (const change of changes) {
      if (change === "rotate") await shop.rotateSecret();
      else await shop.setWebhook(change === "set" ? receiver.url : "https://shop.example/hook");
    }
    answerFirst();
    const { state } = await deliveryWhen(service, id, attempted(1));
    expect(state).toBe(WebhookDeliveryState.PENDING);
    expect((await inForce(shop)).disabledAt).toBeUndefined();
  });

  test("does not affect another project's webhook with the same URL", async () => {
    const receiver = await startReceiver(answerWith(410));
    const [one, other] = [await openShop(service), await openShop(service)];
    await one.setWebhook(receiver.url);
    // Twice, so that its last version cannot be mistaken for a rotation of the first project's webhook.
    for (const _ of ["first", "again"]) await other.setWebhook(receiver.url);
    await deliveryWhen(service, await one.event(), isDisabled);
    const { disabledAt, failingSince } = await inForce(other);
    expect([disabledAt, failingSince]).toEqual([undefined, undefined]);
  });

  test("does not affect the other environment's webhook with the same URL", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver(answerWith(410));
    const inTest = { projectId: shop.projectId, environment: Environment.TEST };
    await webhooks().setWebhook({ ...inTest, url: receiver.url });
    await shop.setWebhook(receiver.url);
    await deliveryWhen(service, await shop.event(), attempted(1));
    const [live, { webhook: other }] = [await inForce(shop), await webhooks().getWebhook(inTest)];
    expect([live.disabledReason, other?.disabledReason, other?.failingSince]).toEqual([
      "the endpoint answered 410 Gone",
      "",
      undefined,
    ]);
  });

  test("does not affect another URL set afterwards", async () => {
    const shop = await openShop(service);
    const [gone, receiver] = [await startReceiver(answerWith(410)), await startReceiver()];
    await shop.setWebhook(gone.url);
    await deliveryWhen(service, await shop.event(), isDisabled);
    await shop.setWebhook(receiver.url);
    await deliveryWhen(service, await shop.event(), delivered);
  });
});

describe("disabling after five days of only failures", () => {
  /** Makes attempts of an event until there are `attempts` of them, or it is no longer pending; returns its state. */
  async function tryOn(id: string, attempts: number): Promise<WebhookDeliveryState> {
    for (let made = 1; ; made++) {
      const { state } = await deliveryWhen(service, id, attempted(made));
      if (made === attempts || state !== WebhookDeliveryState.PENDING) return state;
      await makeDue(service, id);
    }
  }

  /** A webhook with an event that has failed three times, failing for `since`. */
  async function failing(since: string) {
    const shop = await openShop(service);
    const receiver = await startReceiver(refuseForLong(503));
    await shop.setWebhook(receiver.url);
    const id = await shop.event();
    await tryOn(id, 3);
    const { rowCount } = await service.db.query(
      "UPDATE webhook_configuration SET failing_since = failing_since - $2::interval WHERE project_id = $1 AND failing_since IS NOT NULL",
      [decodeId("prj_", shop.projectId), since],
    );
    expect(rowCount).toBe(1);
    return { shop, receiver, id };
  }

  test("happens with the fourth failure of an event, with the reason", async () => {
    const { shop, id } = await failing("5 days");
    await makeDue(service, id);
    const { state } = await deliveryWhen(service, id, attempted(4));
    expect(state).toBe(WebhookDeliveryState.DISABLED);
    expect((await inForce(shop)).disabledReason).toBe("every attempt failed for five days");
  });

  test("does not happen a minute earlier", async () => {
    const { shop, id } = await failing("4 days 23 hours 59 minutes");
    await makeDue(service, id);
    const { state } = await deliveryWhen(service, id, attempted(4));
    expect(state).toBe(WebhookDeliveryState.PENDING);
    const webhook = await inForce(shop);
    expect(webhook.disabledAt).toBeUndefined();
    expect(webhook.failingSince).toBeDefined();
  });

  test("is not postponed by rotating the secret", async () => {
    const { shop } = await failing("6 days");
    const { failingSince } = await inForce(shop);
    await shop.rotateSecret();
    expect((await inForce(shop)).failingSince).toEqual(failingSince);
    expect(await tryOn(await shop.event(), 4)).toBe(WebhookDeliveryState.DISABLED);
  });

  test("does not happen if the webhook was set again meanwhile", async () => {
    const { shop, receiver, id } = await failing("6 days");
    await shop.setWebhook(receiver.url);
    await makeDue(service, id);
    const { state } = await deliveryWhen(service, id, attempted(4));
    expect(state).toBe(WebhookDeliveryState.PENDING);
  });

  test("does not happen at the first three failures of a new event, however long the webhook has been failing", async () => {
    const { shop, receiver } = await failing("30 days");
    const id = await shop.event();
    expect(await tryOn(id, 3)).toBe(WebhookDeliveryState.PENDING);
    expect((await inForce(shop)).disabledAt).toBeUndefined();
    receiver.answer = answerWith(204);
    await makeDue(service, id);
    await deliveryWhen(service, id, delivered);
    expect((await inForce(shop)).failingSince).toBeUndefined();
  });

  test("starts again after one success", async () => {
    const { shop, receiver, id } = await failing("6 days");
    receiver.answer = answerWith(204);
    await makeDue(service, id);
    await deliveryWhen(service, id, delivered);
    expect((await inForce(shop)).failingSince).toBeUndefined();
    receiver.answer = refuseForLong(503);
    expect(await tryOn(await shop.event(), 4)).toBe(WebhookDeliveryState.PENDING);
    expect((await inForce(shop)).disabledAt).toBeUndefined();
  });

  test("counts from the first failure after a success, however old the failing event's first attempt is", async () => {
    const { shop, receiver, id } = await failing("1 day");
    await service.db.query(
      "UPDATE webhook_attempt SET started_at = started_at - interval '6 days' WHERE verification_id = $1",
      [uuidOf(id)],
    );
    receiver.answer = answerWith(204);
    await deliveryWhen(service, await shop.event(), delivered);
    receiver.answer = refuseForLong(503);
    await makeDue(service, id);
    const { state } = await deliveryWhen(service, id, attempted(4));
    expect(state).toBe(WebhookDeliveryState.PENDING);
    expect((await inForce(shop)).disabledAt).toBeUndefined();
  });
});

describe("disabling by an administrator", () => {
  test("does not affect the same URL in other projects and the other environment", async () => {
    const [shop, stranger] = [await openShop(service), await openShop(service)];
    const url = "https://shop.example/shared";
    const places = [shop, stranger].flatMap(({ projectId }) =>
      [Environment.LIVE, Environment.TEST].map((each) => ({ projectId, environment: each })),
    );
    for (const place of places) await webhooks().setWebhook({ ...place, url });
    await webhooks().disableWebhook({ projectId: shop.projectId, environment: Environment.LIVE });
    const reasons = [];
    for (const place of places) reasons.push((await webhooks().getWebhook(place)).webhook?.disabledReason);
    expect(reasons).toEqual(["disabled by hand", "", "", ""]);
  });

  test("stops pending events of every version with the URL at once, until the webhook is set again", async () => {
    const shop = await openShop(service);
    const receiver = await startReceiver(refuseForLong(503));
    await shop.setWebhook(receiver.url);
    const waiting = await shop.event();
    await deliveryWhen(service, waiting, attempted(1));
    await shop.rotateSecret();
    const { webhook } = await webhooks().disableWebhook({ projectId: shop.projectId, environment });
    expect(webhook).toMatchObject({ disabledReason: "disabled by hand", url: receiver.url });
    const again = await webhooks().disableWebhook({ projectId: shop.projectId, environment });
    expect(again.webhook?.disabledAt).toEqual(webhook?.disabledAt);
    const [held] = await deliveriesOf(service, waiting);
    expect(held).toMatchObject({ state: WebhookDeliveryState.DISABLED });
    expect(held?.nextAttemptAt).toBeUndefined();
    const [kept] = await deliveriesOf(service, await shop.event());
    expect(kept?.state).toBe(WebhookDeliveryState.DISABLED);
    await makeDue(service, waiting);
    await vi.waitUntil(async () => {
      const { rows } = await service.db.query(
        "SELECT count(*)::int FROM webhook_delivery WHERE state = 'pending' AND verification_id = $1",
        [decodeId("vrf_", waiting)],
      );
      return rows[0].count === 0;
    }, slowly);
    expect(receiver.received).toHaveLength(1);
    receiver.answer = answerWith(204);
    await shop.setWebhook(receiver.url);
    await deliveryWhen(service, await shop.event(), delivered);
  });

  test.for([
    { name: "during an attempt: its success counts, after its failure there is no retry", isSetAgain: false },
    {
      name: "and setting it again during an attempt: its success counts, after its failure the event waits for a resend",
      isSetAgain: true,
    },
  ])("$name", async ({ isSetAgain }) => {
    for (const [status, state] of [
      [204, WebhookDeliveryState.DELIVERED],
      [500, WebhookDeliveryState.DISABLED],
      [410, WebhookDeliveryState.DISABLED],
    ] as const) {
      const shop = await openShop(service);
      const answer = Promise.withResolvers<() => void>();
      const receiver = await startReceiver((response) =>
        answer.resolve(() => response.writeHead(status).end()),
      );
      await shop.setWebhook(receiver.url);
      const id = await shop.event();
      const end = await answer.promise;
      await webhooks().disableWebhook({ projectId: shop.projectId, environment });
      if (isSetAgain) await shop.setWebhook(receiver.url);
      end();
      const delivery = await deliveryWhen(service, id, attempted(1));
      expect([delivery.state, delivery.nextAttemptAt]).toEqual([state, undefined]);
      expect((await inForce(shop)).disabledReason).toBe(isSetAgain ? "" : "disabled by hand");
    }
  });

  test("works for a former URL of the project, and not for an unknown one", async () => {
    const shop = await openShop(service);
    const [before, after] = [await startReceiver(), await startReceiver()];
    const { id } = await shop.setWebhook(before.url);
    const early = await shop.create();
    await shop.setWebhook(after.url);
    const disable = (url: string) =>
      webhooks().disableWebhook({ projectId: shop.projectId, environment, url });
    expect((await disable(before.url)).webhook?.id).toBe(id);
    await shop.cancel(early.id);
    await deliveryWhen(service, early.id, isDisabled);
    await deliveryWhen(service, await shop.event(), delivered);
    await expect(disable("https://shop.example/never")).rejects.toThrow("never had a webhook");
    expect(before.received).toEqual([]);
  });

  test("is undone by setting the webhook again, but not in other projects with the same URL", async () => {
    const [shop, other] = [await openShop(service), await openShop(service)];
    for (const { projectId, setWebhook } of [shop, other]) {
      await setWebhook("https://shop.example/shared");
      await webhooks().disableWebhook({ projectId, environment });
    }
    await shop.setWebhook("https://shop.example/shared");
    expect((await inForce(shop)).disabledReason).toBe("");
    expect((await inForce(other)).disabledReason).toBe("disabled by hand");
  });

  test("is not undone by rotating the secret", async () => {
    const shop = await openShop(service);
    await shop.setWebhook("https://shop.example/hook");
    await webhooks().disableWebhook({ projectId: shop.projectId, environment });
    await shop.rotateSecret();
    expect((await inForce(shop)).disabledReason).toBe("disabled by hand");
  });
});
