import type { DescMethod, MessageInitShape, UnknownEnum } from "@bufbuild/protobuf";
import { Code, type Transport } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { newCredential } from "../../src/core/credential.ts";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import {
  type CreateVerificationRequestSchema,
  Environment,
  type VerificationMode,
  VerificationService,
  VerificationStatus,
  type WatchVerificationResponse,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { createPending } from "../service/pending.ts";
import { callOnce, internalServices, isUnary, rpcs } from "./every-rpc.ts";
import { answerOf, refusalOf } from "./grpc-answer.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService();
const project = await service.createProject();
const neighbour = await service.createProject();

type Need = "nothing" | "read" | "write" | "ingest" | "admin";

/** The scope that each RPC requires. The first test compares this table with the generated services. */
const needs: Record<string, Need> = {
  "grpc.health.v1.Health/Check": "nothing",
  "grpc.health.v1.Health/List": "nothing",
  "grpc.health.v1.Health/Watch": "nothing",
  "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "nothing",
  "phoneproof.v1.VerificationService/CreateVerification": "write",
  "phoneproof.v1.VerificationService/GetVerification": "read",
  "phoneproof.v1.VerificationService/CancelVerification": "write",
  "phoneproof.v1.VerificationService/ListVerifications": "read",
  "phoneproof.v1.VerificationService/WatchVerification": "read",
  "phoneproof.v1.StatisticsService/GetStatistics": "read",
  "phoneproof.v1.InboundMessageService/StreamInboundMessages": "ingest",
  "phoneproof.v1.ProjectService/CreateProject": "admin",
  "phoneproof.v1.ProjectService/GetProject": "admin",
  "phoneproof.v1.ProjectService/ListProjects": "admin",
  "phoneproof.v1.ProjectService/ListUsage": "admin",
  "phoneproof.v1.ProjectService/UpdateProject": "admin",
  "phoneproof.v1.ProjectService/SuspendProject": "admin",
  "phoneproof.v1.ProjectService/ResumeProject": "admin",
  "phoneproof.v1.ApiKeyService/CreateApiKey": "admin",
  "phoneproof.v1.ApiKeyService/ListApiKeys": "admin",
  "phoneproof.v1.ApiKeyService/RotateApiKey": "admin",
  "phoneproof.v1.ApiKeyService/RevokeApiKey": "admin",
  "phoneproof.v1.DestinationNumberService/AddDestinationNumber": "admin",
  "phoneproof.v1.DestinationNumberService/ListDestinationNumbers": "admin",
  "phoneproof.v1.DestinationNumberService/RemoveDestinationNumber": "admin",
  "phoneproof.v1.ServiceTokenService/CreateServiceToken": "admin",
  "phoneproof.v1.ServiceTokenService/ListServiceTokens": "admin",
  "phoneproof.v1.ServiceTokenService/RevokeServiceToken": "admin",
  "phoneproof.v1.AuditService/ListAuditEntries": "admin",
  "phoneproof.v1.WebhookService/SetWebhook": "admin",
  "phoneproof.v1.WebhookService/GetWebhook": "admin",
  "phoneproof.v1.WebhookService/RotateWebhookSecret": "admin",
  "phoneproof.v1.WebhookService/RemoveWebhook": "admin",
  "phoneproof.v1.WebhookService/DisableWebhook": "admin",
  "phoneproof.v1.WebhookService/ListWebhookDeliveries": "admin",
  "phoneproof.v1.WebhookService/ResendWebhookEvent": "admin",
  "phoneproof.v1.WebhookService/SendTestWebhook": "admin",
  "phoneproof.v1.VerificationHistoryService/GetVerificationHistory": "admin",
  "phoneproof.v1.ErasureService/EraseVerification": "admin",
  "phoneproof.v1.ErasureService/ErasePhone": "admin",
};

const { projectId } = project;
const revoked = await service.createToken({ scope: "admin" });
const { serviceTokens } = await service.client(ServiceTokenService).listServiceTokens({});
const serviceTokenId = serviceTokens.find(({ ending }) => revoked.endsWith(ending))?.id ?? "";
await service.client(ServiceTokenService).revokeServiceToken({ serviceTokenId });

/** Every kind of credential with the scopes that it grants, or the refusal that it gets. */
const credentials: Record<string, { header: string; allows: readonly Need[] | "missing" | "invalid" }> = {
  "the installation's admin token": bearer(service.adminToken, ["read", "write", "ingest", "admin"]),
  "an admin token": bearer(await service.createToken({ scope: "admin" }), [
    "read",
    "write",
    "ingest",
    "admin",
  ]),
  "a read token": bearer(await service.createToken({ scope: "read" }), ["read"]),
  "a read token of one project": bearer(await service.createToken({ scope: "read", projectId }), ["read"]),
  "a write token": bearer(await service.createToken({ scope: "write" }), ["read", "write"]),
  "a write token of one project": bearer(await service.createToken({ scope: "write", projectId }), [
    "read",
    "write",
  ]),
  "an ingest token": bearer(await service.createToken({ scope: "ingest", source: "gateway" }), ["ingest"]),
  "a merchant's test key": bearer(project.testKey, ["read", "write"]),
  "a merchant's live key": bearer(project.liveKey, ["read", "write"]),
  "a revoked admin token": bearer(revoked, "invalid"),
  "a token that was never made": bearer(newCredential("svc"), "invalid"),
  "a key that was never made": bearer(newCredential("live"), "invalid"),
  "a mistyped key": bearer(
    `${project.liveKey.slice(0, -1)}${project.liveKey.endsWith("0") ? "1" : "0"}`,
    "invalid",
  ),
  "an admin token followed by another word": { header: `Bearer ${service.adminToken} x`, allows: "invalid" },
  "another authorization scheme": { header: `Basic ${service.adminToken}`, allows: "invalid" },
  "no credential": { header: "", allows: "missing" },
};

function bearer(credential: string, allows: readonly Need[] | "invalid") {
  return { header: `Bearer ${credential}`, allows };
}

test("the table of required scopes lists every RPC and nothing else", () => {
  expect(rpcs.map(({ name }) => name).sort()).toEqual(Object.keys(needs).sort());
});

test("internal services are not exposed on the gRPC port, not even to the admin token", async () => {
  const internal = internalServices.flatMap(({ methods }) => methods.filter(isUnary));
  expect(internal.length).toBeGreaterThan(0);
  const transport = transportWith(`Bearer ${service.adminToken}`);
  for (const method of internal) {
    const answer = transport.unary(method, undefined, undefined, undefined, {});
    await expect(answer).rejects.toMatchObject({ code: Code.Unimplemented });
  }
});

interface Refusal {
  readonly code: string;
  readonly status: Code | undefined;
}

/** Calls with an empty request. Returns the refusal if it is about authentication or permission. */
async function refusalFor(transport: Transport, method: DescMethod): Promise<Refusal | undefined> {
  try {
    await callOnce(transport, method, {});
    return undefined;
  } catch (error) {
    const { code, status } = refusalOf(error);
    const isOfAccess = status === Code.Unauthenticated || status === Code.PermissionDenied;
    return isOfAccess ? { code, status } : undefined;
  }
}

const transportWith = (authorization: string) => transportTo(service.grpcAddress, authorization);

const insufficientScope: Refusal = { code: "insufficient_scope", status: Code.PermissionDenied };
const missingKey: Refusal = { code: "missing_api_key", status: Code.Unauthenticated };
const invalidKey: Refusal = { code: "invalid_api_key", status: Code.Unauthenticated };

function refusalDue(
  need: Need | undefined,
  allows: readonly Need[] | "missing" | "invalid",
): Refusal | undefined {
  if (need === "nothing") return undefined;
  if (allows === "missing") return missingKey;
  if (allows === "invalid") return invalidKey;
  return need && allows.includes(need) ? undefined : insufficientScope;
}

test.for([
  ["before", (valid: string) => [valid, "Bearer other"]],
  ["behind", (valid: string) => ["Bearer other", valid]],
] as const)("a credential is invalid %s another one", async ([, both]) => {
  const connection = connectRaw(service.grpcAddress);
  const { parent, name } = ProjectService.method.listProjects;
  const authorization = both(`Bearer ${service.adminToken}`);
  const { code, detail } = await connection.call(`${parent.typeName}/${name}`, { authorization }).status;
  connection.destroy();
  expect([code, detail?.code]).toEqual([Code.Unauthenticated, "invalid_api_key"]);
});

test.for(Object.entries(credentials))("%s is accepted for exactly the RPCs of its scopes", async ([
  ,
  { header, allows },
]) => {
  const transport = transportWith(header);
  const refusals = await Promise.all(
    rpcs.map(async ({ name, method }) => [name, await refusalFor(transport, method)] as const),
  );
  expect(Object.fromEntries(refusals)).toEqual(
    Object.fromEntries(rpcs.map(({ name }) => [name, refusalDue(needs[name], allows)])),
  );
});

test("an inbound stream without the ingest scope is refused when it is opened, before any message is sent", async () => {
  for (const credential of [project.liveKey, await service.createToken({ scope: "read" })]) {
    const client = service.client(InboundMessageService, credential);
    const receipts = client.streamInboundMessages((async function* () {})());
    expect(await answerOf(async () => Array.fromAsync(receipts))).toMatchObject(insufficientScope);
  }
});

test("calls refused for a missing scope do not use up the key's rate limit", async () => {
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 1 });
  const projects = service.client(ProjectService, liveKey);
  for (let call = 0; call < 3; call++) {
    expect(await answerOf((options) => projects.listProjects({}, options))).toMatchObject(insufficientScope);
  }
  const verifications = service.client(VerificationService, liveKey);
  expect(await answerOf((options) => verifications.listVerifications({}, options))).toMatchObject({
    code: "ok",
  });
});

test.for([
  "cli",
  "window",
])("no ingest token can be created for the source %s, which is reserved for phoneproof's own messages", async (source) => {
  const tokens = service.client(ServiceTokenService);
  const make = (name: string) =>
    answerOf(() => tokens.createServiceToken({ scope: ServiceTokenScope.INGEST, source: name }));
  for (const name of [source, source.toUpperCase()]) {
    expect(await make(name)).toMatchObject({ code: "validation_failed", fields: ["source"] });
  }
  expect(await make(`${source}-2`)).toMatchObject({ code: "ok" });
});

test("a missing scope is reported before validation errors", async () => {
  const client = service.client(VerificationService, await service.createToken({ scope: "read" }));
  const unknown = 99 as UnknownEnum;
  expect(await answerOf((options) => client.createVerification({ mode: unknown }, options))).toMatchObject(
    insufficientScope,
  );
  expect(
    await answerOf((options) => client.cancelVerification({ environment: unknown }, options)),
  ).toMatchObject(insufficientScope);
});

test("another project is refused before validation errors, and not counted", async () => {
  const client = service.client(VerificationService, project.liveKey);
  const request = { projectId: neighbour.projectId, environment: 99 as UnknownEnum };
  const calls = [
    client.createVerification,
    client.getVerification,
    client.cancelVerification,
    client.listVerifications,
    (...sent: Parameters<typeof client.watchVerification>) =>
      Array.fromAsync(client.watchVerification(...sent)),
  ];
  for (const call of calls) {
    const refused = await answerOf<unknown>((options) => call(request, options));
    expect(refused).toMatchObject(insufficientScope);
    expect(refused.metadata.get("x-usage-calls")).toBeNull();
    const alone = await answerOf<unknown>((options) =>
      call({ environment: request.environment, idempotencyKey: newIdempotencyKey() }, options),
    );
    expect(alone).toMatchObject({ code: "validation_failed", fields: ["environment"] });
  }
});

test("a suspended project's key is refused by every verification RPC until the project is resumed", async () => {
  const { projectId, liveKey } = await service.createProject();
  const projects = service.client(ProjectService);
  const client = service.client(VerificationService, liveKey);
  const list = () => answerOf((options) => client.listVerifications({}, options));
  expect(await list()).toMatchObject({ code: "ok" });
  await projects.suspendProject({ projectId });
  const transport = transportWith(`Bearer ${liveKey}`);
  for (const method of VerificationService.methods) {
    expect(await refusalFor(transport, method)).toEqual({
      code: "project_suspended",
      status: Code.PermissionDenied,
    });
  }
  await projects.resumeProject({ projectId });
  expect(await list()).toMatchObject({ code: "ok" });
});

test("a merchant's call that names another project or environment is refused and not counted", async () => {
  const { liveKey } = await service.createProject();
  const client = service.client(VerificationService, liveKey);
  for (const named of [{ projectId: neighbour.projectId }, { environment: Environment.TEST }]) {
    const refused = await answerOf((options) =>
      client.createVerification({ ...named, idempotencyKey: newIdempotencyKey() }, options),
    );
    expect(refused).toMatchObject(insufficientScope);
    expect(refused.metadata.get("x-usage-calls")).toBeNull();
  }
  const listed = await answerOf((options) => client.listVerifications({}, options));
  expect(listed.metadata.get("x-usage-calls")).toBe("1");
});

describe("access to a verification", async () => {
  const shop = merchant(service.httpUrl, project.liveKey);
  const { id: verificationId } = await createPending(shop);
  const readToken = await service.createToken({ scope: "read" });
  const own = { projectId, environment: Environment.LIVE };
  const notFound = { code: "verification_not_found", status: Code.NotFound };
  const ok = { code: "ok" };

  test.for<[string, string, object, object]>([
    ["its project's key", project.liveKey, {}, ok],
    ["its project's key, naming project and environment", project.liveKey, own, ok],
    [
      "its project's key, naming another project",
      project.liveKey,
      { projectId: neighbour.projectId },
      insufficientScope,
    ],
    [
      "its project's key, naming a project that does not exist",
      project.liveKey,
      { projectId: "prj_none" },
      insufficientScope,
    ],
    [
      "its project's key, naming the other environment",
      project.liveKey,
      { environment: Environment.TEST },
      insufficientScope,
    ],
    ["its project's key of the other environment", project.testKey, {}, notFound],
    ["another project's key", neighbour.liveKey, {}, notFound],
    ["a token of its project", await service.createToken({ scope: "read", projectId }), {}, ok],
    [
      "a token of another project",
      await service.createToken({ scope: "read", projectId: neighbour.projectId }),
      {},
      notFound,
    ],
    [
      "a token of another project, naming the verification's project",
      await service.createToken({ scope: "write", projectId: neighbour.projectId }),
      { projectId },
      insufficientScope,
    ],
    ["a token for every project", readToken, {}, ok],
    ["a token for every project, naming the verification's project and environment", readToken, own, ok],
    [
      "a token for every project, naming another project",
      readToken,
      { projectId: neighbour.projectId },
      notFound,
    ],
    [
      "a token for every project, naming a project that does not exist",
      readToken,
      { projectId: "prj_none" },
      notFound,
    ],
    [
      "a token for every project, naming the other environment",
      readToken,
      { environment: Environment.TEST },
      notFound,
    ],
    ["the admin token", service.adminToken, {}, ok],
  ])("reading and watching it with %s", async ([, credential, named, expected]) => {
    const client = service.client(VerificationService, credential);
    const request = { verificationId, ...named };
    const answers = [
      await answerOf((options) => client.getVerification(request, options)),
      await answerOf(async (options) => {
        const left = new AbortController();
        const seen = client.watchVerification(request, { ...options, signal: left.signal });
        const first = await seen[Symbol.asyncIterator]().next();
        left.abort();
        return first.value as WatchVerificationResponse | undefined;
      }),
    ];
    for (const answer of answers) {
      expect(answer).toMatchObject(expected);
      if (answer.code === "ok") expect(answer.message?.verification?.id).toBe(verificationId);
    }
  });

  test("a credential of another project or environment, or without the write scope, cannot cancel it", async () => {
    for (const [credential, expected] of [
      [project.testKey, notFound],
      [neighbour.liveKey, notFound],
      [await service.createToken({ scope: "write", projectId: neighbour.projectId }), notFound],
      [readToken, insufficientScope],
    ] as const) {
      const client = service.client(VerificationService, credential);
      expect(
        await answerOf((options) => client.cancelVerification({ verificationId }, options)),
      ).toMatchObject(expected);
    }
    expect((await shop.read(verificationId)).body.status).toBe("pending");
  });
});

describe("a token of one project", async () => {
  const client = service.client(
    VerificationService,
    await service.createToken({ scope: "write", projectId }),
  );

  test("creates, lists and cancels in its project, in the environment that the request names", async () => {
    const { message: created } = await answerOf((options) =>
      client.createVerification({ environment: Environment.TEST, idempotencyKey: "token-create-1" }, options),
    );
    expect(created?.destination).toBe(project.testNumber);
    const verificationId = created?.verification?.id ?? "";
    expect((await merchant(service.httpUrl, project.testKey).read(verificationId)).status).toBe(200);
    const { verifications } = await client.listVerifications({ environment: Environment.TEST });
    expect(verifications.map(({ id }) => id)).toContain(verificationId);
    const { verification } = await client.cancelVerification({ verificationId });
    expect(verification?.status).toBe(VerificationStatus.CANCELLED);
  });

  test("cannot list or create in another project", async () => {
    const { projectId: elsewhere } = neighbour;
    const environment = Environment.LIVE;
    for (const answer of [
      await answerOf((options) => client.listVerifications({ projectId: elsewhere }, options)),
      await answerOf((options) =>
        client.createVerification(
          { projectId: elsewhere, environment, idempotencyKey: "token-create-2" },
          options,
        ),
      ),
    ]) {
      expect(answer).toMatchObject(insufficientScope);
    }
  });

  test("gets a request id but no usage or rate limit headers", async () => {
    const { metadata } = await answerOf((options) => client.listVerifications({}, options));
    expect(metadata.get("x-request-id")).toMatch(/^req_/);
    for (const name of ["x-usage-calls", "x-usage-limit", "ratelimit", "ratelimit-policy"]) {
      expect(metadata.has(name)).toBe(false);
    }
  });
});

describe("access to statistics", async () => {
  const ok = { code: "ok" };
  const invalid = { code: "validation_failed", fields: ["project_id"] };
  const tokenOf = (projectId?: string) =>
    service.createToken({ scope: "read", ...(projectId && { projectId }) });
  const elsewhere = { projectId: neighbour.projectId };

  test.for<[string, string, object, object]>([
    ["its project's key", project.liveKey, {}, ok],
    ["its project's key, for another project", project.liveKey, elsewhere, insufficientScope],
    [
      "its project's key, for the other environment",
      project.liveKey,
      { environment: Environment.TEST },
      insufficientScope,
    ],
    ["a token of its project", await tokenOf(projectId), {}, ok],
    ["a token of its project, for another project", await tokenOf(projectId), elsewhere, insufficientScope],
    ["a token for every project, naming one", await tokenOf(), { projectId }, ok],
    ["a token for every project, naming none", await tokenOf(), {}, invalid],
    ["the admin token", service.adminToken, { projectId }, ok],
    [
      "the admin token, for a project that does not exist",
      service.adminToken,
      { projectId: "prj_01kaex4mpyf2xbtyt1s6vdr4e9" },
      { code: "not_found" },
    ],
  ])("with %s", async ([, credential, named, expected]) => {
    const client = service.client(StatisticsService, credential);
    const answer = await answerOf((options) => client.getStatistics(named, options));
    expect(answer).toMatchObject(expected);
    if (credential !== project.liveKey || answer.message === undefined) return;
    expect(answer.message.environments.map(({ environment }) => environment)).toEqual([Environment.LIVE]);
    expect(answer.metadata.get("x-usage-calls")).not.toBeNull();
  });
});

describe("a token for every project", async () => {
  const client = service.client(VerificationService, await service.createToken({ scope: "write" }));

  test("must name project and environment to create, and the project to list", async () => {
    expect(
      await answerOf((options) => client.createVerification({ idempotencyKey: "token-create-3" }, options)),
    ).toMatchObject({
      code: "validation_failed",
      status: Code.InvalidArgument,
      fields: ["environment", "project_id"],
    });
    expect(await answerOf((options) => client.listVerifications({}, options))).toMatchObject({
      code: "validation_failed",
      fields: ["project_id"],
    });
  });

  test.for<[string, MessageInitShape<typeof CreateVerificationRequestSchema>, string[]]>([
    ["without a project", {}, ["client_reference", "environment", "project_id", "state"]],
    [
      "in an unknown environment",
      {
        projectId,
        environment: 9 as Environment,
        mode: 9 as VerificationMode,
        returnUrl: "https://x.example",
      },
      ["client_reference", "environment", "mode", "return_url", "state"],
    ],
  ])("gets all validation errors of a creation at once: %s", async ([, more, fields]) => {
    const creation = { clientReference: "a".repeat(161), state: "\0", ...more };
    expect(
      await answerOf((options) =>
        client.createVerification({ ...creation, idempotencyKey: "token-create-7" }, options),
      ),
    ).toMatchObject({ code: "validation_failed", fields });
    expect(await answerOf((options) => client.createVerification(creation, options))).toMatchObject({
      code: "idempotency_key_required",
      fields: [],
    });
  });

  test("gets all validation errors of a request for statistics at once", async () => {
    const statistics = service.client(StatisticsService, await service.createToken({ scope: "read" }));
    const environment = 9 as Environment;
    expect(
      await answerOf((options) => statistics.getStatistics({ environment, hours: -1 }, options)),
    ).toMatchObject({ code: "validation_failed", fields: ["environment", "hours", "project_id"] });
  });

  test("cannot create in a project that does not exist or is suspended", async () => {
    const { projectId: suspended } = await service.createProject();
    await service.client(ProjectService).suspendProject({ projectId: suspended });
    const environment = Environment.LIVE;
    for (const [where, code] of [
      ["prj_00000000000000000000000000", "not_found"],
      ["prj_none", "not_found"],
      [suspended, "project_suspended"],
    ] as const) {
      for (const idempotencyKey of ["token-create-4", ""]) {
        expect(
          await answerOf((options) =>
            client.createVerification({ projectId: where, environment, idempotencyKey }, options),
          ),
        ).toMatchObject({ code });
      }
    }
  });
});
