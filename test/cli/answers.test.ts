/** What the commands answer with `--json`. Those about verifications are in verification-answers.test.ts. */

import { buffer } from "node:stream/consumers";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { beforeAll, describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ListApiKeysResponseSchema } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ListDestinationNumbersResponseSchema } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import {
  ListUsageRequestSchema,
  ListUsageResponseSchema,
} from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { answerOf, linesOf, run, runProcess, towards } from "./command.ts";
import { startGrpcPeer, startRefusingPeer } from "./grpc-peer.ts";
import { id, time } from "./shapes.ts";

let service: TestService;
let shop: TestProject;
let environment: Record<string, string>;

beforeAll(async () => {
  service = await startTestService();
  shop = await service.createProject({ name: "Shop" });
  environment = towards(service);
});

const answer = (...args: string[]) => answerOf(args, environment);

/** The lines of the human-readable output in a terminal of `columns` columns. */
const seen = (columns: number, ...args: string[]) => linesOf(columns, args, environment);

test("all projects, numbers, keys and tokens are listed, however many there are", async () => {
  // A database of its own: other tests look at these lists.
  const other = await startTestService();
  const { projectId } = await other.createProject();
  await other.db.query(
    `INSERT INTO project (id, name, code_format, code_length, validity_seconds, rate_limit_per_minute)
     SELECT uuidv7(), n::text, 'numeric', 8, 600, 6000 FROM generate_series(1, 1100) n`,
  );
  await other.db.query(
    `INSERT INTO destination_number (id, number, environment, project_id)
     SELECT uuidv7(), '02000' || lpad(n::text, 5, '0'), 'test', $1 FROM generate_series(10001, 11100) n`,
    [decodeId("prj_", projectId)],
  );
  const { projects } = await answerOf(["project", "list"], towards(other));
  expect(projects.map(({ name }: { name: string }) => name)).toEqual([
    "Shop",
    ...Array.from({ length: 1_100 }, (_, index) => String(index + 1)),
  ]);
  const filters = ["--project", projectId, "--environment", "test"];
  const { numbers } = await answerOf(["number", "list", ...filters], towards(other));
  const listed = numbers.slice(1).map(({ number }: { number: string }) => Number(number));
  expect(listed).toEqual(Array.from({ length: 1_100 }, (_, index) => 200_010_001 + index));

  const columns = `uuidv7(n * interval '1 millisecond'), n::text, sha256(n::text::bytea), 'abcd', now()`;
  await other.db.query(
    `INSERT INTO api_key (id, name, digest, ending, revoked_at, project_id, environment)
     SELECT ${columns}, $1, 'test' FROM generate_series(1, 1100) n`,
    [decodeId("prj_", projectId)],
  );
  await other.db.query(
    `INSERT INTO service_token (id, name, digest, ending, revoked_at, scope, numbers)
     SELECT ${columns}, 'read', '{}' FROM generate_series(1, 1100) n`,
  );
  const { keys } = await answerOf(["key", "list", "--project", projectId], towards(other));
  const { tokens } = await answerOf(["token", "list"], towards(other));
  for (const list of [keys, tokens]) {
    const added = list.filter(({ ending }: { ending: string }) => ending === "abcd");
    const indexes = added.map(({ name }: { name: string }) => Number(name));
    expect(indexes).toEqual(Array.from({ length: 1_100 }, (_, index) => index + 1));
  }
});

describe("project", () => {
  test("create takes every setting and returns the project as stored", async () => {
    expect(
      await answer(
        ...[
          "project",
          "create",
          "--name",
          "커피 코너",
          "--code-format",
          "alphanumeric",
          "--code-length",
          "7",
        ],
        ...[
          "--validity",
          "180",
          "--sms-template",
          "{code} [{project}]",
          "--parent-origin",
          "https://shop.example",
        ],
        ...["--return-url", "https://shop.example/back?x=1", "--usage-limit", "5000", "--rate-limit", "120"],
      ),
    ).toEqual({
      id: id("prj"),
      name: "커피 코너",
      code_format: "alphanumeric",
      code_length: 7,
      validity_seconds: 180,
      sms_template: "{code} [{project}]",
      parent_origin: "https://shop.example",
      return_url: "https://shop.example/back?x=1",
      usage_limit: 5000,
      rate_limit_per_minute: 120,
      suspended: false,
      created_at: time,
    });
  });

  test("create with only a name uses the defaults", async () => {
    expect(await answer("project", "create", "--name", "Plain")).toMatchObject({
      code_format: "numeric",
      code_length: 8,
      validity_seconds: 600,
      parent_origin: null,
      return_url: null,
      usage_limit: null,
      rate_limit_per_minute: 6000,
    });
  });

  test("update changes the given settings and leaves the rest", async () => {
    const made = await answer(
      "project",
      "create",
      "--name",
      "Before",
      "--validity",
      "100",
      "--usage-limit",
      "7",
    );
    const updated = await answer("project", "update", made.id, "--name", "After", "--code-length", "9");
    expect(updated).toEqual({ ...made, name: "After", code_length: 9 });
    expect(await answer("project", "show", made.id)).toEqual(updated);
  });

  test("update clears optional settings", async () => {
    const usual = await answer("project", "create", "--name", "Cleared");
    const made = await answer(
      ...["project", "create", "--name", "Cleared", "--usage-limit", "7", "--sms-template", "{code}"],
      ...["--parent-origin", "https://a.example", "--return-url", "https://a.example/"],
    );
    const cleared = await answer(
      ...["project", "update", made.id, "--usage-limit", "unlimited", "--sms-template", "default"],
      ...["--parent-origin", "none", "--return-url", "none"],
    );
    expect(cleared).toEqual({ ...usual, id: made.id, created_at: made.created_at });
  });

  test("a word that clears one setting is refused as the value of another", async () => {
    const made = await answer(
      ...["project", "create", "--name", "Kept", "--sms-template", "{code}"],
      ...["--parent-origin", "https://a.example", "--return-url", "https://a.example/"],
    );
    for (const mistake of ["--sms-template=none", "--parent-origin=default", "--return-url=default"]) {
      expect(await run(["project", "update", made.id, mistake], environment)).toMatchObject({
        code: 1,
        stderr: expect.stringMatching(/^phoneproof: validation_failed: --/),
      });
    }
    expect(await answer("project", "show", made.id)).toEqual(made);
    const mistaken = ["project", "create", "--name", "Kept", "--sms-template", "none"];
    expect((await run(mistaken, environment)).code).toBe(1);
  });

  test("suspend and resume return the project's state", async () => {
    const { id: projectId } = await answer("project", "create", "--name", "Paused");
    expect(await answer("project", "suspend", projectId)).toMatchObject({ id: projectId, suspended: true });
    expect(await answer("project", "resume", projectId)).toMatchObject({ id: projectId, suspended: false });
  });

  test("list returns the projects, oldest first", async () => {
    const second = await answer("project", "create", "--name", "Second");
    const { projects } = await answer("project", "list");
    expect(projects.at(-1)).toMatchObject({ id: second.id });
    const times = projects.map(({ created_at }: { created_at: string }) => created_at);
    expect(times).toEqual(times.toSorted());
    expect(projects[0]).toMatchObject({ id: shop.projectId, name: "Shop" });
    expect(projects[0]).toEqual(await answer("project", "show", shop.projectId));
  });
});

describe("key", () => {
  test("create shows the key; list does not", async () => {
    const { projectId } = await service.createProject();
    const made = await answer(
      ...["key", "create", "--project", projectId, "--environment", "live", "--name", "checkout"],
      ...["--expires-in", "30d"],
    );
    expect(made).toEqual({
      id: id("key"),
      project_id: projectId,
      environment: "live",
      name: "checkout",
      ending: made.key.slice(-4),
      created_at: time,
      expires_at: time,
      revoked_at: null,
      last_used_at: null,
      key: expect.stringMatching(/^pp_live_[A-Za-z0-9]{38}$/),
    });
    expect(Date.parse(made.expires_at) - Date.parse(made.created_at)).toBe(30 * 86_400_000);
    const { key: secret, ...shown } = made;
    const { keys } = await answer("key", "list", "--project", projectId);
    expect(keys.at(-1)).toEqual(shown);
    expect(JSON.stringify(keys)).not.toContain(secret);
  });

  test("rotate returns the new key, and the old one with its expiry", async () => {
    const { projectId } = await service.createProject();
    const old = await answer("key", "create", "--project", projectId, "--environment", "test");
    const rotated = await answer("key", "rotate", old.id, "--overlap", "2h");
    expect(rotated).toMatchObject({
      id: id("key"),
      environment: "test",
      expires_at: null,
      replaced: { id: old.id },
    });
    expect(rotated.key).toMatch(/^pp_test_/);
    expect(rotated.key).not.toBe(old.key);
    expect(rotated.replaced).not.toHaveProperty("key");
    const left = Date.parse(rotated.replaced.expires_at) - Date.parse(rotated.created_at);
    expect(Math.abs(left - 2 * 3_600_000)).toBeLessThan(60_000);
  });

  test("revoke returns the key with revoked_at", async () => {
    const { projectId } = await service.createProject();
    const made = await answer("key", "create", "--project", projectId, "--environment", "test");
    expect(await answer("key", "revoke", made.id)).toMatchObject({ id: made.id, revoked_at: time });
  });

  test("list shows which keys are active, expired and revoked", async () => {
    const { projectId } = await service.createProject();
    const place = ["--project", projectId, "--environment", "test"];
    const [expired, revoked] = [
      await answer("key", "create", ...place),
      await answer("key", "create", ...place),
    ];
    const { id: active } = await answer("key", "rotate", expired.id, "--overlap", "0s");
    await answer("key", "revoke", revoked.id);
    const lines = await seen(200, "key", "list", "--project", projectId);
    const stateOf = (key: string) =>
      /active|expired|revoked/.exec(lines.find((line) => line.includes(key)) ?? "")?.[0];
    expect([active, expired.id, revoked.id].map(stateOf)).toEqual(["active", "expired", "revoked"]);
  });
});

test("a list that is larger than gRPC clients accept by default is read", async () => {
  const name = "x".repeat(5 * 1024 * 1024);
  const keys = create(ListApiKeysResponseSchema, { apiKeys: [{ id: "key_1", name }] });
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(ListApiKeysResponseSchema, keys))),
  );
  const listed = await answerOf(["key", "list", "--project", "prj_1"], {
    PHONEPROOF_ADDRESS: address,
    PHONEPROOF_TOKEN: "x",
  });
  expect(listed.keys[0].name.length).toBe(name.length);
});

test("the usage of all projects is of one month, even if that ends between two pages", async () => {
  const asked: string[] = [];
  const { address } = await startGrpcPeer(async (call) => {
    const { month, pageToken } = fromBinary(ListUsageRequestSchema, (await buffer(call)).subarray(5));
    asked.push(`${month} ${pageToken}`);
    const page = { usage: [{ month: "2031-05" }], nextPageToken: pageToken === "" ? "next" : "" };
    call.end(framed(toBinary(ListUsageResponseSchema, create(ListUsageResponseSchema, page))));
  });
  await answerOf(["project", "usage"], { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" });
  expect(asked).toEqual([" ", "2031-05 next"]);
});

test("a service without pages answers with all entries at once, however many there are", async () => {
  const count = 200_000;
  const one = toBinary(
    ListDestinationNumbersResponseSchema,
    create(ListDestinationNumbersResponseSchema, { destinationNumbers: [{ number: "021" }] }),
  );
  // The encodings of two messages, one after the other, are one of a message with the entries of both.
  const all = Buffer.alloc(count * one.length, one);
  const { address } = await startGrpcPeer((call) => call.end(framed(all)));
  const peer = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  const { numbers } = await answerOf(["number", "list"], peer);
  expect(numbers.length).toBe(count);
});

test.for([
  {
    what: "an older version of the service",
    headers: { "x-request-id": "req_01m8ft3r49ej2r4fch8r3mb8g6" },
    refused: {
      code: 1,
      stderr: expect.stringMatching(
        /^phoneproof: unimplemented: the service at \S+ is an older version than this command, .*: upgrade it \(req_01m8ft3r49ej2r4fch8r3mb8g6\)\n$/,
      ),
    },
  },
  {
    what: "another gRPC server",
    // As proxies set it.
    headers: { "x-request-id": "5a7d2c1e-8f43-4f6b-9d55-0c2b7f1f9a10" },
    refused: { code: 3, stderr: expect.stringMatching(/^phoneproof: the server at \S+ is not phoneproof/) },
  },
])("a call that $what does not know says what answered", async ({ headers, refused }) => {
  const refusal = { "grpc-status": "12", "grpc-message": "no such method", ...headers };
  const { address } = await startRefusingPeer(refusal);
  const peer = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  expect(await run(["project", "usage"], peer)).toEqual({ stdout: "", ...refused });
});

test("what the gRPC library reports of anything but a proxy is shown, and its traces if somebody asks for them", async () => {
  const { address } = await startRefusingPeer({ "grpc-status": "12", "x-note": "é" });
  const peer = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  const traced = { ...peer, GRPC_VERBOSITY: "DEBUG", GRPC_TRACE: "channel" };
  expect((await runProcess(["project", "list"], traced)).stderr).toMatch(/^\S+Z \| v\S+ \d+ \| channel \| /m);
  const { stderr } = await run(["project", "list"], peer);
  expect(stderr).toMatch(
    /^Failed to add metadata entry x-note: .+\nphoneproof: the server at \S+ is not phoneproof/,
  );
});

test("number add, list and remove return the number as stored", async () => {
  const added = await answer(
    "number",
    "add",
    "02-0700-0001",
    "--environment",
    "test",
    "--project",
    shop.projectId,
  );
  expect(added).toEqual({
    number: "0207000001",
    environment: "test",
    project_id: shop.projectId,
    created_at: time,
  });
  const { numbers } = await answer("number", "list", "--project", shop.projectId, "--environment", "test");
  expect(numbers.at(-1)).toEqual(added);
  expect(await answer("number", "remove", "0207000001")).toEqual(added);
  const left = await answer("number", "list", "--project", shop.projectId, "--environment", "test");
  expect(left.numbers).toEqual(numbers.slice(0, -1));
  const shared = await answer("number", "add", "#0700", "--environment", "live");
  expect(shared).toMatchObject({ number: "#0700", environment: "live", project_id: null });
});

test("token create shows the token; list and revoke do not", async () => {
  const made = await answer(
    ...["token", "create", "--scope", "ingest", "--name", "gateway in Seoul", "--source", "gateway-1"],
    ...["--environment", "test", "--number", shop.testNumber, "--number", "#0701"],
  );
  expect(made).toEqual({
    id: id("tok"),
    scope: "ingest",
    name: "gateway in Seoul",
    source: "gateway-1",
    project_id: null,
    environment: "test",
    numbers: [shop.testNumber, "#0701"],
    ending: made.token.slice(-4),
    created_at: time,
    revoked_at: null,
    last_used_at: null,
    token: expect.stringMatching(/^pp_svc_[A-Za-z0-9]{38}$/),
  });
  const { token: _, ...shown } = made;
  expect((await answer("token", "list")).tokens.at(-1)).toEqual(shown);
  const revoked = await answer("token", "revoke", made.id);
  expect(revoked).toEqual({ ...shown, revoked_at: time });
  // The time of the first revocation stays.
  expect(await answer("token", "revoke", made.id)).toEqual(revoked);
  expect(await answer("token", "create", "--scope", "read", "--project", shop.projectId)).toMatchObject({
    scope: "read",
    name: "",
    source: null,
    project_id: shop.projectId,
    environment: null,
    numbers: [],
  });
  expect(await run(["token", "create", "--scope", "read", "--number", "#0701"], environment)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/^phoneproof: validation_failed: --number: /),
  });
});

describe("sms send", () => {
  const send = (...args: string[]) => ["sms", "send", "--to", shop.testNumber, ...args];

  test("prints the receipt, and the same one as a duplicate for the same message id", async () => {
    const verification = await answer(
      "verification",
      "create",
      "--project",
      shop.projectId,
      "--environment",
      "test",
    );
    const args = send("--from", "010-0000-0044", "--text", verification.sms_text, "--message-id", "send-1");
    const receipt = {
      message_id: "send-1",
      outcome: "VERIFIED",
      verification_id: verification.id,
      duplicate: false,
    };
    expect(await answer(...args)).toEqual(receipt);
    expect(await answer(...args)).toEqual({ ...receipt, duplicate: true });
  });

  test("generates a message id, and prints null if there is no verification", async () => {
    expect(await answer(...send("--from", "01000000045", "--text", "hello"))).toEqual({
      message_id: expect.stringMatching(/^cli-[0-9a-f-]{36}$/),
      outcome: "NO_MATCH",
      verification_id: null,
      duplicate: false,
    });
  });

  test("says that a message may have gone to what is no number of the service", async () => {
    const to = ["sms", "send", "--to", "0299999999", "--from", "01000000047", "--text", "12345678"];
    const { stdout } = await run(to, environment);
    expect(stdout).toContain(
      "NO_MATCH: it contains no code known on its destination, or that is not a number of the service or the token\n",
    );
  });

  test("takes a text that looks like an option", async () => {
    for (const text of [["--text", "--12345678"], ["--text=--json"]]) {
      expect(await answer(...send("--from", "01000000046", ...text))).toMatchObject({ outcome: "NO_MATCH" });
    }
  });

  const empty = "must not be empty";
  const mobile = "must be a 010 mobile number, such as 010-1234-5678";

  test.for([
    { name: "a landline sender", wrong: { from: "02-312-3456" }, fields: { from: mobile } },
    { name: "a foreign sender", wrong: { from: "+1 415 555 0100" }, fields: { from: mobile } },
    { name: "no sender and no text", wrong: { from: "", text: "" }, fields: { from: empty, text: empty } },
    {
      name: "a malformed destination",
      wrong: { to: "shop" },
      fields: { to: expect.stringMatching(/^must be .*#/) },
    },
    {
      name: "a text that is too long",
      wrong: { text: "x".repeat(2_001) },
      fields: { text: "must be at most 2000 characters" },
    },
    {
      name: "a message id that is too long",
      wrong: { messageId: "x".repeat(256) },
      fields: { message_id: "must be at most 255 characters" },
    },
  ])("$name is INVALID with exit code 1, and each field at fault is named with what is expected", async ({
    wrong,
    fields,
  }) => {
    const message = { to: shop.testNumber, from: "01000000047", text: "x", messageId: "send-2", ...wrong };
    const { to, from, text, messageId } = message;
    const args = [
      "sms",
      "send",
      `--to=${to}`,
      `--from=${from}`,
      `--text=${text}`,
      `--message-id=${messageId}`,
    ];
    const asJson = await run([...args, "--json"], environment);
    expect({ ...asJson, stdout: JSON.parse(asJson.stdout) }).toMatchObject({
      code: 1,
      stdout: {
        outcome: "INVALID",
        fields: Object.entries(fields).map(([field, message]) => ({ field, message })),
      },
      stderr: "",
    });
    const { code, stdout } = await run(args, environment);
    expect(code).toBe(1);
    expect(stdout).toMatch(/^outcome +INVALID: a field is missing, malformed or oversized$/m);
    for (const field of Object.keys(fields))
      expect(stdout).toMatch(new RegExp(`^--${field.replace("_", "-")} +must `, "m"));
    for (const line of stdout.split("\n").slice(1)) expect(line.length).toBeLessThanOrEqual(80);
  });

  test("a valid message with the id of an INVALID one gets that receipt, and is told to use another id", async () => {
    const id = ["--text", "x", "--message-id", "send-3"];
    expect((await run(send("--from", "02-312-3456", ...id), environment)).code).toBe(1);
    const { code, stdout } = await run(send("--from", "01000000048", ...id), environment);
    expect({ code, stdout }).toEqual({
      code: 1,
      stdout: expect.stringContaining(
        "INVALID: as the first message with this id was; correct it under another id",
      ),
    });
  });

  test("a restricted token that uses the id of a message to another number is told so", async () => {
    const message = ["--from", "01000000048", "--text", "x", "--message-id", "send-4"];
    const shared = { scope: "ingest", source: "send-4" } as const;
    const token = async (number: string) => [
      "--token",
      await service.createToken({ ...shared, numbers: [number] }),
    ];
    const other = ["sms", "send", "--to", shop.liveNumber, ...(await token(shop.liveNumber))];
    expect((await run([...other, ...message], environment)).stdout).toContain("NO_MATCH");
    const { code, stdout } = await run(send(...(await token(shop.testNumber)), ...message), environment);
    expect({ code, stdout }).toEqual({
      code: 1,
      stdout: expect.stringContaining("its id is that of a message to another number"),
    });
  });
});
