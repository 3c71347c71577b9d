import { describe, expect, onTestFinished, test } from "vitest";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startTestService } from "../harness/service.ts";
import { untilWaiting } from "../service/barrier.ts";
import { merchant, newIdempotencyKey } from "./merchant.ts";

const service = await startTestService();

async function newShop(settings: Parameters<typeof service.createProject>[0] = {}) {
  const project = await service.createProject(settings);
  return { ...project, shop: merchant(service.httpUrl, project.testKey) };
}

async function countVerifications(clientReference: string): Promise<number> {
  const { rows } = await service.db.query<{ count: number }>(
    "SELECT count(*)::int AS count FROM verification WHERE client_reference = $1",
    [clientReference],
  );
  return rows[0]?.count ?? -1;
}

describe("a replay", () => {
  test("repeats the first answer byte for byte, with 200 and Idempotent-Replayed: true", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const first = await shop.create({ client_reference: "replay", state: "s" }, key);
    expect([first.status, first.headers.get("idempotent-replayed")]).toEqual([201, "false"]);
    for (let time = 0; time < 3; time++) {
      const again = await shop.create({ client_reference: "replay", state: "s" }, key);
      expect([again.status, again.headers.get("idempotent-replayed")]).toEqual([200, "true"]);
      expect(again.text).toBe(first.text);
      expect(again.headers.get("x-request-id")).not.toBe(first.headers.get("x-request-id"));
    }
    expect(await countVerifications("replay")).toBe(1);
  });

  test("still shows the pending state after the verification was verified", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const first = await shop.create({}, key);
    await service.sms({ to: first.body.destination, text: first.body.sms_text });
    const again = await shop.create({}, key);
    expect(again.text).toBe(first.text);
    expect((await shop.read(first.body.id)).body.status).toBe("verified");
  });

  test("is the same through another process", async () => {
    const { shop, testKey } = await newShop();
    const other = await service.startAnother();
    const key = newIdempotencyKey();
    const first = await shop.create({ state: "😀" }, key);
    const again = await merchant(other.httpUrl, testKey).create({ state: "😀" }, key);
    expect([again.status, again.text]).toEqual([200, first.text]);
  });

  test("is the same with a rotated API key", async () => {
    const { shop, projectId } = await newShop();
    const keys = service.client(ApiKeyService);
    const { apiKeys } = await keys.listApiKeys({ projectId });
    const key = newIdempotencyKey();
    const first = await shop.create({}, key);
    const old = apiKeys.find(({ environment }) => environment === 2);
    const { secret } = await keys.rotateApiKey({ apiKeyId: old?.id ?? "" });
    const again = await merchant(service.httpUrl, secret).create({}, key);
    expect([again.status, again.text]).toEqual([200, first.text]);
  });

  test("succeeds over REST and gRPC even if the project's origin and URL have changed; a new key is refused", async () => {
    const parentOrigin = "https://before.example";
    const returnUrl = "https://before.example/done";
    const { projectId, shop, testKey, liveKey } = await newShop({ parentOrigin, returnUrl });
    const body = { parent_origin: parentOrigin, return_url: returnUrl };
    const [key, liveOnly] = [newIdempotencyKey(), newIdempotencyKey()];
    const first = await shop.create(body, key);
    expect(first.status).toBe(201);
    expect((await merchant(service.httpUrl, liveKey).create(body, liveOnly)).status).toBe(201);
    await service.client(ProjectService).updateProject({
      projectId,
      parentOrigin: "https://after.example",
      returnUrl: "https://after.example/done",
    });
    const again = await shop.create(body, key);
    expect([again.status, again.text]).toEqual([200, first.text]);
    const overGrpc = await service
      .client(VerificationService, testKey)
      .createVerification({ idempotencyKey: key, parentOrigin, returnUrl });
    expect([overGrpc.idempotentReplayed, overGrpc.verification?.id]).toEqual([true, first.body.id]);
    // Fields are checked before idempotency, and this is no repeat.
    expect((await shop.create({ ...body, state: "changed" }, key)).status).toBe(422);
    expect((await shop.create({ state: "changed" }, key)).status).toBe(409);
    for (const [newKey, calls] of [
      [newIdempotencyKey(), "7"],
      [liveOnly, "8"],
    ]) {
      const { status, body: answer, headers } = await shop.create(body, newKey);
      const fields = answer.error.fields?.map(({ field }: { field: string }) => field);
      expect([status, fields, headers.get("x-usage-calls")]).toEqual([
        422,
        ["parent_origin", "return_url"],
        calls,
      ]);
    }
  });

  test("ends after 24 hours: the key creates another verification", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const first = await shop.create({ client_reference: "a day" }, key);
    await service.db.query(
      "UPDATE idempotency_record SET created_at = created_at - interval '24 hours' WHERE key = $1",
      [key],
    );
    const later = await shop.create({ client_reference: "another body" }, key);
    expect([later.status, later.headers.get("idempotent-replayed")]).toEqual([201, "false"]);
    expect(later.body.id).not.toBe(first.body.id);
  });
});

const original = {
  mode: "match",
  expected_phone: "010-1234-5678",
  client_reference: "ref",
  state: "s",
  parent_origin: null,
  return_url: null,
};

describe("the same request", () => {
  test.for([
    {
      name: "its members in another order",
      body: JSON.stringify(Object.fromEntries(Object.entries(original).reverse())),
    },
    { name: "other white space", body: JSON.stringify(original, null, "\t\n") },
    { name: "characters escaped", body: JSON.stringify(original).replace("ref", "\\u0072ef") },
    {
      name: "defaults left out",
      body: '{"mode":"match","expected_phone":"010-1234-5678","client_reference":"ref","state":"s"}',
    },
    {
      name: "a member twice, of which the last one counts",
      body: JSON.stringify(original).replace("{", '{"state":"other",'),
    },
  ])("with $name is a replay", async ({ body }) => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const first = await shop.create(original, key);
    expect(first.status).toBe(201);
    const again = await shop.create(body, key);
    expect([again.status, again.text]).toEqual([200, first.text]);
  });

  test("with every default spelled out is a replay of the empty request", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const first = await shop.create({}, key);
    const defaults = {
      mode: "discover",
      expected_phone: null,
      client_reference: "",
      state: "",
      parent_origin: null,
      return_url: null,
    };
    const again = await shop.create(defaults, key);
    expect([again.status, again.text]).toEqual([200, first.text]);
  });

  test("in the other environment or another project is a separate request", async () => {
    const { shop, liveKey } = await newShop();
    const { shop: stranger } = await newShop();
    const key = newIdempotencyKey();
    const ids = new Set<string>();
    for (const each of [shop, merchant(service.httpUrl, liveKey), stranger]) {
      const { status, body } = await each.create({}, key);
      expect(status).toBe(201);
      ids.add(body.id);
    }
    expect(ids.size).toBe(3);
  });

  test("in the other environment or another project is a separate request even in one batch", async () => {
    const [own, other] = [await newShop(), await newShop()];
    // The first creation is held up, and the others gather behind it.
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE idempotency_record");
    const first = other.shop.create();
    await untilWaiting(service.db, 1);
    const key = newIdempotencyKey();
    const live = merchant(service.httpUrl, own.liveKey);
    const gathered = [own.shop, live, other.shop].map((shop) => shop.create({}, key));
    // A call sent after them, with the API key that was looked up last, has been answered: all of them have gathered.
    await live.read("vrf_none");
    await lock.query("ROLLBACK");
    const answers = await Promise.all([first, ...gathered]);
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201]);
    expect(answers.slice(1).map(({ body }) => body.destination)).toEqual([
      own.testNumber,
      own.liveNumber,
      other.testNumber,
    ]);
  });

  test.for([
    { name: "another idempotency key", first: newIdempotencyKey(), other: newIdempotencyKey() },
    { name: "an idempotency key that differs only in case", first: "attempt-a", other: "attempt-A" },
  ])("with $name creates another verification", async ({ first: firstKey, other }) => {
    const { shop } = await newShop();
    const first = await shop.create({ state: "s" }, firstKey);
    const second = await shop.create({ state: "s" }, other);
    expect(second.status).toBe(201);
    expect(second.body.id).not.toBe(first.body.id);
    expect(second.body.verification_url).not.toBe(first.body.verification_url);
    expect(second.body.sms_text).not.toBe(first.body.sms_text);
  });
});

describe("the same key with another body is 409 idempotency_conflict:", () => {
  const settings = { parentOrigin: "https://shop.example.com", returnUrl: "https://shop.example.com/done" };
  test.for([
    {
      name: "another mode",
      first: { expected_phone: "01012345678" },
      second: { mode: "match", expected_phone: "01012345678" },
    },
    {
      name: "another spelling of the phone",
      first: { mode: "match", expected_phone: "010-1234-5678" },
      second: { mode: "match", expected_phone: "01012345678" },
    },
    { name: "an ignored phone", first: {}, second: { expected_phone: "01012345678" } },
    { name: "an ignored phone that is empty", first: {}, second: { expected_phone: "" } },
    { name: "another reference", first: { client_reference: "a" }, second: { client_reference: "A" } },
    { name: "another state", first: {}, second: { state: " " } },
    { name: "an origin", first: {}, second: { parent_origin: settings.parentOrigin } },
    { name: "a return URL", first: { return_url: settings.returnUrl }, second: {} },
    {
      name: "a return URL beside an origin",
      first: { parent_origin: settings.parentOrigin, return_url: settings.returnUrl },
      second: { parent_origin: settings.parentOrigin },
    },
    {
      name: "two values swapped",
      first: { client_reference: "a", state: "b" },
      second: { client_reference: "b", state: "a" },
    },
  ])("$name", async ({ first, second }) => {
    const { shop } = await newShop(settings);
    const key = newIdempotencyKey();
    const created = await shop.create(first, key);
    expect(created.status).toBe(201);
    const conflict = await shop.create(second, key);
    expect(conflict).toMatchObject({ status: 409, body: { error: { code: "idempotency_conflict" } } });
    expect(conflict.headers.get("idempotent-replayed")).toBeNull();
    expect((await shop.create(first, key)).text).toBe(created.text);
  });
});

test("a refused request does not use up its idempotency key", async () => {
  const { shop } = await newShop();
  const key = newIdempotencyKey();
  expect((await shop.create({ state: 7 }, key)).status).toBe(422);
  expect((await shop.create("{", key)).status).toBe(400);
  expect((await shop.create({ state: "7" }, key)).status).toBe(201);
});

describe("fifty requests at once", () => {
  test("with one key and one body make one verification: one 201, forty-nine replays of it", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const answers = await Promise.all(
      Array.from({ length: 50 }, () => shop.create({ client_reference: "race" }, key)),
    );
    const kinds = answers
      .map(({ status, headers }) => `${status} ${headers.get("idempotent-replayed")}`)
      .sort();
    expect(kinds).toEqual([...Array(49).fill("200 true"), "201 false"]);
    expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
    expect(await countVerifications("race")).toBe(1);
  });

  test("over three processes make one verification as well", async () => {
    const { testKey } = await newShop();
    const nodes = [service, await service.startAnother(), await service.startAnother()];
    const shops = nodes.map(({ httpUrl }) => merchant(httpUrl, testKey));
    const key = newIdempotencyKey();
    const answers = await Promise.all(
      Array.from({ length: 51 }, (_, index) =>
        shops[index % 3]?.create({ client_reference: "race of nodes" }, key),
      ),
    );
    expect(answers.map((answer) => answer?.status).sort()).toEqual([...Array(50).fill(200), 201]);
    expect(new Set(answers.map((answer) => answer?.text)).size).toBe(1);
    expect(await countVerifications("race of nodes")).toBe(1);
  });

  test("with one key and fifty bodies make one verification, and forty-nine conflicts", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        shop.create({ client_reference: "race of bodies", state: `${index}` }, key),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([201, ...Array(49).fill(409)]);
    expect(await countVerifications("race of bodies")).toBe(1);
  });

  test("with one key and two bodies make one verification: the winner's body replays, the other conflicts", async () => {
    const { shop } = await newShop();
    const key = newIdempotencyKey();
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        shop.create({ client_reference: "race of two", state: `${index % 2}` }, key),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([
      ...Array(24).fill(200),
      201,
      ...Array(25).fill(409),
    ]);
    expect(await countVerifications("race of two")).toBe(1);
  });
});
