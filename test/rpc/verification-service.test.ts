/** A merchant's key over gRPC: the same rules as over REST. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Client, Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { newCredential } from "../../src/core/credential.ts";
import type { FailureCode } from "../../src/failures.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import {
  Carrier,
  type CreateVerificationRequestSchema,
  Environment,
  type Verification,
  VerificationMode,
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { type Answer, type Merchant, merchant, newIdempotencyKey, usageOf } from "../gateway/merchant.ts";
import { startTestService, type TestProject } from "../harness/service.ts";
import { createPending, letExpire } from "../service/pending.ts";
import { smsSource } from "../service/sms-source.ts";
import { answerOf, type GrpcAnswer } from "./grpc-answer.ts";

const service = await startTestService({ ROLES: "api" });
const { send } = smsSource(service);

type Rpc = Client<typeof VerificationService>;
type CreationFields = MessageInitShape<typeof CreateVerificationRequestSchema>;

/** A merchant with a REST and a gRPC client. */
interface Both extends TestProject {
  readonly rest: Merchant;
  readonly rpc: Rpc;
}

async function newMerchant(settings: Parameters<typeof service.createProject>[0] = {}): Promise<Both> {
  const project = await service.createProject(settings);
  return { ...project, ...withKey(project.liveKey) };
}

function withKey(apiKey: string): { rest: Merchant; rpc: Rpc } {
  return { rest: merchant(service.httpUrl, apiKey), rpc: service.client(VerificationService, apiKey) };
}

const shop = await newMerchant({
  parentOrigin: "https://shop.example.com",
  returnUrl: "https://shop.example.com/done?x=1",
});

/** What REST and gRPC must agree on. */
interface Told {
  readonly code: string;
  readonly fields: readonly string[];
  /** Whether the call was counted. */
  readonly counted: boolean;
  readonly retryAfter: boolean;
  readonly rateLimit: string | null;
}

function toldOverRest(answer: Answer): Told {
  const { status, headers, body } = answer;
  if (status >= 300) expect(body.error.request_id).toBe(headers.get("x-request-id"));
  expect(headers.get("x-request-id")).toMatch(/^req_[0-9a-z]{26}$/);
  return {
    code: status < 300 ? "ok" : body.error.code,
    fields: status < 300 ? [] : (body.error.fields ?? []).map(({ field }) => field).sort(),
    counted: usageOf(answer) !== null,
    retryAfter: headers.has("retry-after"),
    rateLimit: headers.get("ratelimit-policy"),
  };
}

function toldOverGrpc({ code, fields, metadata, requestId, retryAfterSeconds }: GrpcAnswer<unknown>): Told {
  expect(requestId).toMatch(/^req_[0-9a-z]{26}$/);
  expect(metadata.get("x-request-id")).toBe(requestId);
  expect(metadata.get("retry-after")).toBe(retryAfterSeconds === 0 ? null : String(retryAfterSeconds));
  return {
    code,
    fields,
    counted: metadata.has("x-usage-calls") && metadata.has("x-usage-limit"),
    retryAfter: retryAfterSeconds > 0,
    rateLimit: metadata.get("ratelimit-policy"),
  };
}

const policy = (bucket: string, perMinute = 6000) => `"${bucket}";q=${perMinute};w=60`;

/** HTTP and gRPC status of each failure that a merchant's call may meet. */
const statuses: Partial<Record<FailureCode, readonly [number, Code]>> = {
  idempotency_key_required: [400, Code.InvalidArgument],
  idempotency_key_invalid: [400, Code.InvalidArgument],
  missing_api_key: [401, Code.Unauthenticated],
  invalid_api_key: [401, Code.Unauthenticated],
  project_suspended: [403, Code.PermissionDenied],
  verification_not_found: [404, Code.NotFound],
  idempotency_conflict: [409, Code.AlreadyExists],
  verification_not_cancellable: [409, Code.FailedPrecondition],
  validation_failed: [422, Code.InvalidArgument],
  rate_limited: [429, Code.ResourceExhausted],
  usage_limit_exceeded: [429, Code.ResourceExhausted],
  no_receiving_number: [503, Code.Unavailable],
};

/** Makes one call over REST and one over gRPC, and returns what they agree on. */
async function overBoth(rest: () => Promise<Answer>, rpc: Parameters<typeof answerOf>[0]): Promise<Told> {
  const answers = [await rest(), await answerOf(rpc)] as const;
  const [overRest, overGrpc] = [toldOverRest(answers[0]), toldOverGrpc(answers[1])];
  expect(overGrpc).toEqual(overRest);
  const expected = statuses[overRest.code as FailureCode];
  if (overRest.code !== "ok") expect([answers[0].status, answers[1].status]).toEqual(expected);
  return overRest;
}

interface Creation {
  readonly rest: object;
  readonly rpc: CreationFields;
}

const createOverBoth = ({ rest, rpc }: Creation, by: { rest: Merchant; rpc: Rpc } = shop) =>
  overBoth(
    () => by.rest.create(rest),
    (options) => by.rpc.createVerification({ idempotencyKey: newIdempotencyKey(), ...rpc }, options),
  );

describe("a creation gets the same answer over REST and gRPC", () => {
  const { MATCH, DISCOVER } = VerificationMode;
  const sound = (rest: object, rpc: CreationFields): [Creation, readonly string[]] => [{ rest, rpc }, []];
  const unsound = (
    fields: readonly string[],
    rest: object,
    rpc: CreationFields,
  ): [Creation, readonly string[]] => [{ rest, rpc }, fields];

  test.for<[string, readonly [Creation, readonly string[]]]>([
    ["without any field", sound({}, {})],
    ["in mode discover", sound({ mode: "discover" }, { mode: DISCOVER })],
    [
      "in mode match",
      sound(
        { mode: "match", expected_phone: "+82 10-1234-5678" },
        { mode: MATCH, expectedPhone: "+82 10-1234-5678" },
      ),
    ],
    ["in mode discover with an invalid phone", sound({ expected_phone: "abc" }, { expectedPhone: "abc" })],
    [
      "with the longest texts",
      sound(
        { client_reference: "😀".repeat(160), state: "😀".repeat(256) },
        { clientReference: "😀".repeat(160), state: "😀".repeat(256) },
      ),
    ],
    [
      "with the project's origin and URL",
      sound(
        { parent_origin: "https://shop.example.com", return_url: "https://shop.example.com/done?x=1" },
        { parentOrigin: "https://shop.example.com", returnUrl: "https://shop.example.com/done?x=1" },
      ),
    ],
    ["in mode match without a phone", unsound(["expected_phone"], { mode: "match" }, { mode: MATCH })],
    [
      "in mode match with a landline",
      unsound(
        ["expected_phone"],
        { mode: "match", expected_phone: "0212345678" },
        { mode: MATCH, expectedPhone: "0212345678" },
      ),
    ],
    [
      "in mode match with an empty phone",
      unsound(["expected_phone"], { mode: "match", expected_phone: "" }, { mode: MATCH, expectedPhone: "" }),
    ],
    [
      "with a phone of 33 characters",
      unsound(["expected_phone"], { expected_phone: "1".repeat(33) }, { expectedPhone: "1".repeat(33) }),
    ],
    [
      "with a client_reference of 161 characters",
      unsound(
        ["client_reference"],
        { client_reference: "가".repeat(161) },
        { clientReference: "가".repeat(161) },
      ),
    ],
    [
      "with a state of 257 characters",
      unsound(["state"], { state: "가".repeat(257) }, { state: "가".repeat(257) }),
    ],
    ["with a state that holds NUL", unsound(["state"], { state: "a\0b" }, { state: "a\0b" })],
    [
      "with another site's origin",
      unsound(
        ["parent_origin"],
        { parent_origin: "https://evil.example.com" },
        { parentOrigin: "https://evil.example.com" },
      ),
    ],
    ["with an empty origin", unsound(["parent_origin"], { parent_origin: "" }, { parentOrigin: "" })],
    [
      "with a URL that differs in its query",
      unsound(
        ["return_url"],
        { return_url: "https://shop.example.com/done?x=2" },
        { returnUrl: "https://shop.example.com/done?x=2" },
      ),
    ],
    ["with an unknown mode", unsound(["mode"], { mode: "guess" }, { mode: 99 as VerificationMode })],
    [
      "with everything wrong at once",
      unsound(
        ["client_reference", "expected_phone", "parent_origin", "return_url", "state"],
        {
          mode: "match",
          client_reference: "\0",
          state: "가".repeat(257),
          parent_origin: "x",
          return_url: "y",
        },
        { mode: MATCH, clientReference: "\0", state: "가".repeat(257), parentOrigin: "x", returnUrl: "y" },
      ),
    ],
    [
      "with an unknown mode and other invalid fields",
      unsound(
        ["client_reference", "mode", "state"],
        { mode: "guess", client_reference: "\0", state: "가".repeat(257) },
        { mode: 99 as VerificationMode, clientReference: "\0", state: "가".repeat(257) },
      ),
    ],
  ])("%s", async ([, [creation, fields]]) => {
    expect(await createOverBoth(creation)).toEqual({
      code: fields.length === 0 ? "ok" : "validation_failed",
      fields,
      counted: true,
      retryAfter: false,
      rateLimit: policy("create"),
    });
  });

  test("over gRPC, with an unknown environment and other invalid fields", async () => {
    const creation = { environment: 9 as Environment, clientReference: "\0", mode: MATCH };
    const refused = await answerOf((options) =>
      shop.rpc.createVerification({ ...creation, idempotencyKey: newIdempotencyKey() }, options),
    );
    expect(refused).toMatchObject({
      code: "validation_failed",
      fields: ["client_reference", "environment", "expected_phone"],
    });
    const withoutKey = await answerOf((options) => shop.rpc.createVerification(creation, options));
    expect(withoutKey).toMatchObject({ code: "idempotency_key_required", fields: [] });
  });

  test.for([
    ["idempotency_key_required", ""],
    ["idempotency_key_invalid", "short"],
    ["idempotency_key_invalid", "k".repeat(129)],
    ["idempotency_key_invalid", "with space"],
    ["ok", "A-Z_a.z:09"],
    ["ok", "k".repeat(128)],
  ] as const)("%s for the idempotency key %j", async ([code, key]) => {
    const by = await newMerchant();
    const other = await newMerchant();
    const agreed = await overBoth(
      () => (key === "" ? by.rest.call("POST", "/v1/verifications") : by.rest.create({}, key)),
      (options) => other.rpc.createVerification({ idempotencyKey: key }, options),
    );
    expect(agreed).toMatchObject({ code, counted: true });
  });

  test("that repeats an idempotency key with another body", async () => {
    const key = newIdempotencyKey();
    await shop.rest.create({ state: "a" }, key);
    const agreed = await overBoth(
      () => shop.rest.create({ state: "b" }, key),
      (options) => shop.rpc.createVerification({ idempotencyKey: key, state: "b" }, options),
    );
    expect(agreed).toMatchObject({ code: "idempotency_conflict", counted: true });
  });

  test("without a receiving number", async () => {
    const by = await newMerchant();
    await service.client(DestinationNumberService).removeDestinationNumber({ number: by.liveNumber });
    expect(await createOverBoth({ rest: {}, rpc: {} }, by)).toEqual({
      code: "no_receiving_number",
      fields: [],
      counted: false,
      retryAfter: true,
      rateLimit: policy("create"),
    });
  });
});

describe("a verification is the same over REST and gRPC", () => {
  test("when it is created over REST and repeated over gRPC with the same idempotency key", async () => {
    const key = newIdempotencyKey();
    const { body } = await shop.rest.create({ client_reference: "r", state: "s" }, key);
    const overGrpc = await shop.rpc.createVerification({
      idempotencyKey: key,
      mode: VerificationMode.DISCOVER,
      clientReference: "r",
      state: "s",
    });
    expect(overGrpc.idempotentReplayed).toBe(true);
    expect(shown(overGrpc.verification)).toEqual(resultOf(body));
    expect([overGrpc.verificationUrl, overGrpc.destination, overGrpc.smsText]).toEqual([
      body.verification_url,
      body.destination,
      body.sms_text,
    ]);
  });

  test("when it is created over gRPC and repeated over REST with the same idempotency key", async () => {
    const key = newIdempotencyKey();
    const first = await shop.rpc.createVerification({ idempotencyKey: key, state: "s" });
    expect(first.idempotentReplayed).toBe(false);
    const { status, headers, body } = await shop.rest.create({ mode: "discover", state: "s" }, key);
    expect([status, headers.get("idempotent-replayed")]).toEqual([200, "true"]);
    expect(resultOf(body)).toEqual(shown(first.verification));
    const again = await shop.rpc.createVerification({ idempotencyKey: key, state: "s" });
    expect(again).toEqual({ ...first, idempotentReplayed: true });
  });

  test.for<[string, (by: Both) => Promise<string>]>([
    ["pending", async (by) => (await createPending(by.rest, { client_reference: "r", state: "s" })).id],
    [
      "verified",
      async (by) => {
        const { id, to, text } = await createPending(by.rest, {
          mode: "match",
          expected_phone: "01012349201",
        });
        await send({ to, text, from: "01012349201", carrier: "LGT" });
        return id;
      },
    ],
    [
      "cancelled",
      async (by) => {
        const { id } = await createPending(by.rest);
        await by.rest.cancel(id);
        return id;
      },
    ],
    [
      "expired",
      async (by) => {
        const { id } = await createPending(by.rest);
        await letExpire(service.db, id);
        return id;
      },
    ],
  ])("when it is %s", async ([status, make]) => {
    const verificationId = await make(shop);
    const { verification } = await shop.rpc.getVerification({ verificationId });
    const { body } = await shop.rest.read(verificationId);
    expect({ ...shown(verification), server_time: body.server_time }).toEqual(body);
    expect(body.status).toBe(status);
    expect(verification?.projectId).toBe(shop.projectId);
  });
});

describe("reading and cancelling get the same answers over REST and gRPC", () => {
  const over = (verificationId: string, by: { rest: Merchant; rpc: Rpc } = shop) => ({
    read: () =>
      overBoth(
        () => by.rest.read(verificationId),
        (options) => by.rpc.getVerification({ verificationId }, options),
      ),
    cancel: () =>
      overBoth(
        () => by.rest.cancel(verificationId),
        (options) => by.rpc.cancelVerification({ verificationId }, options),
      ),
  });

  test.for([
    ["an id that never existed", "vrf_00000000000000000000000000"],
    ["an id that cannot exist", "vrf_x"],
    ["another kind of id", "prj_00000000000000000000000000"],
  ] as const)("for %s", async ([, id]) => {
    expect(await over(id).read()).toMatchObject({ code: "verification_not_found", counted: true });
    expect(await over(id).cancel()).toMatchObject({ code: "verification_not_found", counted: true });
  });

  test("for a verification of another project or the other environment", async () => {
    const { id } = await createPending(shop.rest);
    for (const by of [withKey(shop.testKey), await newMerchant()]) {
      expect(await over(id, by).read()).toMatchObject({ code: "verification_not_found", counted: true });
      expect(await over(id, by).cancel()).toMatchObject({ code: "verification_not_found", counted: true });
    }
  });

  test("for a verification of the caller's own", async () => {
    const { id } = await createPending(shop.rest);
    expect(await over(id).read()).toMatchObject({ code: "ok", counted: true, rateLimit: policy("read") });
    expect(await over(id).cancel()).toMatchObject({ code: "ok", counted: true, rateLimit: policy("cancel") });
  });

  test("for one that can no longer be cancelled", async () => {
    const [verified, expired] = [await createPending(shop.rest), await createPending(shop.rest)];
    await send(verified);
    await letExpire(service.db, expired.id);
    for (const { id } of [verified, expired]) {
      expect(await over(id).cancel()).toMatchObject({ code: "verification_not_cancellable", counted: true });
    }
  });
});

test.for([
  { name: "that never existed", projectId: "prj_00000000000000000000000000" },
  { name: "that cannot exist", projectId: "junk" },
])("a verification in a project $name is not found, even with a token for every project", async ({
  projectId,
}) => {
  const { id } = await createPending((await newMerchant()).rest);
  const anybodys = service.client(VerificationService, await service.createToken({ scope: "write" }));
  const request = { verificationId: id, projectId };
  const answers = [
    await answerOf((options) => anybodys.getVerification(request, options)),
    await answerOf((options) => anybodys.cancelVerification(request, options)),
    await answerOf((options) => Array.fromAsync(anybodys.watchVerification(request, options))),
  ];
  expect(answers.map(({ code }) => code)).toEqual(answers.map(() => "verification_not_found"));
});

describe("admission is the same over REST and gRPC", () => {
  const reading = (by: { rest: Merchant; rpc: Rpc }) =>
    overBoth(
      () => by.rest.read("vrf_none"),
      (options) => by.rpc.getVerification({ verificationId: "vrf_none" }, options),
    );

  test.for([
    ["a key that was never made", newCredential("live")],
    ["a key with a typo", `${newCredential("live").slice(0, -1)}_`],
    ["a word that is no key", "hello"],
  ] as const)("with %s", async ([, key]) => {
    expect(await reading(withKey(key))).toMatchObject({
      code: "invalid_api_key",
      counted: false,
      rateLimit: null,
    });
  });

  test("with a revoked key, from the very next call on", async () => {
    const by = await newMerchant();
    expect(await reading(by)).toMatchObject({ code: "verification_not_found" });
    const keys = service.client(ApiKeyService);
    for (const { id } of (await keys.listApiKeys({ projectId: by.projectId })).apiKeys) {
      await keys.revokeApiKey({ apiKeyId: id });
    }
    expect(await reading(by)).toMatchObject({ code: "invalid_api_key", counted: false });
  });

  test("with a suspended project's key", async () => {
    const by = await newMerchant();
    await service.client(ProjectService).suspendProject({ projectId: by.projectId });
    expect(await reading(by)).toMatchObject({ code: "project_suspended", counted: false });
  });

  test("beyond the usage limit", async () => {
    const by = await newMerchant({ usageLimit: 2n });
    expect(await reading(by)).toMatchObject({ counted: true });
    expect(await reading(by)).toMatchObject({
      code: "usage_limit_exceeded",
      counted: false,
      retryAfter: true,
    });
    expect(await createOverBoth({ rest: { state: "\0" }, rpc: { state: "\0" } }, by)).toMatchObject({
      code: "usage_limit_exceeded",
      counted: false,
    });
  });

  test("beyond the rate limit, which REST and gRPC share for each kind of call", async () => {
    const by = await newMerchant({ rateLimitPerMinute: 2 });
    expect(await reading(by)).toMatchObject({ code: "verification_not_found", rateLimit: policy("read", 2) });
    expect(await reading(by)).toEqual({
      code: "rate_limited",
      fields: [],
      counted: false,
      retryAfter: true,
      rateLimit: policy("read", 2),
    });
    expect(await createOverBoth({ rest: {}, rpc: {} }, by)).toMatchObject({ code: "ok" });
    const list = await answerOf((options) => by.rpc.listVerifications({}, options));
    expect(list).toMatchObject({ code: "rate_limited", status: Code.ResourceExhausted });
    const { metadata } = await answerOf((options) => by.rpc.cancelVerification({}, options));
    expect(metadata.get("ratelimit")).toMatch(/^"cancel";r=1;t=\d+$/);
  });

  test("lists, watches and statistics count towards the rate limit for reads", async () => {
    const by = await newMerchant({ rateLimitPerMinute: 10 });
    const { id: verificationId } = await createPending(by.rest);
    await by.rest.cancel(verificationId);
    const calls: Parameters<typeof answerOf>[0][] = [
      (options) => by.rpc.listVerifications({}, options),
      (options) => Array.fromAsync(by.rpc.watchVerification({ verificationId }, options)),
      (options) => service.client(StatisticsService, by.liveKey).getStatistics({}, options),
    ];
    for (const [index, call] of calls.entries()) {
      const { code, metadata } = await answerOf(call);
      expect(code).toBe("ok");
      expect(metadata.get("ratelimit")).toMatch(new RegExp(`^"read";r=${9 - index};t=\\d+$`));
    }
  });

  test("with one usage counter: every call over either protocol gets the next number", async () => {
    const by = await newMerchant({ usageLimit: 100n });
    const grpcUsage = async (call: Parameters<typeof answerOf>[0]) => {
      const { metadata } = await answerOf(call);
      return `${metadata.get("x-usage-calls")}/${metadata.get("x-usage-limit")}`;
    };
    const { id } = await createPending(by.rest);
    const counts = [
      usageOf(await by.rest.read(id)),
      await grpcUsage((options) => by.rpc.getVerification({ verificationId: id }, options)),
      await grpcUsage((options) => by.rpc.listVerifications({}, options)),
      await grpcUsage((options) => by.rpc.listVerifications({ pageSize: -1 }, options)),
      await grpcUsage((options) => by.rpc.createVerification({}, options)),
      await grpcUsage((options) => by.rpc.cancelVerification({ verificationId: id }, options)),
      usageOf(await by.rest.cancel("vrf_none")),
      await grpcUsage(async ({ onHeader: onTrailer }) => {
        for await (const _ of by.rpc.watchVerification(
          { verificationId: id },
          onTrailer ? { onTrailer } : {},
        ));
      }),
      usageOf(await merchant(service.httpUrl, by.testKey).read(id)),
    ];
    expect(counts).toEqual(counts.map((_, index) => `${index + 2}/100`));
  });
});

/** The fields of section 2.2 of the contract, without those that only a creation has. */
function resultOf(body: Answer["body"]) {
  const { verification_url: _, destination: __, sms_text: ___, ...result } = body;
  return result;
}

/** A verification as REST shows it, made from the message alone. */
function shown(verification: Verification | undefined) {
  if (verification === undefined) throw new Error("an answer without a verification");
  const nameOf = (names: Record<string, number>, value: number) =>
    Object.entries(names).find(([, number]) => number === value)?.[0] ?? "";
  const carriers = { [Carrier.SKT]: "SKT", [Carrier.KT]: "KT", [Carrier.LGU_PLUS]: "LGU+" };
  return {
    id: verification.id,
    status: nameOf(VerificationStatus, verification.status).toLowerCase(),
    environment: nameOf(Environment, verification.environment).toLowerCase(),
    mode: nameOf(VerificationMode, verification.mode).toLowerCase(),
    phone: verification.phone ?? null,
    carrier: Object.entries(carriers).find(([value]) => Number(value) === verification.carrier)?.[1] ?? null,
    client_reference: verification.clientReference,
    state: verification.state,
    created_at: isoOf(verification.createdAt),
    expires_at: isoOf(verification.expiresAt),
    verified_at: isoOf(verification.verifiedAt),
    server_time: isoOf(verification.serverTime),
  };
}

function isoOf(timestamp: { seconds: bigint; nanos: number } | undefined): string | null {
  if (timestamp === undefined) return null;
  expect(timestamp.nanos % 1_000_000).toBe(0);
  return new Date(Number(timestamp.seconds) * 1000 + timestamp.nanos / 1_000_000).toISOString();
}
