/** verifyWebhook with requests of the service and of the reference implementation. */

import { verifyWebhook, type WebhookHeaders } from "@phoneproof/client";
import { Webhook } from "standardwebhooks";
import { expect, onTestFinished, test, vi } from "vitest";
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

function withLastByteChanged(signature: string): string {
  const bytes = Buffer.from(signature.slice("v1,".length), "base64");
  bytes[31] = (bytes[31] ?? 0) ^ 1;
  return `v1,${bytes.toString("base64")}`;
}

const secondsAgo = (seconds: number) => new Date(Date.now() - seconds * 1000);

test("requests of the service are accepted, also while the secret is rotated", async () => {
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

test("body and headers are accepted in every form that servers use", async () => {
  const event = JSON.parse(body);
  const bytes = new TextEncoder().encode(body);
  // A view of part of a larger buffer, as Node's buffers are.
  const amid = new Uint8Array([0, ...bytes, 0]).subarray(1, -1);
  const named = (change: (name: string) => string) =>
    Object.fromEntries(Object.entries(signed()).map(([name, value]) => [change(name), value]));
  const headers = [
    signed(),
    new Headers(signed()),
    named((name) => name.toUpperCase()),
    named((name) => name.replace(/\b\w/g, (letter) => letter.toUpperCase())),
    Object.fromEntries(Object.entries(signed()).map(([name, value]) => [name, [value]])),
  ];
  for (const given of [body, Buffer.from(body), bytes, amid, bytes.buffer]) {
    for (const known of headers) expect(await verifyWebhook(given, known, [secret])).toEqual(event);
  }
});

test("one valid signature of several is enough", async () => {
  const headers = signed();
  const several = `v1a,AAAA v1,%% v1, ${signed(new Date(), another)["webhook-signature"]} ${headers["webhook-signature"]}`;
  expect(await verifyWebhook(body, { ...headers, "webhook-signature": several }, secret)).toBeTruthy();
});

test("however many signatures a request has, it is signed once for each secret", async () => {
  const sign = vi.spyOn(crypto.subtle, "sign");
  const verify = vi.spyOn(crypto.subtle, "verify");
  onTestFinished(() => {
    for (const spy of [sign, verify]) spy.mockRestore();
  });
  const forged = Array.from(
    { length: 300 },
    (_, index) => `v1,${Buffer.alloc(32, index).toString("base64")}`,
  );
  const headers = { ...signed(), "webhook-signature": `${forged.join(" ")}${" v1,".repeat(300)}` };
  const refused = await failureOf(verifyWebhook(body, headers, [secret, another]));
  expect(refused.code).toBe("webhook_not_authentic");
  expect(sign.mock.calls.length + verify.mock.calls.length).toBe(2);
});

test.for<[what: string, body: string, headers: Record<string, string | undefined>]>([
  ["another body", `${body} `, signed()],
  ["another id", body, { ...signed(), "webhook-id": "evt_2" }],
  [
    "another timestamp",
    body,
    { ...signed(), "webhook-timestamp": String(Math.floor(Date.now() / 1000) - 10) },
  ],
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
  [
    "a signature with something behind it",
    body,
    { ...signed(), "webhook-signature": `${signed()["webhook-signature"]}=` },
  ],
  [
    "a signature whose last byte differs",
    body,
    { ...signed(), "webhook-signature": withLastByteChanged(signed()["webhook-signature"]) },
  ],
  ["no signature", body, { ...signed(), "webhook-signature": undefined }],
  ["no headers", body, {}],
  ["a timestamp that is not a number", body, { ...signed(), "webhook-timestamp": "Infinity" }],
  ["a timestamp six minutes old", body, signed(secondsAgo(360))],
  ["a timestamp an hour ahead", body, signed(secondsAgo(-3_600))],
])("a request is refused: %s", async ([, given, headers]) => {
  expect((await failureOf(verifyWebhook(given, headers, secret))).code).toBe("webhook_not_authentic");
});

test.for([290, -290])("by default a request may be five minutes off: %i s old", async (seconds) => {
  expect(await verifyWebhook(body, signed(secondsAgo(seconds)), secret)).toBeTruthy();
});

test("a secret of 24 bytes, the fewest that Standard Webhooks allows, is accepted", async () => {
  const short = `whsec_${Buffer.alloc(24, 3).toString("base64")}`;
  expect(await verifyWebhook(body, signed(new Date(), short), short)).toBeTruthy();
});

test("toleranceSeconds sets how old a request may be", async () => {
  const headers = signed(secondsAgo(360));
  expect(await verifyWebhook(body, headers, secret, { toleranceSeconds: 400 })).toBeTruthy();
  const strict = verifyWebhook(body, signed(secondsAgo(20)), secret, { toleranceSeconds: 10 });
  expect((await failureOf(strict)).code).toBe("webhook_not_authentic");
});

test.for<[what: string, secrets: unknown, shown?: string]>([
  ["an empty list", []],
  ["undefined", undefined],
  ["an empty secret", ""],
  ["an empty secret beside a good one", [secret, ""]],
  ["only the prefix", "whsec_"],
  ["invalid base64", "whsec_not base64!", "not base64!"],
  ["a truncated secret", secret.slice(0, 20), secret.slice(6, 20)],
  ["a secret of 23 bytes", Buffer.alloc(23, 3).toString("base64")],
  ["an API key", "pp_live_0123456789abcdefghijABCDEFGHIJ01234567", "0123456789abcdefghij"],
])("invalid secrets are TypeErrors that do not contain the secret: %s", async ([, secrets, shown]) => {
  const failing = verifyWebhook(body, signed(), secrets as string);
  await expect(failing).rejects.toThrow(TypeError);
  await expect(failing).rejects.toThrow("secret");
  if (shown !== undefined) await expect(failing).rejects.not.toThrow(shown);
});

test.for<[what: string, body: unknown]>([
  ["an object", JSON.parse(body)],
  ["an array", [body]],
  ["undefined", undefined],
  ["null", null],
  ["a number", 1],
  ["a Uint16Array", new Uint16Array(2)],
])("a body that is not the raw body is a TypeError: %s", async ([, given]) => {
  const failing = verifyWebhook(given as string, signed(), secret);
  await expect(failing).rejects.toThrow(TypeError);
  await expect(failing).rejects.toThrow("not parsed");
});

test("a stranger's request without a body, which frameworks give as undefined, is refused", async () => {
  for (const [given, headers] of [
    [undefined, {}],
    [{}, { host: "shop.example" }],
    [undefined, signed(secondsAgo(360))],
  ] as const) {
    const refused = await failureOf(verifyWebhook(given as unknown as string, headers, secret));
    expect(refused.code).toBe("webhook_not_authentic");
  }
});

test.for([Number.NaN, 0, -1, "5"])("a toleranceSeconds of %s is an error", async (toleranceSeconds) => {
  const failing = verifyWebhook(body, signed(), secret, { toleranceSeconds: toleranceSeconds as number });
  await expect(failing).rejects.toThrow("toleranceSeconds");
});

test.for<[kind: string, headers: unknown]>([
  ["Undefined", undefined],
  ["Null", null],
  ["String", "webhook-id: evt_1"],
  ["Array", Object.entries(signed())],
  // As those of Next.js 15, if not awaited: 401 would blame the sender.
  ["Promise", Promise.resolve(new Headers(signed()))],
])("headers of kind %s are a TypeError", async ([kind, headers]) => {
  const failing = verifyWebhook(body, headers as WebhookHeaders, secret);
  await expect(failing).rejects.toThrow(new TypeError(`headers must be an object, not ${kind}`));
});
