import { afterAll, beforeEach, describe, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import type { Caller } from "../../src/core/project.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { stopTimeoutMs } from "../../src/jobs/job.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createLastUses, type LastUses } from "../../src/storage/last-used.ts";
import { answerOf as printedBy, run, towards } from "../cli/command.ts";
import { merchant } from "../gateway/merchant.ts";
import { retryWhileUnavailable, startTestService, type TestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { answerOf } from "../rpc/grpc-answer.ts";

const service = await startTestService({ ROLES: "api" });
const { projectId, liveKey, testKey } = await service.createProject();
const keys = service.client(ApiKeyService);

/** Milliseconds since the epoch, by the database's clock. */
async function now(): Promise<number> {
  const { rows } = await service.db.query("SELECT floor(extract(epoch FROM now()) * 1000)::float8 AS now");
  return rows[0].now;
}

async function keyWith(secret: string) {
  const { apiKeys } = await retryWhileUnavailable(() => keys.listApiKeys({ projectId }));
  return apiKeys.find(({ ending }) => secret.endsWith(ending));
}

async function tokenWith(secret: string) {
  const tokens = service.client(ServiceTokenService);
  const { serviceTokens } = await retryWhileUnavailable(() => tokens.listServiceTokens({}));
  return serviceTokens.find(({ ending }) => secret.endsWith(ending));
}

const statusFrom = async (process: TestService, key: string) =>
  (await merchant(process.httpUrl, key).read("nothing")).status;

const millisecondsOf = (time: { seconds: bigint; nanos: number } | undefined) =>
  time === undefined ? undefined : Number(time.seconds) * 1000 + time.nanos / 1e6;

describe("a stopping process stores", () => {
  // It waits for the database, but for no longer than this, during which a machine may stand still.
  beforeEach(() => suppressTimers(stopTimeoutMs));

  test("the last use of a key over REST, and none for an unused key", async () => {
    const process = await service.startAnother();
    const before = await now();
    await expect.poll(() => statusFrom(process, liveKey)).toBe(404);
    expect((await keyWith(liveKey))?.lastUsedAt).toBeUndefined();
    await process.close();
    const usedAt = millisecondsOf((await keyWith(liveKey))?.lastUsedAt);
    expect(usedAt).toBeGreaterThanOrEqual(before - 1);
    expect(usedAt).toBeLessThanOrEqual(await now());
    expect((await keyWith(testKey))?.lastUsedAt).toBeUndefined();
  });

  test("the last use of a token over gRPC, even if the call was refused for its scope", async () => {
    const token = await service.createToken({ scope: "read" });
    const process = await service.startAnother();
    const client = process.client(VerificationService, token);
    await expect
      .poll(() => answerOf((options) => client.createVerification({}, options)))
      .toMatchObject({ code: "insufficient_scope" });
    await process.close();
    expect((await tokenWith(token))?.lastUsedAt).toBeDefined();
  });

  test("the last use of a suspended project's key, though its calls are refused", async () => {
    const suspended = await service.createProject();
    const projects = service.client(ProjectService);
    await retryWhileUnavailable(() => projects.suspendProject({ projectId: suspended.projectId }));
    const process = await service.startAnother();
    await expect.poll(() => statusFrom(process, suspended.liveKey)).toBe(403);
    await process.close();
    const { apiKeys } = await retryWhileUnavailable(() =>
      keys.listApiKeys({ projectId: suspended.projectId }),
    );
    const used = apiKeys.filter(({ lastUsedAt }) => lastUsedAt !== undefined);
    expect(used.map(({ environment }) => environment)).toEqual([Environment.LIVE]);
  });

  test("no use of a revoked key", async () => {
    const { apiKey, secret } = await retryWhileUnavailable(() =>
      keys.createApiKey({ projectId, environment: Environment.TEST }),
    );
    await retryWhileUnavailable(() => keys.revokeApiKey({ apiKeyId: apiKey?.id ?? "" }));
    const process = await service.startAnother();
    await expect.poll(() => statusFrom(process, secret)).toBe(401);
    await process.close();
    expect((await keyWith(secret))?.lastUsedAt).toBeUndefined();
  });
});

describe("a noted use", async () => {
  const database = openDatabase({ connectionString: service.databaseUrl }, { poolSize: 2, onError() {} });
  afterAll(() => database.close());

  const minutes = 60_000;

  const apiKeyId = decodeId("key_", (await keyWith(testKey))?.id ?? "") ?? "";
  const caller = { kind: "merchant", apiKeyId, environment: "test" } as Caller;

  /** Notes a use of the test key `ago` milliseconds ago. */
  function noteUse(lastUses: LastUses, ago = 0): void {
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now() - ago);
    lastUses.note(caller);
    clock.mockRestore();
  }

  const written = async () => millisecondsOf((await keyWith(testKey))?.lastUsedAt);

  test("is written once, and does not overwrite a later use by another process", async () => {
    const [one, other] = [createLastUses(database), createLastUses(database)];
    noteUse(one, 10 * minutes);
    noteUse(other);
    await other.write();
    const later = await written();
    expect(later).toBeDefined();
    await one.write();
    expect(await written()).toBe(later);
    await service.db.query("UPDATE api_key SET last_used_at = NULL");
    await Promise.all([one.write(), other.write()]);
    expect(await written()).toBeUndefined();
  });

  test.for([
    { name: "is kept, with its time, while the database cannot store it", first: 10, meanwhile: undefined },
    { name: "is not replaced by an earlier one that could not be stored", first: 20, meanwhile: 10 },
  ])("$name", async ({ first, meanwhile }) => {
    const lastUses = createLastUses(database);
    noteUse(lastUses, first * minutes);
    await service.db.query("ALTER TABLE api_key RENAME COLUMN last_used_at TO out_of_reach");
    const failing = lastUses.write();
    if (meanwhile !== undefined) noteUse(lastUses, meanwhile * minutes);
    await expect(failing).rejects.toThrow();
    await service.db.query("ALTER TABLE api_key RENAME COLUMN out_of_reach TO last_used_at");
    await service.db.query("UPDATE api_key SET last_used_at = NULL");
    const before = await now();
    await lastUses.write();
    expect(((await written()) ?? 0) - before).toBeGreaterThanOrEqual(-11 * minutes);
    expect(((await written()) ?? 0) - before).toBeLessThan(-9 * minutes);
  });
});

test("the command shows the last use in JSON and in tables", async () => {
  const environment = towards(service);
  const token = await service.createToken({ scope: "admin" });
  await service.db.query("UPDATE api_key SET last_used_at = '2026-11-21T06:41:00.123Z'");
  await service.db.query("UPDATE service_token SET last_used_at = '2026-11-21T06:41:00.123Z'");
  const { keys: listed } = await printedBy(["key", "list", "--project", projectId], environment);
  expect(listed[0]).toMatchObject({ last_used_at: "2026-11-21T06:41:00.123Z" });
  const { tokens } = await printedBy(["token", "list"], environment);
  expect(tokens.at(-1)).toMatchObject({ ending: token.slice(-4), last_used_at: "2026-11-21T06:41:00.123Z" });
  for (const list of [
    ["key", "list", "--project", projectId],
    ["token", "list"],
  ]) {
    const { stdout } = await run(list, { ...environment, COLUMNS: "200" });
    expect(stdout).toMatch(/LAST USED/);
    expect(stdout).toContain("2026-11-21 15:41:00");
  }
});
