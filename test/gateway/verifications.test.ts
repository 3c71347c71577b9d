import { describe, expect, test } from "vitest";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService } from "../harness/service.ts";
import { type Answer, merchant } from "./merchant.ts";

const service = await startTestService({ PUBLIC_BASE_URL: "https://verify.example.com" });

const id = /^vrf_[0-7][0-9a-hjkmnp-tv-z]{25}$/;
const timestamp = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

/** Every header of every answer to a call that was counted. */
const countedHeaders = {
  "cache-control": "no-store",
  connection: "keep-alive",
  "content-length": expect.stringMatching(/^\d+$/),
  "content-type": "application/json; charset=utf-8",
  date: expect.any(String),
  // Longer than the two minutes after which Caddy closes unused connections: a request that is on its way when the service closes
  // one gets 502 from the proxy.
  "keep-alive": "timeout=130",
  "ratelimit-policy": expect.any(String),
  ratelimit: expect.any(String),
  "x-request-id": expect.stringMatching(/^req_[0-7][0-9a-hjkmnp-tv-z]{25}$/),
  "x-usage-calls": expect.stringMatching(/^\d+$/),
  "x-usage-limit": "unlimited",
};

const creationFields = [
  "id",
  "status",
  "environment",
  "mode",
  "phone",
  "carrier",
  "client_reference",
  "state",
  "created_at",
  "expires_at",
  "verified_at",
  "server_time",
  "verification_url",
  "destination",
  "sms_text",
];
const resultFields = creationFields.slice(0, 12);

function headersOf({ headers }: Answer): Record<string, string> {
  return Object.fromEntries(headers);
}

/** Makes a verification overdue in its row, by enough that differences between clocks do not matter. */
async function expire(verification: string): Promise<void> {
  const moved = await moveExpiry(service.db, {
    expiresAt: "expires_at - interval '1 day'",
    where: "client_reference = $1",
    values: [verification],
  });
  expect(moved).toBe(1);
}

describe("a creation", () => {
  test.for([
    "live",
    "test",
  ] as const)("with a %s key has every field of the contract and no other", async (environment) => {
    const { liveKey, testKey, liveNumber, testNumber } = await service.createProject({
      validitySeconds: 640,
    });
    const shop = merchant(service.httpUrl, environment === "live" ? liveKey : testKey);
    const sent = { client_reference: "order 7", state: "r4nd0m" };
    const { status, headers, text, body } = await shop.create(sent);

    expect(status).toBe(201);
    expect(headersOf({ status, headers, text, body })).toEqual({
      ...countedHeaders,
      "idempotent-replayed": "false",
    });
    expect(Object.keys(body)).toEqual(creationFields);
    expect(body).toEqual({
      ...sent,
      id: expect.stringMatching(id),
      status: "pending",
      environment,
      mode: "discover",
      phone: null,
      carrier: null,
      created_at: expect.stringMatching(timestamp),
      expires_at: expect.stringMatching(timestamp),
      verified_at: null,
      server_time: expect.stringMatching(timestamp),
      verification_url: expect.stringMatching(/^https:\/\/verify\.example\.com\/v\/[\w-]{22}$/),
      destination: environment === "live" ? liveNumber : testNumber,
      sms_text: expect.stringMatching(/^\[Shop\] .*\d{8}/),
    });
    expect(Date.parse(body.expires_at) - Date.parse(body.created_at)).toBe(640_000);
    expect(body.verification_url).not.toContain(body.id);
  });

  test("without any field uses the defaults", async () => {
    const { testKey } = await service.createProject();
    const { body } = await merchant(service.httpUrl, testKey).create({});
    expect(body).toMatchObject({ mode: "discover", client_reference: "", state: "" });
    expect(Date.parse(body.expires_at) - Date.parse(body.created_at)).toBe(600_000);
  });

  test("with every field returns the merchant's texts character by character", async () => {
    const { testKey } = await service.createProject({
      parentOrigin: "https://shop.example.com",
      returnUrl: "https://shop.example.com/done?a=1",
    });
    const sent = {
      mode: "match",
      expected_phone: "+82 10-1234-5678",
      client_reference: `"\\/<>&\u2028 한글 😀 \u0001\u007f`,
      state: "\t\n'; DROP TABLE verification; --",
      parent_origin: "https://shop.example.com",
      return_url: "https://shop.example.com/done?a=1",
    };
    const { status, body } = await merchant(service.httpUrl, testKey).create(sent);
    expect(status).toBe(201);
    expect(body).toMatchObject({ mode: "match", client_reference: sent.client_reference, state: sent.state });
    expect(body.phone).toBeNull();
  });

  test("has a code in the project's format", async () => {
    const { testKey } = await service.createProject({ codeFormat: 2, codeLength: 10 });
    const { body } = await merchant(service.httpUrl, testKey).create();
    expect(body.sms_text).toMatch(/\b[2-9A-HJKMNP-TV-Z]{10}\b/);
  });
});

describe("a read", () => {
  test("of a pending verification has every field of the contract and no other", async () => {
    const { liveKey } = await service.createProject();
    const shop = merchant(service.httpUrl, liveKey);
    const created = (await shop.create({ client_reference: "c", state: "s" })).body;
    const answer = await shop.read(created.id);

    expect(answer.status).toBe(200);
    expect(headersOf(answer)).toEqual(countedHeaders);
    expect(Object.keys(answer.body)).toEqual(resultFields);
    const { verification_url: _, destination: __, sms_text: ___, ...same } = created;
    expect(answer.body).toEqual({ ...same, server_time: expect.stringMatching(timestamp) });
    expect(Date.parse(answer.body.server_time)).toBeGreaterThanOrEqual(Date.parse(created.server_time));
  });

  test.for([
    { reported: "SKT", carrier: "SKT" },
    { reported: "KTF", carrier: "KT" },
    { reported: "LG U+", carrier: "LGU+" },
    { reported: "Vodafone", carrier: null },
  ])("of a verified one shows phone, carrier ($reported) and time", async ({ reported, carrier }) => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id, destination, sms_text, created_at } = (await shop.create()).body;
    const [receipt] = await service.sms({
      to: destination,
      from: "+82-10-9876-5432",
      text: sms_text,
      carrier: reported,
    });
    expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId: id });

    const { body } = await shop.read(id);
    expect(Object.keys(body)).toEqual(resultFields);
    expect(body).toMatchObject({ status: "verified", phone: "01098765432", carrier });
    expect(body.verified_at).toMatch(timestamp);
    expect(Date.parse(body.verified_at ?? "")).toBeGreaterThanOrEqual(Date.parse(created_at));
  });

  test("of an overdue one shows expired", async () => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id } = (await shop.create({ client_reference: "read-expired" })).body;
    await expire("read-expired");
    expect((await shop.read(id)).body).toMatchObject({ status: "expired", phone: null, verified_at: null });
  });

  test("ignores a query and accepts a percent-encoded id", async () => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id } = (await shop.create()).body;
    expect((await shop.read(`${id}?fields=all`)).body.id).toBe(id);
    expect((await shop.read(`%76rf_${id.slice(4)}`)).body.id).toBe(id);
  });
});

describe("a cancel", () => {
  test("of a pending verification shows cancelled, and so does a second one", async () => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id } = (await shop.create()).body;
    const first = await shop.cancel(id);
    expect(first.status).toBe(200);
    expect(headersOf(first)).toEqual(countedHeaders);
    expect(Object.keys(first.body)).toEqual(resultFields);
    expect(first.body).toMatchObject({
      id,
      status: "cancelled",
      phone: null,
      carrier: null,
      verified_at: null,
    });

    const second = await shop.cancel(id);
    expect(second.status).toBe(200);
    expect(second.body).toEqual({ ...first.body, server_time: expect.stringMatching(timestamp) });
    expect((await shop.read(id)).body.status).toBe("cancelled");
  });

  test("of a verified one is refused and changes nothing", async () => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id, destination, sms_text } = (await shop.create()).body;
    await service.sms({ to: destination, text: sms_text });
    const answer = await shop.cancel(id);
    expect(answer).toMatchObject({ status: 409, body: { error: { code: "verification_not_cancellable" } } });
    expect((await shop.read(id)).body.status).toBe("verified");
  });

  test("of an expired one is refused and changes nothing", async () => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id } = (await shop.create({ client_reference: "cancel-expired" })).body;
    await expire("cancel-expired");
    const answer = await shop.cancel(id);
    expect(answer).toMatchObject({ status: 409, body: { error: { code: "verification_not_cancellable" } } });
    expect((await shop.read(id)).body.status).toBe("expired");
  });

  test.for<{ name: string; init: RequestInit }>([
    { name: "JSON", init: { body: "{}", headers: { "content-type": "application/json" } } },
    { name: "broken JSON", init: { body: '{"a', headers: { "content-type": "application/json" } } },
    { name: "a form", init: { body: new URLSearchParams({ a: "b" }) } },
    { name: "bytes without a content type", init: { body: new Uint8Array([0, 255, 254]) } },
    { name: "an invalid content type", init: { body: "x", headers: { "content-type": ";;;" } } },
    { name: "64 KiB", init: { body: "x".repeat(65_536) } },
    { name: "a content type without a body", init: { headers: { "content-type": "application/json" } } },
  ])("ignores a body: $name", async ({ init }) => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const { id } = (await shop.create()).body;
    expect(await shop.cancel(id, init)).toMatchObject({ status: 200, body: { status: "cancelled" } });
  });
});

describe("a verification of another project or environment", () => {
  test.for(["read", "cancel"] as const)("is for a %s like one that never existed", async (operation) => {
    const { testKey, liveKey } = await service.createProject();
    const stranger = merchant(service.httpUrl, (await service.createProject()).testKey);
    const owner = merchant(service.httpUrl, testKey);
    const { id } = (await owner.create()).body;
    const never = "vrf_01m7yrddhzfyja3hhg9my162t1";

    for (const shop of [stranger, merchant(service.httpUrl, liveKey)]) {
      const hidden = await shop[operation](id);
      const absent = await shop[operation](never);
      expect(hidden.status).toBe(404);
      expect(hidden.body.error).toEqual({ ...absent.body.error, request_id: hidden.body.error.request_id });
      expect([...hidden.headers.keys()]).toEqual([...absent.headers.keys()]);
    }
    expect((await owner.read(id)).body.status).toBe("pending");
  });
});
