/**
 * A change of a key, a token or a project on one process takes effect on another: at once if its notice arrives, and
 * within a second if the notice is lost.
 */
import { once } from "node:events";
import http from "node:http";
import { setTimeout } from "node:timers/promises";
import { Code } from "@connectrpc/connect";
import pg from "pg";
import { afterEach, describe, expect, test, vi } from "vitest";
import { digestCredential, newCredential } from "../../src/core/credential.ts";
import { decodeId, encodeId } from "../../src/core/ids.ts";
import { type ApiKey, ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { exchange } from "../gateway/raw-http.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { connectRaw } from "../rpc/raw-grpc.ts";
import { untilWaiting } from "./barrier.ts";

const here = await startTestService({ ROLES: "api" });
const there = await here.startAnother({ TRUSTED_PROXIES: "127.0.0.1" });
const keys = here.client(ApiKeyService);
const projects = here.client(ProjectService);
const tokens = here.client(ServiceTokenService);

/** The status of a call with the key on the other process. Reading a verification that does not exist costs least. */
async function keyThere(secret: string): Promise<number> {
  return (await merchant(there.httpUrl, secret).read("nothing")).status;
}

async function tokenThere(secret: string): Promise<string> {
  const client = there.client(VerificationService, secret);
  return (await answerOf((options) => client.getVerification({ verificationId: "nothing" }, options))).code;
}

/** The status if the key is valid: there is no such verification. */
const good = 404;

interface Made {
  readonly projectId: string;
  readonly key: ApiKey;
  readonly secret: string;
}

/** A key that the other process has just looked up. */
async function knownKey(): Promise<Made> {
  const { project } = await projects.createProject({ name: "Shop" });
  const projectId = project?.id ?? "";
  const { apiKey, secret } = await keys.createApiKey({ projectId, environment: Environment.TEST });
  if (!apiKey) throw new Error("there is no key");
  expect(await keyThere(secret)).toBe(good);
  return { projectId, key: apiKey, secret };
}

async function knownToken(): Promise<{ id: string; secret: string }> {
  const { serviceToken, secret } = await tokens.createServiceToken({ scope: 1 });
  expect(await tokenThere(secret)).toBe("verification_not_found");
  return { id: serviceToken?.id ?? "", secret };
}

/** Stops the clock by which the service ages its cached credentials, so that they never expire. */
function believeForEver(): void {
  const now = performance.now();
  vi.spyOn(performance, "now").mockReturnValue(now);
}

/** From now on no connection for notices of this process passes one on. */
function ignoreNotices(): void {
  const { emit } = pg.Client.prototype;
  vi.spyOn(pg.Client.prototype, "emit").mockImplementation(function (this: pg.Client, event, ...given) {
    return event === "notification" || emit.call(this, event, ...given);
  });
}

afterEach(() => {
  vi.restoreAllMocks();
});

/** Calls until the answer is the wanted one, however long the notice takes. */
async function untilNoticed<T>(call: () => Promise<T>, wanted: T): Promise<void> {
  await vi.waitUntil(async () => (await call()) === wanted, { timeout: 45_000, interval: 20 });
}

/** Calls until the answer is the wanted one. Calls that begin a second or more after the change must get it. */
async function effective<T>(call: () => Promise<T>, wanted: T): Promise<void> {
  const changedAt = Date.now();
  for (;;) {
    const calledAt = Date.now();
    const answer = await call();
    if (answer === wanted) return;
    if (calledAt - changedAt > 1_000) expect(answer).toBe(wanted);
    // An address may fail 600 times a minute.
    await setTimeout(20);
  }
}

const uuidOf = (id: string) => decodeId("key_", id) ?? decodeId("tok_", id) ?? decodeId("prj_", id);

/** Terminates the connections that receive notices, and commits a change before they are back. */
async function whileDeaf(change: string, id: string): Promise<void> {
  const client = await here.db.connect();
  await client.query("BEGIN");
  await client.query(change, [uuidOf(id)]);
  // One of them may be reconnecting: wait until both are there.
  await vi.waitUntil(
    async () => {
      const { rowCount } = await here.db.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'phoneproof-notices'",
      );
      return (rowCount ?? 0) >= 2;
    },
    { timeout: 45_000, interval: 20 },
  );
  await client.query("COMMIT");
  client.release();
}

test("unknown tokens are looked up together and do not take the connections that other calls need", async () => {
  const { secret } = await knownKey();
  const lock = await here.db.connect();
  await lock.query("BEGIN; LOCK TABLE service_token");
  const invented = Array.from({ length: 40 }, () => keyThere(newCredential("svc")));
  try {
    await untilWaiting(here.db, 1);
    const shop = merchant(there.httpUrl, secret);
    for (let call = 0; call < 5; call++) expect((await shop.read("nothing")).status).toBe(good);
  } finally {
    await lock.query("ROLLBACK");
    lock.release();
  }
  expect(new Set(await Promise.all(invented))).toEqual(new Set([401]));
});

test("keys that are looked up together are each matched to their own project, and unknown ones to none", async () => {
  const shops = await Promise.all(Array.from({ length: 40 }, () => here.createProject()));
  const strangers = Array.from({ length: 40 }, () => newCredential("test"));
  const callers = shops.flatMap(({ testKey, liveKey }, index) => [testKey, strangers[index] ?? "", liveKey]);
  // The first lookup waits for this lock; the others gather behind it.
  const lock = await here.db.connect();
  await lock.query("BEGIN; LOCK TABLE api_key");
  const created = callers.map((key) => merchant(there.httpUrl, key).create());
  await untilWaiting(here.db, 1);
  await lock.query("ROLLBACK");
  lock.release();
  const answers = await Promise.all(created);

  for (const [index, { testNumber, liveNumber }] of shops.entries()) {
    const [test, stranger, live] = answers.slice(3 * index);
    expect(test).toMatchObject({ status: 201, body: { environment: "test", destination: testNumber } });
    expect(live).toMatchObject({ status: 201, body: { environment: "live", destination: liveNumber } });
    expect(stranger).toMatchObject({ status: 401, body: { error: { code: "invalid_api_key" } } });
  }
});

test("a key whose look-up failed works with the next call after the database can answer again", async () => {
  const { testKey } = await here.createProject();
  believeForEver();
  await here.db.query("ALTER TABLE api_key RENAME TO api_key_away");
  try {
    expect(await keyThere(testKey)).toBe(503);
  } finally {
    await here.db.query("ALTER TABLE api_key_away RENAME TO api_key");
  }
  expect(await keyThere(testKey)).toBe(good);
});

describe("by the notice alone, with a cache on the other process that never expires:", () => {
  test("a new key works, even if its project was already cached", async () => {
    const { projectId } = await knownKey();
    believeForEver();
    const { secret } = await keys.createApiKey({ projectId, environment: Environment.LIVE });
    expect(await keyThere(secret)).toBe(good);
  });

  test("a rotated key without overlap is refused, and its replacement works", async () => {
    const { key, secret } = await knownKey();
    believeForEver();
    const rotated = await keys.rotateApiKey({ apiKeyId: key.id, overlap: { seconds: 0n } });
    await untilNoticed(() => keyThere(secret), 401);
    expect(await keyThere(rotated.secret)).toBe(good);
  });

  test("a rotated key with overlap still works beside its replacement", async () => {
    const { key, secret } = await knownKey();
    believeForEver();
    const rotated = await keys.rotateApiKey({ apiKeyId: key.id, overlap: { seconds: 3600n } });
    expect([await keyThere(secret), await keyThere(rotated.secret)]).toEqual([good, good]);
  });

  test("a revoked key is refused", async () => {
    const { key, secret } = await knownKey();
    believeForEver();
    await keys.revokeApiKey({ apiKeyId: key.id });
    await untilNoticed(() => keyThere(secret), 401);
  });

  test("a revoked token is refused", async () => {
    const { id, secret } = await knownToken();
    believeForEver();
    await tokens.revokeServiceToken({ serviceTokenId: id });
    await untilNoticed(() => tokenThere(secret), "invalid_api_key");
  });

  test("the key of a suspended project gets 403, and works again when the project is resumed", async () => {
    const { projectId, secret } = await knownKey();
    believeForEver();
    await projects.suspendProject({ projectId });
    await untilNoticed(() => keyThere(secret), 403);
    await projects.resumeProject({ projectId });
    await untilNoticed(() => keyThere(secret), good);
  });

  test("a key revoked while the connection for notices was cut is refused once it is back", async () => {
    const { key, secret } = await knownKey();
    believeForEver();
    await whileDeaf("UPDATE api_key SET revoked_at = now() WHERE id = $1", key.id);
    await untilNoticed(() => keyThere(secret), 401);
  });
});

describe("by the next call on the process that made the change, with a cache that never expires and no notice:", () => {
  const onTheSame = async (secret: string) => (await merchant(here.httpUrl, secret).create()).status;

  test("a revoked key is refused", async () => {
    const { testKey } = await here.createProject();
    expect(await onTheSame(testKey)).toBe(201);
    believeForEver();
    ignoreNotices();
    const { rows } = await here.db.query("SELECT id FROM api_key WHERE digest = decode($1, 'hex')", [
      digestCredential(testKey),
    ]);
    await keys.revokeApiKey({ apiKeyId: encodeId("key_", rows[0].id) });
    expect(await onTheSame(testKey)).toBe(401);
  });

  test("the key of a suspended project gets 403, and works again when the project is resumed", async () => {
    const { projectId, testKey } = await here.createProject();
    expect(await onTheSame(testKey)).toBe(201);
    believeForEver();
    ignoreNotices();
    await projects.suspendProject({ projectId });
    expect(await onTheSame(testKey)).toBe(403);
    await projects.resumeProject({ projectId });
    expect(await onTheSame(testKey)).toBe(201);
  });

  test("a token creates no verification for a suspended project, and does when it is resumed", async () => {
    const { projectId } = await here.createProject();
    const client = here.client(VerificationService, await here.createToken({ scope: "write" }));
    const created = () =>
      answerOf((options) =>
        client.createVerification(
          { projectId, environment: Environment.TEST, idempotencyKey: newIdempotencyKey() },
          options,
        ),
      );
    expect(await created()).toMatchObject({ code: "ok" });
    believeForEver();
    ignoreNotices();
    await projects.suspendProject({ projectId });
    expect(await created()).toMatchObject({ code: "project_suspended" });
    await projects.resumeProject({ projectId });
    expect(await created()).toMatchObject({ code: "ok" });
  });

  test("a removed number is given to no new verification", async () => {
    const { testKey, testNumber } = await here.createProject();
    expect(await onTheSame(testKey)).toBe(201);
    believeForEver();
    ignoreNotices();
    await here.client(DestinationNumberService).removeDestinationNumber({ number: testNumber });
    expect(await onTheSame(testKey)).toBe(503);
  });
});

describe("by the next call, with numbers that never expire from the cache and no notice:", () => {
  const onTheSame = async (secret: string) => (await merchant(here.httpUrl, secret).create()).status;

  test.for(["of its own", "that all share"])("a project without a number is given one %s", async (whose) => {
    const { projectId, testKey, testNumber } = await here.createProject();
    await here.client(DestinationNumberService).removeDestinationNumber({ number: testNumber });
    believeForEver();
    ignoreNotices();
    expect(await onTheSame(testKey)).toBe(503);
    await here.db.query(
      "INSERT INTO destination_number (id, number, environment, project_id) VALUES (gen_random_uuid(), '0203000001', 'test', $1)",
      [whose === "of its own" ? uuidOf(projectId) : null],
    );
    expect(await onTheSame(testKey)).toBe(201);
    await here.db.query("DELETE FROM destination_number WHERE number = '0203000001'");
  });

  /** The number of rows of each answer about the numbers from now on: the first row is their revision. */
  function rowsOfNumbers(): number[] {
    const rows: number[] = [];
    type Answered = (this: { readonly name?: string }, tag: { readonly text: string }, ...given: []) => void;
    const queries = pg.Query.prototype as unknown as { handleCommandComplete: Answered };
    const { handleCommandComplete } = queries;
    const counted: Answered = function (tag, ...given) {
      if (this.name === "numbers") rows.push(Number(tag.text.replace("SELECT ", "")));
      handleCommandComplete.call(this, tag, ...given);
    };
    vi.spyOn(queries, "handleCommandComplete").mockImplementation(counted);
    return rows;
  }

  test("all numbers are loaded once one has changed, not each second", async () => {
    const [shop, other] = [await here.createProject(), await here.createProject()];
    expect(await onTheSame(shop.testKey)).toBe(201);
    expect(await onTheSame(other.testKey)).toBe(201);
    believeForEver();
    ignoreNotices();
    const rows = rowsOfNumbers();
    async function aSecondLater(): Promise<void> {
      vi.mocked(performance.now).mockReturnValue(performance.now() + 1_000);
      expect(await onTheSame(shop.testKey)).toBe(201);
    }
    await aSecondLater();
    await aSecondLater();
    expect(rows).toEqual([1, 1]);
    await here.db.query("UPDATE destination_number SET removed_at = now() WHERE number = $1", [
      other.testNumber,
    ]);
    await aSecondLater();
    expect(await onTheSame(other.testKey)).toBe(503);
    await aSecondLater();
    const { rowCount } = await here.db.query("SELECT DISTINCT number FROM destination_number");
    expect(rows).toEqual([1, 1, 1 + (rowCount ?? 0), 1]);
  });
});

describe("within a second, without a notice:", () => {
  test("a revoked key works until the second is over, because its lookup is cached", async () => {
    const { key, secret } = await knownKey();
    const revoke = (at: "now()" | "NULL") =>
      here.db.query(`UPDATE api_key SET revoked_at = ${at} WHERE id = $1`, [uuidOf(key.id)]);
    believeForEver();
    const aSecondPasses = () => vi.mocked(performance.now).mockReturnValue(performance.now() + 1_000);
    // The notice of the key's own creation may still arrive in between: then try again.
    await vi.waitUntil(
      async () => {
        await revoke("NULL");
        aSecondPasses();
        expect(await keyThere(secret)).toBe(good);
        await revoke("now()");
        return (await keyThere(secret)) === good;
      },
      { timeout: 45_000, interval: 5 },
    );
    aSecondPasses();
    expect(await keyThere(secret)).toBe(401);
  });

  test("a key that was unknown before works", async () => {
    const { key } = await knownKey();
    const secret = newCredential("test");
    expect(await keyThere(secret)).toBe(401);
    await here.db.query(
      `INSERT INTO api_key (id, project_id, environment, name, digest, ending)
       SELECT gen_random_uuid(), project_id, environment, '', decode($2, 'hex'), 'xxxx' FROM api_key WHERE id = $1`,
      [uuidOf(key.id), digestCredential(secret)],
    );
    await effective(() => keyThere(secret), good);
  });

  test.for([
    { name: "a revoked key is refused", change: "UPDATE api_key SET revoked_at = now() WHERE id = $1" },
    {
      name: "an expired key is refused, for which there is never a notice",
      change: "UPDATE api_key SET expires_at = now() WHERE id = $1",
    },
  ])("$name", async ({ change }) => {
    const { key, secret } = await knownKey();
    await here.db.query(change, [uuidOf(key.id)]);
    await effective(() => keyThere(secret), 401);
  });

  test("a revoked token is refused", async () => {
    const { id, secret } = await knownToken();
    await here.db.query("UPDATE service_token SET revoked_at = now() WHERE id = $1", [uuidOf(id)]);
    await effective(() => tokenThere(secret), "invalid_api_key");
  });

  test("the key of a suspended project gets 403, and works again when the project is resumed", async () => {
    const { projectId, secret } = await knownKey();
    await here.db.query("UPDATE project SET suspended_at = now() WHERE id = $1", [uuidOf(projectId)]);
    await effective(() => keyThere(secret), 403);
    await here.db.query("UPDATE project SET suspended_at = NULL WHERE id = $1", [uuidOf(projectId)]);
    await effective(() => keyThere(secret), good);
  });

  test("a key revoked while the connection for notices was cut is refused", async () => {
    const { key, secret } = await knownKey();
    await whileDeaf("UPDATE api_key SET revoked_at = now() WHERE id = $1", key.id);
    await effective(() => keyThere(secret), 401);
  });
});

describe("a call whose body arrives long after its headers is authenticated again", () => {
  /**
   * Sends half of a call's body, after the process has admitted it. Returns a function that sends the rest and
   * resolves to the status.
   */
  async function halfCalled(path: string, secret: string, address = "192.0.2.1") {
    const { hostname, port } = new URL(there.httpUrl);
    const request = http.request({
      hostname,
      port,
      path,
      method: "POST",
      headers: {
        authorization: `Bearer ${secret}`,
        "x-forwarded-for": address,
        "idempotency-key": "half-a-body",
        "content-type": "application/json",
        "content-length": 2,
        expect: "100-continue",
      },
    });
    const answered = once(request, "response") as Promise<[http.IncomingMessage]>;
    request.flushHeaders();
    await once(request, "continue");
    request.write("{");
    return async (rest = "}") => {
      request.end(rest);
      const [response] = await answered;
      response.resume();
      return response.statusCode;
    };
  }

  const calls = [
    { call: "a creation", path: "/v1/verifications", otherwise: 503 },
    { call: "a cancel", path: "/v1/verifications/nothing/cancel", otherwise: 404 },
  ];

  test.for(calls)("$call with a key revoked meanwhile is refused", async ({ path, otherwise }) => {
    const { key, secret } = await knownKey();
    const [finish, another] = [await halfCalled(path, secret), await halfCalled(path, secret)];
    // The project has no number, or there is no such verification: the key was accepted.
    expect(await another()).toBe(otherwise);
    await keys.revokeApiKey({ apiKeyId: key.id });
    await untilNoticed(() => keyThere(secret), 401);
    expect(await finish()).toBe(401);
  });

  test.for(calls)("$call with a key that expires meanwhile, without a notice, is refused", async ({
    path,
  }) => {
    const { key, secret } = await knownKey();
    const finish = await halfCalled(path, secret);
    await here.db.query("UPDATE api_key SET expires_at = now() WHERE id = $1", [uuidOf(key.id)]);
    vi.spyOn(performance, "now").mockReturnValue(performance.now() + 1_000);
    expect(await finish()).toBe(401);
  });

  test("a creation with a key revoked meanwhile is not charged, whatever its body turns out to be", async () => {
    const { projectId, key, secret } = await knownKey();
    const finish = await halfCalled("/v1/verifications", secret);
    const finishOverGrpc = await halfCalledOverGrpc(secret);
    await keys.revokeApiKey({ apiKeyId: key.id });
    await untilNoticed(() => keyThere(secret), 401);
    const usage = () => here.db.query("SELECT calls FROM usage WHERE project_id = $1", [uuidOf(projectId)]);
    const before = await usage();
    expect(await finish("x")).toBe(401);
    expect(await finishOverGrpc()).toMatchObject({
      code: Code.Unauthenticated,
      detail: { code: "invalid_api_key" },
    });
    expect((await usage()).rows).toEqual(before.rows);
  });

  const unreadable = "0aff";
  const readable = "0a00";

  /** The same over gRPC, with the prefix of a message. The message then turns out to be unreadable, unless one is given. */
  async function halfCalledOverGrpc(secret: string, message = unreadable, address = "192.0.2.1") {
    const connection = connectRaw(there.grpcAddress);
    const call = connection.call("phoneproof.v1.VerificationService/GetVerification", {
      authorization: `Bearer ${secret}`,
      "x-forwarded-for": address,
    });
    call.write(Buffer.of(0, 0, 0, 0, 2));
    // This is answered once the process has read everything sent before it on this connection.
    await connection.call("nothing/There").status;
    return async () => {
      call.write(Buffer.from(message, "hex"));
      call.halfClose();
      const status = await call.status;
      connection.destroy();
      return status;
    };
  }

  test("a call with a key revoked meanwhile is no failed authentication of its address", async () => {
    const { key, secret } = await knownKey();
    const address = "192.0.2.2";
    const finish = await halfCalled("/v1/verifications", secret, address);
    const finishesOverGrpc = [
      await halfCalledOverGrpc(secret, readable, address),
      await halfCalledOverGrpc(secret, unreadable, address),
    ];
    // From here on another failed authentication of this address would be answered with rate_limited.
    const guess = `GET /v1/verifications/nothing HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: ${address}\r\n\r\n`;
    const guesses = await exchange(there.httpUrl, guess.repeat(601), { answers: 601 });
    expect([guesses[599]?.status, guesses[600]?.status]).toEqual([401, 429]);
    await keys.revokeApiKey({ apiKeyId: key.id });
    await untilNoticed(() => keyThere(secret), 401);
    expect(await finish()).toBe(401);
    for (const finishOverGrpc of finishesOverGrpc) {
      expect(await finishOverGrpc()).toMatchObject({ detail: { code: "invalid_api_key" } });
    }
  });

  test.for(calls)("$call for a project suspended meanwhile is refused", async ({ path }) => {
    const { projectId, secret } = await knownKey();
    const finish = await halfCalled(path, secret);
    await projects.suspendProject({ projectId });
    await untilNoticed(() => keyThere(secret), 403);
    expect(await finish()).toBe(403);
  });
});

test("a key works on another process, too, and at most a second beyond its expiry", async () => {
  const { projectId } = await knownKey();
  // If the key expired before it could be tried, try one that lasts longer.
  for (let [seconds, answer] = [1n, 0]; answer !== good; seconds *= 3n) {
    const { apiKey, secret } = await keys.createApiKey({
      projectId,
      environment: Environment.TEST,
      expiresIn: { seconds },
    });
    const isOver = async () => {
      const { rows } = await here.db.query("SELECT expires_at <= now() AS over FROM api_key WHERE id = $1", [
        uuidOf(apiKey?.id ?? ""),
      ]);
      return rows[0].over;
    };
    answer = await keyThere(secret);
    if (answer !== good) expect([answer, await isOver()]).toEqual([401, true]);
    await vi.waitUntil(isOver, { timeout: 45_000, interval: 5 });
    await effective(() => keyThere(secret), 401);
  }
});
