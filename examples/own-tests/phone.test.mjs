import assert from "node:assert/strict";
import { createHmac, randomBytes } from "node:crypto";
import { test } from "node:test";
import { createPhoneproof, verifyWebhook } from "@phoneproof/client";

const phoneproof = createPhoneproof({
  baseUrl: process.env.PHONEPROOF_URL || "http://localhost:8080",
  apiKey: process.env.PHONEPROOF_API_KEY || "",
});

/** Sends the SMS as a person's phone would, and returns the outcome. Works with a test key only. */
async function playPhone({ verification_url, sms_text }, from) {
  const response = await fetch(`${verification_url}/messages`, {
    method: "POST",
    headers: { accept: "application/json" },
    body: new URLSearchParams({ from, carrier: "SKT", text: sms_text }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${answer.error.code}: ${answer.error.message}`);
  return answer.outcome;
}

/** The body and headers of an event, as phoneproof would send them now: for a receiver's test that needs no service. */
function signedEvent(type, data, secret) {
  const now = new Date();
  const body = JSON.stringify({ type, timestamp: now.toISOString(), data });
  const id = `evt_${randomBytes(13).toString("hex")}`;
  const timestamp = String(Math.floor(now.getTime() / 1000));
  const key = Buffer.from(secret.replace("whsec_", ""), "base64");
  const signature = createHmac("sha256", key).update(`${id}.${timestamp}.${body}`).digest("base64");
  const headers = {
    "content-type": "application/json",
    "webhook-id": id,
    "webhook-timestamp": timestamp,
    "webhook-signature": `v1,${signature}`,
  };
  return { body, headers };
}

test("a person who sends the text has the phone", async () => {
  const created = await phoneproof.create();
  assert.equal(await playPhone(created, "010-0000-0001"), "VERIFIED");
  const { status, phone, carrier } = await phoneproof.read(created.id);
  assert.deepEqual([status, phone, carrier], ["verified", "01000000001", "SKT"]);
});

test("somebody else's phone changes nothing", async () => {
  const created = await phoneproof.create({ mode: "match", expected_phone: "010-0000-0001" });
  assert.equal(await playPhone(created, "010-0000-0002"), "SENDER_MISMATCH");
  assert.equal((await phoneproof.read(created.id)).status, "pending");
});

test("the receiver takes a signed event, and no other", async () => {
  const secret = `whsec_${randomBytes(32).toString("base64")}`;
  const { body, headers } = signedEvent("verification.expired", { id: "vrf_1", phone: null }, secret);
  // In your tests: POST both to your receiver.
  assert.equal((await verifyWebhook(body, headers, secret)).type, "verification.expired");
  await assert.rejects(verifyWebhook(`${body} `, headers, secret), { code: "webhook_not_authentic" });
});
