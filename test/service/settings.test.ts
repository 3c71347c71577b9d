/** What settings promise: docs/settings.md. */

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { startTestService } from "../harness/service.ts";

test.for([
  "GRPC_ALLOW_PLAINTEXT",
  "DATABASE_PREPARED_STATEMENTS",
  "WEBHOOK_ALLOW_PRIVATE",
  "OTEL_SDK_DISABLED",
])("%s is true or false, and nothing else", (name) => {
  for (const value of ["true", "false"]) parseConfig({ [name]: value });
  for (const value of ["maybe", "1", "yes"]) {
    expect(() => parseConfig({ [name]: value })).toThrow(`${name} must be true or false`);
  }
});

/** Every kind of character that a Bearer credential may have. */
const adminToken = "Az09._~+/-==";

test("an admin token of any character that may be set is taken, with the embedded database beside its own", async () => {
  const dataDir = await mkdtemp(path.join(tmpdir(), "phoneproof-settings-"));
  const service = await startTestService({
    DATABASE_URL: "",
    DATA_DIR: dataDir,
    PHONEPROOF_ADMIN_TOKEN: adminToken,
  });
  onTestFinished(async () => {
    await service.close();
    await rm(dataDir, { recursive: true });
  });
  const kept = (await readFile(path.join(dataDir, "admin-token"), "utf8")).trim();
  expect(kept).not.toBe(adminToken);
  for (const token of [adminToken, kept]) {
    expect((await service.client(ProjectService, token).listProjects({})).projects).toHaveLength(1);
  }
});

test.for([
  "secret!1",
  "two words",
  "=",
  "a=b",
  "비밀",
])("an admin token that no header carries ends the start: %s", (token) => {
  expect(() => parseConfig({ PHONEPROOF_ADMIN_TOKEN: token })).toThrow(/^PHONEPROOF_ADMIN_TOKEN must be of /);
});
