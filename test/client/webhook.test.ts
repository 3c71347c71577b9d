/** verifyWebhook against what the service sends, and against the reference implementation. */

import { verifyWebhook } from "@phoneproof/client";
import { Webhook } from "standardwebhooks";
import { expect, test } from "vitest";
import { startTestService } from "../harness/service.ts";
import { startReceiver, untilReceived } from "../webhooks/receiver.ts";
import { openShop } from "../webhooks/shop.ts";
import { failureOf } from "./failure.ts";

const secret = `whsec_${Buffer.alloc(32, 1).toString("base64")}`;
const another = `whsec_${Buffer.alloc(32, 2).toString("base64")}`;
const body = JSON.stringify({ type: "verification.expired", timestamp: "", data: { state: "상태" } });

function signed(at = new Date(), by = secret) {
  return {
    "webhook-id": "evt_1",
    "webhook-timestamp": String(Math.floor(at.getTime() / 1000)),
    "webhook-signature": new Webhook(by).sign("evt_1", at, body),
  };
}

const secondsAgo = (seconds: number) => new Date(Date.now() - seconds * 1000);

test("what the service sends is accepted, also while the secret is changed", async () => {
  const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
  const shop = await openShop(service);
  const receiver = await startReceiver();
  const { secret: old } = await shop.setWebhook(receiver.url);
  const { id } = await shop.create();
  const rotated = await shop.rotateSecret();
  await shop.cancel(id);
  const [request] = await untilReceived(receiver);
  if (request === undefined) throw new Error("nothing was received");
  for (const known of [old, rotated, [another, old], [rotated, another]]) {
    const event = await verifyWebhook(request.body, request.headers, known);
    expect(event).toMatchObject({ type: "verification.cancelled", data: { id, status: "cancelled" } });
  }
  const refused = await failureOf(verifyWebhook(request.body, request.headers, another));
  expect(refused.code).toBe("webhook_not_authentic");
});

test("body and headers may come as any server has them", async () => {
  const event = JSON.parse(body);
  for (const given of [body, Buffer.from(body), new TextEncoder().encode(body)]) {
    expect(await verifyWebhook(given, signed(), secret)).toEqual(event);
    expect(await verifyWebhook(given, new Headers(signed()), [secret])).toEqual(event);
  }
});

test("of several signatures one is enough", async () => {
  const headers = signed();
  const several = `v1a,AAAA v1,%% v1, ${signed(new Date(), another)["webhook-signature"]} ${headers["webhook-signature"]}`;
  expect(await verifyWebhook(body, { ...headers, "webhook-signature": several }, secret)).toBeTruthy();
});

test.for<[what: string, body: string, headers: Record<string, string | undefined>]>([
  ["another body", `${body} `, signed()],
  ["another id", body, { ...signed(), "webhook-id": "evt_2" }],
  ["another time", body, { ...signed(), "webhook-timestamp": String(Math.floor(Date.now() / 1000) - 1) }],
  ["another secret", body, signed(new Date(), another)],
  [
    "another version",
    body,
    { ...signed(), "webhook-signature": signed()["webhook-signature"].replace("v1", "v2") },
  ],
  [
    "a signature cut short",
    body,
    { ...signed(), "webhook-signature": signed()["webhook-signature"].slice(0, -4) },
  ],
  ["no signature", body, { ...signed(), "webhook-signature": undefined }],
  ["no headers", body, {}],
  ["a time that is no number", body, { ...signed(), "webhook-timestamp": "Infinity" }],
  ["six minutes ago", body, signed(secondsAgo(360))],
  ["in six minutes", body, signed(secondsAgo(-360))],
])("it is refused: %s", async ([, given, headers]) => {
  expect((await failureOf(verifyWebhook(given, headers, secret))).code).toBe("webhook_not_authentic");
});

test("how old it may be can be said", async () => {
  const headers = signed(secondsAgo(360));
  expect(await verifyWebhook(body, headers, secret, { toleranceSeconds: 400 })).toBeTruthy();
  const strict = verifyWebhook(body, signed(secondsAgo(20)), secret, { toleranceSeconds: 10 });
  expect((await failureOf(strict)).code).toBe("webhook_not_authentic");
});

test.for([
  "",
  "whsec_",
  "whsec_not base64!",
])("a secret that is none is told, and not shown: '%s'", async (none) => {
  await expect(verifyWebhook(body, signed(), none)).rejects.toThrow(TypeError);
  await expect(verifyWebhook(body, signed(), none)).rejects.not.toThrow(/not base64!/);
});

test("without a secret nothing is accepted", async () => {
  expect((await failureOf(verifyWebhook(body, signed(), []))).code).toBe("webhook_not_authentic");
});
