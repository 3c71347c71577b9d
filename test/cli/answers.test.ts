import { buffer } from "node:stream/consumers";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ListApiKeysResponseSchema } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ListAuditEntriesResponseSchema } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { ListDestinationNumbersResponseSchema } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import {
  ListUsageRequestSchema,
  ListUsageResponseSchema,
} from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { uuidOf } from "../service/pending.ts";
import { answerOf, launcher, run, runProcess, startCommand, startProgram, towards } from "./command.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { startGrpcPeer, startRefusingPeer } from "./grpc-peer.ts";

const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
const id = (prefix: string) => expect.stringMatching(new RegExp(`^${prefix}_[0-7][0-9a-hjkmnp-tv-z]{25}$`));

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
async function seen(columns: number, ...args: string[]): Promise<string[]> {
  const { code, stdout, stderr } = await run(args, { ...environment, COLUMNS: String(columns) });
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: expect.stringMatching(/^(There may be more: [^\n]+\n)?$/),
  });
  return stdout.trimEnd().split("\n");
}

/** Hangul syllables take two columns of a terminal. */
const width = (line: string) =>
  [...line].reduce((sum, character) => sum + (/[가-힣]/.test(character) ? 2 : 1), 0);

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

describe("verification", () => {
  const create = (...args: string[]) =>
    answer("verification", "create", "--project", shop.projectId, "--environment", "test", ...args);

  test("create and list need neither --project nor --environment with a merchant's key", async () => {
    const byKey = { ...environment, PHONEPROOF_TOKEN: shop.testKey };
    const created = await answerOf(["verification", "create"], byKey);
    expect(created).toMatchObject({ status: "pending", environment: "test" });
    expect(await answerOf(["verification", "list", "--limit", "1"], byKey)).toMatchObject({
      verifications: [{ id: created.id }],
    });
    expect(await run(["verification", "create"], environment)).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^phoneproof: validation_failed: --project: .+; --environment: /),
    });
  });

  test("create and show return the REST API's fields plus the project", async () => {
    const created = await create(
      ...[
        "--mode",
        "match",
        "--expected-phone",
        "010-0000-1234",
        "--client-reference",
        "order 7",
        "--state",
        "s7",
      ],
      ...["--idempotency-key", "answers-create"],
    );
    const result = {
      id: id("vrf"),
      status: "pending",
      environment: "test",
      mode: "match",
      phone: null,
      carrier: null,
      client_reference: "order 7",
      state: "s7",
      created_at: time,
      expires_at: time,
      verified_at: null,
      server_time: time,
      project_id: shop.projectId,
    };
    expect(created).toEqual({
      ...result,
      verification_url: expect.stringContaining("/v/"),
      destination: shop.testNumber,
      sms_text: expect.stringMatching(/\d{8}/),
      idempotency_key: "answers-create",
      idempotent_replayed: false,
    });
    expect(await answer("verification", "show", created.id)).toEqual({
      ...result,
      id: created.id,
      history: {
        destination: shop.testNumber,
        masked_expected_phone: "010-****-1234",
        ended_at: null,
        pending_reason: null,
        pending_reason_at: null,
        messages: [],
        unmatched_messages: [],
        webhook_id: null,
        deliveries: [],
      },
    });
  });

  test("the same idempotency key returns the same verification", async () => {
    const first = await create("--idempotency-key", "answers-again");
    expect(await create("--idempotency-key", "answers-again")).toEqual({
      ...first,
      idempotent_replayed: true,
    });
  });

  test("a verified verification has the carrier as LGU+, like the REST API", async () => {
    const { id, sms_text } = await create();
    await service.sms({ to: shop.testNumber, from: "01000000042", text: sms_text, carrier: "LG U+" });
    expect(await answer("verification", "show", id)).toMatchObject({
      status: "verified",
      phone: "01000000042",
      carrier: "LGU+",
      verified_at: time,
    });
  });

  test("show tells what became of the messages, with masked senders", async () => {
    const { id, sms_text } = await create("--mode", "match", "--expected-phone", "010-0000-4301");
    const message = { to: shop.testNumber, from: "01000004302", text: sms_text, carrier: "SKT" };
    await service.sms({ ...message, messageId: "answers-4302" });
    const { history } = await answer("verification", "show", id);
    expect(history).toMatchObject({
      masked_expected_phone: "010-****-4301",
      pending_reason: "another_number",
      pending_reason_at: time,
      messages: [
        {
          source: "cli",
          message_id: "answers-4302",
          masked_sender: "010-****-4302",
          carrier: "SKT",
          received_at: null,
          ingested_at: time,
          outcome: "SENDER_MISMATCH",
          duplicate: false,
        },
      ],
    });
    const lines = await seen(200, "verification", "show", id);
    expect(lines).toContain(
      `No unmatched message is stored that came to ${shop.testNumber} while it was pending.`,
    );
    expect(lines).toContainEqual(
      expect.stringMatching(/^window said +\S.*: a message with its code came from another number/),
    );
    expect(lines).toContainEqual(expect.stringMatching(/ 010-\*{4}-4302 +SENDER_MISMATCH +SKT /));
    expect(lines.join("\n")).not.toMatch(/0100000430/);
  });

  test("show tells of a verification that has ended whether its event was sent", async () => {
    const { projectId } = await service.createProject();
    const place = ["--project", projectId, "--environment", "live"];
    const without = await answer("verification", "create", ...place);
    const url = "https://shop.example/hook";
    await answer("webhook", "set", ...place, "--url", url, "--events", "verification.verified");
    const verifiedOnly = await answer("verification", "create", ...place);
    const webhook = await answer("webhook", "set", ...place, "--url", "https://shop.example/all");
    const all = await answer("verification", "create", ...place);
    for (const { id } of [without, verifiedOnly, all]) await answer("verification", "cancel", id);
    expect(await seen(200, "verification", "show", without.id)).toContainEqual(
      expect.stringMatching(/^webhook +none was set when it was created$/),
    );
    expect(await seen(200, "verification", "show", verifiedOnly.id)).toContainEqual(
      expect.stringMatching(
        /^event +not sent, since the webhook does not receive this kind, or no longer stored$/,
      ),
    );
    expect((await answer("verification", "show", all.id)).history).toMatchObject({
      webhook_id: webhook.id,
      deliveries: [{ type: "verification.cancelled", url: "https://shop.example/all" }],
    });
  });

  test("show prints the verification, and the error, if only its history cannot be read", async () => {
    const { id } = await create();
    const locker = await service.db.connect();
    try {
      await locker.query("BEGIN; LOCK TABLE inbound_message");
      let isOver = false;
      const showing = run(["verification", "show", id, "--json"], environment).finally(() => {
        isOver = true;
      });
      // A waiting statement fails like this after its time limit, too.
      const cancelWaiting =
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
      await vi.waitUntil(async () => (await service.db.query(cancelWaiting)) && isOver, { timeout: 45_000 });
      const { code, stdout, stderr } = await showing;
      expect({ code, shown: JSON.parse(stdout), failed: JSON.parse(stderr) }).toMatchObject({
        code: 1,
        shown: { id, status: "pending", history: null },
        failed: { error: { code: "service_unavailable" } },
      });
    } finally {
      await locker.query("ROLLBACK");
      locker.release();
    }
  });

  test("show leaves the history out for those who may not read it, and charges a merchant once", async () => {
    const { id } = await create();
    const read = await service.createToken({ scope: "read" });
    expect(await answer("verification", "show", id, "--token", read)).toMatchObject({ id, history: null });
    const calls = async () =>
      (await answer("project", "usage", "--project", shop.projectId)).usage[0]?.calls ?? 0;
    const before = await calls();
    expect(await answer("verification", "show", id, "--token", shop.testKey)).toMatchObject({
      id,
      history: null,
    });
    expect(await calls()).toBe(before + 1);
  });

  test("cancel returns the cancelled verification, also when repeated", async () => {
    const { id } = await create();
    const cancelled = await answer("verification", "cancel", id);
    expect(cancelled).toMatchObject({ id, status: "cancelled" });
    expect(await answer("verification", "cancel", id)).toMatchObject({ id, status: "cancelled" });
  });

  test("list filters and pages, with a token for the next page", async () => {
    const { projectId } = await service.createProject();
    const made = [];
    for (const reference of ["a", "b", "c"]) {
      made.push(
        await answer(
          ...["verification", "create", "--project", projectId, "--environment", "live"],
          ...["--client-reference", reference],
        ),
      );
    }
    await answer("verification", "cancel", made[1].id);
    const list = async (...args: string[]) => {
      const { verifications, next_page_token } = await answer(
        "verification",
        "list",
        "--project",
        projectId,
        ...args,
      );
      const references = verifications
        .map((one: { client_reference: string }) => one.client_reference)
        .join("");
      return { references, next: next_page_token as string | null };
    };
    expect(await list()).toEqual({ references: "cba", next: null });
    expect(await list("--status", "pending")).toMatchObject({ references: "ca" });
    expect(await list("--status", "cancelled,verified", "--status", "expired")).toMatchObject({
      references: "b",
    });
    expect(await list("--client-reference", "a")).toMatchObject({ references: "a" });
    expect(await list("--environment", "test")).toMatchObject({ references: "" });
    expect(await list("--created-from", "1h")).toMatchObject({ references: "cba" });
    expect(await list("--created-before", "1h")).toMatchObject({ references: "" });
    expect(await list("--created-from", made[2].created_at)).toMatchObject({ references: "c" });
    // A relative time is a different instant for the second page, which must work nevertheless.
    for (const filters of [[], ["--created-from", "1h"], ["--created-before", "0s"]]) {
      const first = await list(...filters, "--limit", "2");
      expect(first.references).toBe("cb");
      expect(await list(...filters, "--limit", "2", "--page-token", first.next ?? "")).toEqual({
        references: "a",
        next: null,
      });
    }
  });

  test("a list that continues says so on stderr, so that a pipe gets only the list", async () => {
    const { projectId } = await service.createProject();
    const made = ["verification", "create", "--project", projectId, "--environment", "live"];
    const ids: string[] = [];
    for (let count = 0; count < 3; count += 1) ids.unshift((await answer(...made)).id);
    const list = ["verification", "list", "--project", projectId, "--limit", "2"];
    const first = await run(list, environment);
    expect(first.stdout.match(/^\S+/gm)).toEqual(["ID", ...ids.slice(0, 2)]);
    const [, token = ""] = /^There may be more: add --page-token (\S+)\n$/.exec(first.stderr) ?? [];
    const second = await run([...list, "--page-token", token], environment);
    expect({ ids: second.stdout.match(/^\S+/gm), stderr: second.stderr }).toEqual({
      ids: ["ID", ids[2]],
      stderr: "",
    });
    const audited = await run(["audit", "list", "--limit", "1"], environment);
    expect(audited.stdout.trimEnd().split("\n")).toHaveLength(2);
    expect(audited.stderr).toMatch(/^There may be more: add --page-token \S+\n$/);
    expect(await answer("audit", "list", "--limit", "1")).toMatchObject({
      next_page_token: expect.any(String),
    });
  });

  test("watch shows the current status and the transition, then ends", async () => {
    const { id, sms_text } = await create();
    const watching = startCommand(["verification", "watch", id, "--json"], environment);
    const [now = ""] = await watching.lines(1);
    expect(JSON.parse(now)).toMatchObject({ id, status: "pending" });
    await service.sms({ to: shop.testNumber, from: "01000000043", text: sms_text });
    const { code, stdout, stderr } = await watching.finished;
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    const looks = stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(looks.map(({ status }) => status)).toEqual(["pending", "verified"]);
    expect(looks[1]).toMatchObject({ phone: "01000000043", project_id: shop.projectId });
  });

  test("watch shows the time of the verification, not of the watch", async () => {
    const { id, sms_text } = await create();
    await service.sms({ to: shop.testNumber, from: "01000000044", text: sms_text });
    await service.db.query(
      `UPDATE verification SET created_at = '2031-05-01 09:29:00Z', verified_at = '2031-05-01 09:30:00Z',
         expires_at = '2031-05-01 09:39:00Z'
       WHERE id = $1`,
      [uuidOf(id)],
    );
    const { stdout } = await run(["verification", "watch", id], { ...environment, TZ: "UTC" });
    expect(stdout).toBe("2031-05-01 09:30:00  verified  01000000044  SKT\n");
  });

  test("watch shows of an expired verification when it expired", async () => {
    const { id } = await create();
    await service.db.query(
      `UPDATE verification SET created_at = '2025-05-01 09:29:00Z', expires_at = '2025-05-01 09:39:00Z'
       WHERE id = $1`,
      [uuidOf(id)],
    );
    const { stdout } = await run(["verification", "watch", id], { ...environment, TZ: "UTC" });
    expect(stdout).toBe("2025-05-01 09:39:00  expired\n");
  });

  test.for([
    { end: "verified", code: 0 },
    { end: "cancelled", code: 1 },
    { end: "expired", code: 1 },
  ])("watch --exit-status exits with $code if the verification is $end", async ({ end, code }) => {
    const { id, sms_text } = await create();
    if (end === "verified") {
      await service.sms({ to: shop.testNumber, from: "01000000045", text: sms_text });
    } else if (end === "cancelled") await answer("verification", "cancel", id);
    else {
      await service.db.query(
        `UPDATE verification SET created_at = now() - interval '1 hour', expires_at = now() - interval '1 minute'
         WHERE id = $1`,
        [uuidOf(id)],
      );
    }
    const watch = ["verification", "watch", id, "--json"];
    const watched = await run([...watch, "--exit-status"], environment);
    expect({ ...watched, stdout: JSON.parse(watched.stdout) }).toMatchObject({
      code,
      stdout: { id, status: end },
      stderr: "",
    });
    expect(await run(watch, environment)).toMatchObject({ code: 0 });
  });

  test("watch continues after a restart of the service and shows nothing twice", async () => {
    let current = await service.startAnother();
    const proxy = await startCuttingProxy(() => current.grpcAddress);
    const { id, sms_text } = await create();
    const watching = startCommand(["verification", "watch", id], {
      ...environment,
      PHONEPROOF_ADDRESS: proxy.address,
    });
    expect(await watching.lines(1)).toHaveLength(1);
    await current.close();
    current = await service.startAnother();
    await expect
      .poll(async () =>
        (await scrape(current.opsUrl)).sum("phoneproof_rpc_streams_open", {
          method: "phoneproof.v1.VerificationService/WatchVerification",
        }),
      )
      .toBe(1);
    await service.sms({ to: shop.testNumber, from: "01000000047", text: sms_text });
    const { code, stdout, stderr } = await watching.finished;
    await proxy.close();
    expect({ code, stdout, stderr }).toEqual({
      code: 0,
      stdout: expect.stringMatching(/^\S+ \S+ {2}pending .*\n\S+ \S+ {2}verified {2}01000000047 .*\n$/),
      stderr: expect.stringMatching(/^phoneproof: connection lost, trying again: .*\n$/),
    });
  });

  test("watch ends at a signal with its exit code and without an error", async () => {
    const { id } = await create();
    const watching = startCommand(["verification", "watch", id], environment);
    await watching.lines(1);
    watching.child.kill("SIGTERM");
    const { code, stdout, stderr } = await watching.finished;
    expect({ code, stderr }).toEqual({ code: 143, stderr: "" });
    expect(stdout).toMatch(/^\S+ \S+ {2}pending .*\n$/);
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

describe("human-readable output", () => {
  let projectId: string;

  beforeAll(async () => {
    ({ projectId } = await service.createProject({ name: "오래된 골목 책방과 커피" }));
    for (const reference of ["주문 번호 하나 둘 셋 넷 다섯", "a-plain-reference-that-goes-on-for-long"]) {
      await answerOf(
        [
          ...["verification", "create", "--project", projectId, "--environment", "test"],
          ...["--client-reference", reference],
        ],
        environment,
      );
    }
    await answerOf(
      ["key", "create", "--project", projectId, "--environment", "live", "--name", "a name at some length"],
      environment,
    );
    await service.createToken({ scope: "ingest", source: "a-gateway-with-a-long-name-of-its-own" });
  });

  const lists = () => [
    ["project", "list"],
    ["key", "list", "--project", projectId],
    ["number", "list"],
    ["token", "list"],
    ["verification", "list", "--project", projectId],
  ];

  test.for([60, 80, 120])("tables fit in %i columns and keep whole ids", async (columns) => {
    for (const args of lists()) {
      const lines = (await seen(columns, ...args)).filter((line) => !line.startsWith("No room for "));
      expect(lines.length).toBeGreaterThan(1);
      for (const line of lines) expect(width(line)).toBeLessThanOrEqual(columns);
      const key = args[0] === "number" ? /^[\d#]+ / : /^(prj|key|tok|vrf)_[0-9a-z]{26} /;
      for (const line of lines.slice(1)) expect(line).toMatch(key);
    }
  });

  test.for([
    60, 80,
  ])("in %i columns the audit log shows the time, action, target and actor", async (columns) => {
    const [heading, ...lines] = await seen(columns, "audit", "list", "--limit", "5");
    expect(heading).toMatch(/^WHEN +WHAT +TO +WHO\b/);
    for (const line of lines.slice(0, 5)) {
      expect(width(line)).toBeLessThanOrEqual(columns);
      expect(line).toMatch(/^(\d{4}-)?\d\d-\d\d \d\d:\d\d(:\d\d)? +\w\S+[.…]\S+ +\w+…?\S+ +\w+/);
    }
  });

  test("the audit log says which project an action concerned, unless only one was asked for", async () => {
    const { projectId: former } = await service.createProject();
    const { projectId: next } = await service.createProject();
    const number = "0298765432";
    const add = ["number", "add", number, "--environment", "live", "--project"];
    await answerOf([...add, former], environment);
    await answerOf(["number", "remove", number], environment);
    await answerOf([...add, next], environment);
    const lines = (await seen(400, "audit", "list", "--limit", "30")).filter((line) => line.includes(number));
    expect(lines.map((line) => /number\.\w+|prj_\w+/g[Symbol.match](line))).toEqual([
      ["number.added", next],
      ["number.removed", former],
      ["number.added", former],
    ]);
    expect((await seen(400, "audit", "list", "--project", next))[0]).not.toContain("PROJECT");
  });

  test("the project id of a token is shortened in the middle, so that it can be recognised by its end", async () => {
    const { id } = await answerOf(
      ["token", "create", "--scope", "read", "--project", projectId],
      environment,
    );
    const line = (await seen(80, "token", "list")).find((text) => text.startsWith(id));
    const [, shown = "", end = ""] = / (prj_\w*)…(\w{4,})$/.exec(line ?? "") ?? [];
    expect(projectId.startsWith(shown) && projectId.endsWith(end), line).toBe(true);
  });

  test("long names are cut off and times lose year and seconds before a column is dropped", async () => {
    const list = ["key", "list", "--project", projectId];
    const named = ["--environment", "live", "--name", "a name ".repeat(12), "--expires-in", "1h"];
    const { id } = await answerOf(["key", "create", "--project", projectId, ...named], environment);
    const line = async (columns: number) =>
      (await seen(columns, ...list)).find((text) => text.startsWith(id)) ?? "";
    expect(await line(80)).toMatch(/a name .*… +\d\d-\d\d \d\d:\d\d$/);
    expect(await line(200)).toMatch(/ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d +-$/);
  });

  test("a time within half a year has its minute, also in another year, and any other its day", async () => {
    const list = ["key", "list", "--project", projectId];
    for (const [days, shown, passedDays = 0] of [
      ["1d", / \d\d-\d\d \d\d:\d\d$/, 183],
      ["1d", / \d{4}-\d\d-\d\d$/, 185],
      ["182d", / \d\d-\d\d \d\d:\d\d$/],
      ["184d", / \d{4}-\d\d-\d\d$/],
    ] as const) {
      const named = ["--environment", "live", "--name", "a name ".repeat(12), "--expires-in", days];
      const { id } = await answerOf(["key", "create", "--project", projectId, ...named], environment);
      await service.db.query(
        "UPDATE api_key SET created_at = created_at - $2 * interval '1 day', expires_at = expires_at - $2 * interval '1 day' WHERE id = $1",
        [decodeId("key_", id), passedDays],
      );
      expect((await seen(80, ...list)).find((text) => text.startsWith(id))).toMatch(shown);
    }
  });

  test("columns that do not fit are named, with what shows them", async () => {
    const list = ["key", "list", "--project", projectId];
    const [heading = "", ...lines] = await seen(80, ...list);
    expect(lines.at(-1)).toBe("No room for CREATED, LAST USED: a wider terminal or --json shows them.");
    expect(heading).not.toMatch(/CREATED|LAST USED/);
    expect((await seen(200, ...list)).join("\n")).not.toContain("No room");
  });

  test("columns are aligned, also with Hangul", async () => {
    const [heading = "", ...rows] = await seen(120, "project", "list");
    const state = heading.indexOf("STATE");
    expect(state).toBeGreaterThan(0);
    for (const row of rows) {
      const before = /^(.*?) {2,}(active|suspended)/.exec(row);
      const spaces = row.slice(0, row.search(/(active|suspended)/));
      expect(before).not.toBeNull();
      expect(width(spaces)).toBe(state);
    }
  });

  test("a value that is too long ends in …", async () => {
    const lines = await seen(80, "project", "list");
    expect(lines.find((line) => line.startsWith(projectId))).toMatch(/오래된.*…/);
  });

  test("without a terminal nothing is cut off", async () => {
    const { stdout } = await run(["project", "list"], environment);
    expect(stdout).toContain("오래된 골목 책방과 커피");
    expect(stdout).not.toMatch(/…|No room/);
  });

  test("a new secret comes with a line that says it is not shown again", async () => {
    const lines = await seen(80, "key", "create", "--project", projectId, "--environment", "test");
    expect(lines.find((line) => line.startsWith("key "))).toMatch(/pp_test_[A-Za-z0-9]{38}$/);
    expect(lines.at(-1)).toBe("Store the key now: it is not shown again.");
    const token = await seen(80, "token", "create", "--scope", "admin");
    expect(token.at(-1)).toBe("Store the token now: it is not shown again.");
  });

  test("a webhook's secret comes with a line that says what shows it again", async () => {
    const set = ["webhook", "set", "--project", projectId, "--environment", "live"];
    const lines = await seen(80, ...set, "--url", "https://shop.example/shown-again");
    expect(lines.at(-1)).toBe("Store the secret now: it is shown again only when this URL is set again.");
    const again = await seen(80, ...set, "--url", "https://shop.example/shown-again");
    const secretOf = (shown: readonly string[]) => shown.find((line) => line.startsWith("secret "));
    expect(secretOf(lines)).toMatch(/whsec_/);
    expect(secretOf(again)).toBe(secretOf(lines));
  });

  test("times are in the local time zone", async () => {
    const { created_at } = await answer("project", "show", projectId);
    const seoul = new Date(Date.parse(created_at) + 9 * 3_600_000).toISOString();
    expect((await seen(80, "project", "show", projectId)).at(-1)).toBe(
      `created        ${seoul.slice(0, 10)} ${seoul.slice(11, 19)} +09:00`,
    );
    const marquesas = new Date(Date.parse(created_at) - 9.5 * 3_600_000).toISOString();
    const west = { ...environment, TZ: "Pacific/Marquesas" };
    expect((await run(["project", "show", projectId], west)).stdout).toMatch(
      `${marquesas.slice(0, 10)} ${marquesas.slice(11, 19)} -09:30\n`,
    );
  });

  test("an empty list says that it is empty", async () => {
    const [line] = await seen(80, "verification", "list", "--project", projectId, "--status", "expired");
    expect(line).toBe("No verifications here.");
  });

  test("control characters in the service's answers never reach the terminal", async () => {
    const evil = "\u001b[2J\u0007\r\n\t\u009b31m\u202egnp\u2066\u200b\u{e0001}";
    const { id } = await answerOf(
      [
        ...["verification", "create", "--project", projectId, "--environment", "test"],
        ...["--client-reference", evil, "--state", evil],
      ],
      environment,
    );
    for (const args of [
      ["verification", "show", id],
      ["verification", "show", id, "--json"],
      ["verification", "list", "--project", projectId],
      ["verification", "list", "--project", projectId, "--json"],
      ["verification", "cancel", id],
      ["verification", "watch", id, "--json"],
      ["verification", "show", evil],
      ["project", "update", projectId, "--parent-origin", evil],
    ]) {
      const { stdout, stderr } = await run(args, environment);
      expect(stdout + stderr).not.toMatch(/[^\P{Cc}\n]|\p{Cf}|[\u2028\u2029]/u);
    }
    const shown = await seen(200, "verification", "show", id);
    expect(shown).toContainEqual(
      expect.stringContaining("\\x1b[2J\\x07\\r\\n\\t\\x9b31m\\u202egnp\\u2066\\u200b\\u{e0001}"),
    );
    expect(await answer("verification", "show", id)).toMatchObject({ client_reference: evil });
  });
});

test("neither do those in the token of a list's next page", async () => {
  const list = create(ListAuditEntriesResponseSchema, { entries: [{}], nextPageToken: "\u001b[2J" });
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(ListAuditEntriesResponseSchema, list))),
  );
  const peer = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  const { stderr } = await run(["audit", "list", "--limit", "1"], peer);
  expect(stderr).toBe("There may be more: add --page-token \\x1b[2J\n");
});

test("joined emoji in the service's answers are shown as they are", async () => {
  const family = "\u{1f468}\u200d\u{1f469}\u200d\u{1f467}";
  const { stdout } = await run(
    [
      ...["verification", "create", "--project", shop.projectId, "--environment", "test"],
      ...["--client-reference", family],
    ],
    environment,
  );
  expect(stdout).toContain(family);
});

describe("if nobody reads the output", () => {
  const lost = (args: readonly string[]) => {
    const running = startCommand(args, environment);
    running.child.stdout?.destroy();
    return running.finished;
  };

  test("a command that only reads ends without an error", async () => {
    expect(await lost(["project", "list"])).toMatchObject({ code: 0, stderr: "" });
  });

  test("a command that changed something fails with an error, because its answer is lost", async () => {
    expect(await lost(["project", "create", "--name", "Lost"])).toMatchObject({
      code: 1,
      stderr:
        "phoneproof: output_failed: the output was closed early: what the command did remains in effect\n",
    });
  });

  test("a command that created a secret says how to revoke it", async () => {
    const { projectId } = await service.createProject();
    const place = ["--environment", "test", "--project", projectId];
    const { id: replaced } = await answer("key", "create", ...place);
    for (const command of [
      ["key", "create", ...place],
      ["key", "rotate", replaced],
      ["token", "create", "--scope", "read"],
    ]) {
      const { code, stderr } = await lost(command);
      const said =
        /^phoneproof: output_failed: .+: (\S+) was created, but its secret is lost: revoke it with phoneproof (.+)\n$/;
      const [, id, revocation = ""] = said.exec(stderr) ?? [];
      expect({ code, id }).toEqual({ code: 1, id: expect.stringMatching(/^(key|tok)_/) });
      expect(await answer(...revocation.split(" "))).toMatchObject({ id, revoked_at: expect.any(String) });
    }
  });
});

test("with a closed output or /dev/null, no secret is created that nobody would see", async () => {
  const { projectId } = await service.createProject();
  const place = ["--environment", "test", "--project", projectId];
  const { id: replaced } = await answer("key", "create", ...place);
  const existing = async () => {
    const { keys } = await answer("key", "list", "--project", projectId);
    const { tokens } = await answer("token", "list");
    // Without the last uses: those of earlier tests' tokens are written some seconds later.
    return [...keys, ...tokens].map(({ last_used_at: _, ...rest }: Record<string, unknown>) => rest);
  };
  const before = await existing();
  for (const { redirection, args } of [
    { redirection: ">&-", args: ["key", "create", ...place] },
    { redirection: "> /dev/null", args: ["key", "create", ...place] },
    { redirection: "> /dev/null", args: ["key", "rotate", replaced] },
    { redirection: "> /dev/null", args: ["token", "create", "--scope", "read"] },
  ]) {
    const command = ["sh", "-c", `"$@" ${redirection}`, "sh", process.execPath, launcher, ...args];
    expect(await startProgram(command, environment).finished).toEqual({
      code: 1,
      stdout: "",
      stderr:
        "phoneproof: output_failed: the output is closed or goes to /dev/null, and only it would have the secret: nothing was created\n",
    });
  }
  expect(await existing()).toEqual(before);
});

// Linux has a device that is always full.
if (process.platform === "linux") {
  describe("if the output cannot be written", () => {
    test.for([
      { name: "a command that only reads fails", args: ["project", "list"], consequence: "" },
      {
        name: "a command that changed something says that the change remains",
        args: ["project", "create", "--name", "Full"],
        consequence: ": what the command did remains in effect",
      },
    ])("$name", async ({ args, consequence }) => {
      const command = [process.execPath, launcher, ...args];
      const running = startProgram(["sh", "-c", '"$@" > /dev/full', "sh", ...command], environment);
      expect(await running.finished).toEqual({
        code: 1,
        stdout: "",
        stderr: `phoneproof: output_failed: the output cannot be written (ENOSPC: no space left on device, write)${consequence}\n`,
      });
    });
  });
}
