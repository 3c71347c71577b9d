/** API keys of a project: how many there may be, and when they expire. */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { type ApiKey, ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { byTheClock, installClock, moveClock, stopClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { raceTo, untilWaiting } from "./barrier.ts";

const here = await startTestService({ ROLES: "api" });
const there = await here.startAnother();
await installClock(here.db);
const clocked = await here.startAnother({ DATABASE_URL: byTheClock(here.databaseUrl) });
const [keys, keysThere] = [here.client(ApiKeyService), there.client(ApiKeyService)];

const hourSeconds = 3_600n;

async function newProject(): Promise<string> {
  const { project } = await here.client(ProjectService).createProject({ name: "Shop" });
  return project?.id ?? "";
}

async function newKey(projectId: string, settings: object = {}): Promise<ApiKey> {
  const { apiKey } = await keys.createApiKey({ projectId, environment: Environment.LIVE, ...settings });
  if (!apiKey) throw new Error("there is no key");
  return apiKey;
}

/** Creates another key; resolves to the result code. */
async function another(
  projectId: string,
  environment: Environment = Environment.LIVE,
  client = keys,
): Promise<string> {
  return (await answerOf((options) => client.createApiKey({ projectId, environment }, options))).code;
}

async function rotating({ id }: ApiKey, seconds: bigint): Promise<string> {
  return (await answerOf((options) => keys.rotateApiKey({ apiKeyId: id, overlap: { seconds } }, options)))
    .code;
}

async function found({ id, projectId }: ApiKey): Promise<ApiKey | undefined> {
  return (await keys.listApiKeys({ projectId })).apiKeys.find((key) => key.id === id);
}

const expire = ({ id }: ApiKey) =>
  here.db.query("UPDATE api_key SET expires_at = now() WHERE id = $1", [decodeId("key_", id)]);

describe("the limit on active API keys", () => {
  test("is five per environment", async () => {
    const projectId = await newProject();
    for (let made = 0; made < 5; made++) await newKey(projectId);
    expect(await another(projectId)).toBe("too_many_api_keys");
    for (let made = 0; made < 5; made++) expect(await another(projectId, Environment.TEST)).toBe("ok");
    expect(await another(projectId, Environment.TEST)).toBe("too_many_api_keys");
    expect(await another(await newProject())).toBe("ok");
  });

  test("does not count revoked or expired keys", async () => {
    const projectId = await newProject();
    const [first, second] = [await newKey(projectId), await newKey(projectId)];
    for (let made = 2; made < 5; made++) await newKey(projectId);
    await keys.revokeApiKey({ apiKeyId: first.id });
    expect([await another(projectId), await another(projectId)]).toEqual(["ok", "too_many_api_keys"]);
    await expire(second);
    expect([await another(projectId), await another(projectId)]).toEqual(["ok", "too_many_api_keys"]);
  });

  test("cannot be exceeded by two processes that create a key at the same time", async () => {
    const projectId = await newProject();
    for (let made = 0; made < 4; made++) await newKey(projectId);
    const results = await raceTo(here.db, "api_key", [
      () => another(projectId, Environment.LIVE, keys),
      () => another(projectId, Environment.LIVE, keysThere),
    ]);
    expect(results).toEqual(["ok", "too_many_api_keys"]);
  });

  test("cannot be exceeded by creating a key while another process rotates one with an overlap", async () => {
    const projectId = await newProject();
    const first = await newKey(projectId);
    for (let made = 1; made < 4; made++) await newKey(projectId);
    const expected = await raceTo(here.db, "api_key", [
      () => another(projectId, Environment.LIVE, keysThere),
      () => rotating(first, hourSeconds),
    ]);
    expect(expected).toEqual(["ok", "too_many_api_keys"]);
    expect(await found(first)).toEqual(first);
  });

  test("with five keys, rotation works without an overlap; with one it is refused and the expiry is unchanged", async () => {
    const projectId = await newProject();
    const first = await newKey(projectId);
    for (let made = 1; made < 5; made++) await newKey(projectId);
    expect(await rotating(first, hourSeconds)).toBe("too_many_api_keys");
    expect(await found(first)).toEqual(first);
    expect(await rotating(first, 0n)).toBe("ok");
    expect(await another(projectId)).toBe("too_many_api_keys");
  });
});

describe("a change that waits while another administrator ends a key", () => {
  /** Ends the key while the call waits for the project's lock. */
  async function whileEnding({ id, projectId }: ApiKey, call: () => Promise<string>): Promise<string> {
    const holder = await here.db.connect();
    try {
      await holder.query("BEGIN");
      await holder.query("SELECT FROM project WHERE id = $1 FOR UPDATE", [decodeId("prj_", projectId)]);
      const answer = call();
      answer.catch(() => {});
      await untilWaiting(here.db, 1);
      await here.db.query(
        "UPDATE api_key SET expires_at = date_trunc('milliseconds', clock_timestamp()) WHERE id = $1",
        [decodeId("key_", id)],
      );
      await holder.query("COMMIT");
      return await answer;
    } finally {
      holder.release(true);
    }
  }

  test("does not rotate it a second time", async () => {
    const key = await newKey(await newProject());
    expect(await whileEnding(key, () => rotating(key, 0n))).toBe("not_found");
    expect((await keys.listApiKeys({ projectId: key.projectId })).apiKeys).toHaveLength(1);
  });

  test("does not count it", async () => {
    const key = await newKey(await newProject());
    for (let made = 1; made < 5; made++) await newKey(key.projectId);
    expect(await whileEnding(key, () => another(key.projectId))).toBe("ok");
  });

  test("makes a key that lasts for as long as was asked", async () => {
    const key = await newKey(await newProject());
    const { projectId, environment } = key;
    await whileEnding(key, async () => {
      const made = await keys.createApiKey({ projectId, environment, expiresIn: { seconds: 60n } });
      return made.apiKey?.id ?? "";
    });
    const { apiKeys } = await keys.listApiKeys({ projectId });
    const { createdAt, expiresAt } = apiKeys.at(-1) ?? {};
    if (createdAt === undefined || expiresAt === undefined) throw new Error("no key with an expiry was made");
    expect(timestampMs(expiresAt) - timestampMs(createdAt)).toBe(60_000);
  });
});

describe("an API key", () => {
  test("rotated without a given overlap expires after 72 hours", async () => {
    const { id } = await newKey(await newProject());
    const { apiKey, replaced } = await keys.rotateApiKey({ apiKeyId: id });
    if (!(apiKey?.createdAt && replaced?.expiresAt)) throw new Error("there is no key");
    expect(apiKey.expiresAt).toBeUndefined();
    const overlapMs = timestampMs(replaced.expiresAt) - timestampMs(apiKey.createdAt);
    expect(Math.round(overlapMs / 60_000)).toBe(72 * 60);
  });

  test.for([
    { environment: Environment.LIVE, prefix: "pp_live_" },
    { environment: Environment.TEST, prefix: "pp_test_" },
  ])("is replaced by one of the same environment when rotated: $prefix", async ({ environment, prefix }) => {
    const { id, projectId, name } = await newKey(await newProject(), { environment, name: "till" });
    const { apiKey, secret } = await keys.rotateApiKey({ apiKeyId: id });
    expect(secret.slice(0, prefix.length)).toBe(prefix);
    expect(apiKey).toMatchObject({ projectId, environment, name, ending: secret.slice(-4) });
  });

  test("keeps an earlier expiry when rotated, and its replacement has none", async () => {
    const old = await newKey(await newProject(), { expiresIn: { seconds: hourSeconds } });
    const { apiKey, replaced } = await keys.rotateApiKey({ apiKeyId: old.id });
    expect(replaced?.expiresAt).toEqual(old.expiresAt);
    expect([apiKey?.projectId, apiKey?.expiresAt]).toEqual([old.projectId, undefined]);
  });

  test("revoked again keeps the time of its first revocation", async () => {
    const { id } = await newKey(await newProject());
    const first = await keys.revokeApiKey({ apiKeyId: id });
    expect(first.apiKey?.revokedAt).toBeDefined();
    expect(await keys.revokeApiKey({ apiKeyId: id })).toEqual(first);
  });

  test("that was revoked or has expired cannot be rotated", async () => {
    const projectId = await newProject();
    const [revoked, expired] = [await newKey(projectId), await newKey(projectId)];
    await keys.revokeApiKey({ apiKeyId: revoked.id });
    await expire(expired);
    expect(await rotating(revoked, 0n)).toBe("not_found");
    expect(await rotating(expired, 0n)).toBe("not_found");
  });

  test.for([
    { seconds: 0n, expected: ["validation_failed", "expires_in"] },
    { seconds: 1n, expected: ["ok"] },
    { seconds: 3650n * 86_400n, expected: ["ok"] },
    { seconds: 3650n * 86_400n + 1n, expected: ["validation_failed", "expires_in"] },
  ])("created to expire in $seconds s: $expected", async ({ seconds, expected }) => {
    const request = { projectId: await newProject(), environment: Environment.LIVE, expiresIn: { seconds } };
    const { code, fields } = await answerOf((options) => keys.createApiKey(request, options));
    expect([code, ...fields]).toEqual(expected);
  });

  test.for([
    { seconds: -1n, expected: ["validation_failed", "overlap"] },
    { seconds: 30n * 86_400n, expected: ["ok"] },
    { seconds: 30n * 86_400n + 1n, expected: ["validation_failed", "overlap"] },
  ])("rotated with an overlap of $seconds s: $expected", async ({ seconds, expected }) => {
    const { id } = await newKey(await newProject());
    const request = { apiKeyId: id, overlap: { seconds } };
    const { code, fields } = await answerOf((options) => keys.rotateApiKey(request, options));
    expect([code, ...fields]).toEqual(expected);
  });
});

test.for([
  {
    name: "works, counts towards the limit and can be rotated until the last millisecond before its expiry",
    late: -1,
    expected: [404, "too_many_api_keys", "ok"],
  },
  {
    name: "is refused, not counted towards the limit and cannot be rotated from the instant of its expiry",
    late: 0,
    expected: [401, "ok", "not_found"],
  },
])("an API key $name", async ({ late, expected }) => {
  await stopClock(here.db, "2031-05-01T00:00:00Z");
  const projectId = await newProject();
  const byClock = clocked.client(ApiKeyService);
  const make = () =>
    byClock.createApiKey({ projectId, environment: Environment.LIVE, expiresIn: { seconds: hourSeconds } });
  const { apiKey, secret } = await make();
  for (let made = 1; made < 5; made++) await make();
  await moveClock(here.db, 3_600_000 + late);
  // A valid key gets 404, because there is no such verification.
  const { status } = await merchant(clocked.httpUrl, secret).read("nothing");
  const sixth = await another(projectId, Environment.LIVE, byClock);
  const rotated = await answerOf((options) =>
    byClock.rotateApiKey({ apiKeyId: apiKey?.id ?? "", overlap: { seconds: 0n } }, options),
  );
  expect([status, sixth, rotated.code]).toEqual(expected);
});
