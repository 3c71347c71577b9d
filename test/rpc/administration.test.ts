/** The bounds of what administrators can set on projects and service tokens, and the fields that refusals name. */
import { create, type MessageInitShape, toBinary, type UnknownEnum } from "@bufbuild/protobuf";
import { type CallOptions, ConnectError } from "@connectrpc/connect";
import { describe, expect, onTestFinished, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";
import {
  CodeFormat,
  ListProjectsResponseSchema,
  ProjectService,
} from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ListServiceTokensResponseSchema,
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { untilWaiting } from "../service/barrier.ts";
import { answerOf } from "./grpc-answer.ts";

const service = await startTestService({ ROLES: "api" });
const projects = service.client(ProjectService);
const tokens = service.client(ServiceTokenService);

const { NUMERIC, ALPHANUMERIC } = CodeFormat;

/** Of every list that administrators read as a whole or in pages. */
const largestPage = 200;

test.for<[field: string, taken: readonly object[], refused: readonly object[]]>([
  [
    "name",
    [{ name: "가".repeat(10) }, { name: "متجر", smsTemplate: "본인확인 {code}" }],
    [
      ...["", " ", "a".repeat(101), "a\0"].map((name) => ({ name })),
      // Also with a template that does not contain the name: the window shows the name in any case.
      ...["abc\u202emoc.evil", "\u200b", "\u3164", "a\nb", "\u001b[31mShop", "\u2068Shop"].map((name) => ({
        name,
        smsTemplate: "본인확인 {code}",
      })),
    ],
  ],
  [
    "code_length",
    [
      { codeLength: 6 },
      { codeLength: 10 },
      { codeFormat: ALPHANUMERIC, codeLength: 6 },
      { codeFormat: ALPHANUMERIC, codeLength: 12 },
    ],
    [
      { codeLength: 5 },
      { codeFormat: NUMERIC, codeLength: 11 },
      { codeFormat: ALPHANUMERIC, codeLength: 5 },
      { codeFormat: ALPHANUMERIC, codeLength: 13 },
    ],
  ],
  [
    "validity_seconds",
    [{ validitySeconds: 60 }, { validitySeconds: 3_600 }],
    [{ validitySeconds: 59 }, { validitySeconds: 3_601 }],
  ],
  [
    "rate_limit_per_minute",
    [{ rateLimitPerMinute: 1 }, { rateLimitPerMinute: 1_000_000 }],
    [{ rateLimitPerMinute: 0 }, { rateLimitPerMinute: 1_000_001 }],
  ],
  ["usage_limit", [{ usageLimit: 0n }], [{ usageLimit: -2n }]],
  [
    "parent_origin",
    [
      { parentOrigin: "https://shop.example" },
      { parentOrigin: "http://localhost:3000" },
      { parentOrigin: "http://[::1]:3000" },
    ],
    [
      { parentOrigin: "https://shop.example/" },
      { parentOrigin: "https://shop.example/path" },
      { parentOrigin: "https://shop.example:443" },
      { parentOrigin: "https://Shop.example" },
      { parentOrigin: "https://user@shop.example" },
      { parentOrigin: "https://*.shop.example" },
      { parentOrigin: "https://쇼핑몰.한국" },
      { parentOrigin: "ftp://shop.example" },
      { parentOrigin: "shop.example" },
      { parentOrigin: "*" },
    ],
  ],
  [
    "return_url",
    [{ returnUrl: "https://shop.example/done?order=7#end" }, { returnUrl: "http://localhost:3000" }],
    [
      { returnUrl: "https://user@shop.example/" },
      { returnUrl: "https://:secret@shop.example/" },
      { returnUrl: "https://shop.example/a b" },
      { returnUrl: "https://shop.example\\done" },
      { returnUrl: "javascript:alert(1)" },
      { returnUrl: "/done" },
      { returnUrl: "https:shop.example/done" },
      { returnUrl: "https:/done" },
    ],
  ],
])("a project's %s is accepted within its bounds and refused outside them, on creation and on update", async ([
  field,
  taken,
  refused,
]) => {
  const { project } = await projects.createProject({ name: "Shop" });
  const projectId = project?.id ?? "";
  const both = (settings: object) =>
    Promise.all([
      answerOf((options) => projects.createProject({ name: "Shop", ...settings }, options)),
      answerOf((options) => projects.updateProject({ projectId, ...settings }, options)),
    ]);
  for (const settings of taken) {
    for (const { code } of await both(settings)) expect([settings, code]).toEqual([settings, "ok"]);
  }
  for (const settings of refused) {
    for (const { code, fields } of await both(settings)) {
      expect([settings, code, fields]).toEqual([settings, "validation_failed", [field]]);
    }
  }
});

test("a negative usage limit at creation is refused with how to have none", async () => {
  const creation = projects.createProject({ name: "Shop", usageLimit: -1n });
  const error = ConnectError.from(await creation.catch((thrown: unknown) => thrown));
  expect(error.findDetails(ErrorDetailSchema)[0]?.fields).toMatchObject([
    { field: "usage_limit", message: expect.stringContaining("leave it out at creation") },
  ]);
});

test("a project whose stored name no longer passes validation can still be updated", async () => {
  const { project } = await projects.createProject({ name: "Shop", smsTemplate: "본인확인 {code}" });
  const projectId = project?.id ?? "";
  await service.db.query("UPDATE project SET name = $1 WHERE name = 'Shop' AND sms_template IS NOT NULL", [
    "Shop\u202e",
  ]);
  const { project: changed } = await projects.updateProject({ projectId, rateLimitPerMinute: 7 });
  expect(changed).toMatchObject({ name: "Shop\u202e", rateLimitPerMinute: 7 });
});

test.for([
  ["https://쇼핑몰.한국", "https://xn--352bl7khqr.xn--3e0b707e"],
  ["http://쇼핑몰.한국:8080/결제", "http://xn--352bl7khqr.xn--3e0b707e:8080"],
  ["https://Shop.example:443", "https://shop.example"],
  ["http://shop.example/", "http://shop.example"],
])("the origin %s, which no browser writes like that, is refused with the accepted form named", async ([
  sent = "",
  wanted = "",
]) => {
  const refusal = await projects.createProject({ name: "Shop", parentOrigin: sent }).catch(ConnectError.from);
  const [detail] = refusal instanceof ConnectError ? refusal.findDetails(ErrorDetailSchema) : [];
  expect(detail?.code).toBe("validation_failed");
  expect(detail?.fields.map(({ field, message }) => [field, message])).toEqual([
    ["parent_origin", `must be an http(s) origin without a path, as a browser writes it: ${wanted}`],
  ]);
  const { project } = await projects.createProject({ name: "Shop", parentOrigin: wanted });
  expect(project?.parentOrigin).toBe(wanted);
});

test("a field that breaks two rules is named once in the refusal", async () => {
  const smsTemplate = `${"가".repeat(60)}a{code}a`;
  const { fields } = await answerOf((options) =>
    projects.createProject({ name: "Shop", smsTemplate }, options),
  );
  expect(fields).toEqual(["sms_template"]);
});

test("a service token accepts only the restrictions of its scope: a project, or an environment and numbers", async () => {
  const { projectId } = await service.createProject();
  const { READ, WRITE, INGEST, ADMIN } = ServiceTokenScope;
  const limits = {
    project_id: { projectId },
    environment: { environment: Environment.LIVE },
    numbers: { numbers: ["16660000"] },
  };
  const takenBy: Record<keyof typeof limits, readonly ServiceTokenScope[]> = {
    project_id: [READ, WRITE],
    environment: [INGEST],
    numbers: [INGEST],
  };
  for (const scope of [READ, WRITE, INGEST, ADMIN]) {
    const source = scope === INGEST ? "gateway-1" : "";
    for (const [field, limit] of Object.entries(limits)) {
      const result = await answerOf((options) =>
        tokens.createServiceToken({ scope, source, ...limit }, options),
      );
      const isTaken = takenBy[field as keyof typeof limits].includes(scope);
      expect([scope, result.code, result.fields]).toEqual(
        isTaken ? [scope, "ok", []] : [scope, "validation_failed", [field]],
      );
    }
  }
});

describe("an unknown enum value is reported together with all other validation errors", async () => {
  const { projectId } = await service.createProject();
  const keys = service.client(ApiKeyService);
  const numbers = service.client(DestinationNumberService);
  const webhooks = service.client(WebhookService);
  const unknown = 99 as UnknownEnum;

  test.for<[string, Parameters<typeof answerOf>[0], string[]]>([
    [
      "a new project",
      (options) => projects.createProject({ name: "", codeFormat: unknown, codeLength: 12 }, options),
      ["code_format", "name"],
    ],
    [
      "an update of a project",
      (options) => projects.updateProject({ projectId, codeFormat: unknown, validitySeconds: 1 }, options),
      ["code_format", "validity_seconds"],
    ],
    [
      "a new API key",
      (options) => keys.createApiKey({ projectId, environment: unknown, name: "a\0" }, options),
      ["environment", "name"],
    ],
    [
      "a new number",
      (options) => numbers.addDestinationNumber({ number: "x", environment: unknown }, options),
      ["environment", "number"],
    ],
    [
      "a new token",
      (options) =>
        tokens.createServiceToken(
          {
            scope: unknown,
            environment: unknown,
            name: "n".repeat(101),
            source: "gateway-1",
            numbers: ["x"],
          },
          options,
        ),
      ["environment", "name", "numbers", "scope"],
    ],
    [
      "a new token with a known scope",
      (options) =>
        tokens.createServiceToken(
          { scope: ServiceTokenScope.READ, environment: unknown, source: "x" },
          options,
        ),
      ["environment", "source"],
    ],
    [
      "a new webhook",
      (options) =>
        webhooks.setWebhook(
          { projectId, environment: unknown, url: "nowhere", events: [unknown, unknown] },
          options,
        ),
      ["environment", "events", "url"],
    ],
    [
      "disabling a webhook",
      (options) => webhooks.disableWebhook({ projectId, environment: unknown, url: "a\0" }, options),
      ["environment", "url"],
    ],
    [
      "a sample event",
      (options) => webhooks.sendTestWebhook({ projectId, environment: unknown, type: unknown }, options),
      ["environment", "type"],
    ],
    [
      "a list of deliveries",
      (options) =>
        webhooks.listWebhookDeliveries({ projectId, environment: unknown, pageSize: 100_000 }, options),
      ["environment", "page_size"],
    ],
    [
      "a list of numbers",
      (options) =>
        numbers.listDestinationNumbers(
          { projectId, environment: unknown, pageSize: largestPage + 1, pageToken: "x" },
          options,
        ),
      ["environment", "page_size", "page_token"],
    ],
  ])("%s", async ([, call, fields]) => {
    expect(await answerOf(call)).toMatchObject({ code: "validation_failed", fields });
  });
});

test("suspending and resuming a project notifies other processes to reload; changes of webhooks do not", async () => {
  const listener = await service.db.connect();
  onTestFinished(() => listener.release(true));
  let notices = 0;
  listener.on("notification", () => (notices += 1));
  await listener.query("LISTEN phoneproof_directory");
  const heardSoFar = async () => {
    // Notifications of earlier commits are delivered before this query is answered.
    await listener.query("SELECT 1");
    return notices;
  };
  const announced = async (act: () => Promise<unknown>) => {
    const before = await heardSoFar();
    await act();
    return (await heardSoFar()) - before;
  };
  const webhooks = service.client(WebhookService);
  const { projectId } = await service.createProject();
  const place = { projectId, environment: Environment.LIVE };
  const url = "https://shop.example/webhooks";
  expect(await announced(() => webhooks.setWebhook({ ...place, url }))).toBe(0);
  expect(await announced(() => webhooks.rotateWebhookSecret(place))).toBe(0);
  expect(await announced(() => webhooks.disableWebhook(place))).toBe(0);
  const absent = "prj_00000000000000000000000000";
  const resume = (id: string) => answerOf(() => projects.resumeProject({ projectId: id }));
  expect(await announced(() => resume(absent))).toBe(0);
  expect(await announced(() => projects.suspendProject({ projectId }))).toBe(1);
  expect(await announced(() => resume(projectId))).toBe(1);
});

test("listing the numbers of a project that does not exist is not_found, not an empty list", async () => {
  const absent = "prj_00000000000000000000000000";
  expect(
    await answerOf((options) =>
      service.client(DestinationNumberService).listDestinationNumbers({ projectId: absent }, options),
    ),
  ).toMatchObject({ code: "not_found" });
});

test("numbers can be listed by project, by environment or by both", async () => {
  const [one, other] = [await service.createProject(), await service.createProject()];
  const numbers = service.client(DestinationNumberService);
  const listed = async (filter: { projectId?: string; environment?: Environment }) => {
    const { destinationNumbers } = await numbers.listDestinationNumbers(filter);
    const known = [one.liveNumber, one.testNumber, other.liveNumber, other.testNumber];
    return destinationNumbers.map(({ number }) => number).filter((number) => known.includes(number));
  };
  const { projectId } = one;
  expect((await listed({ projectId })).sort()).toEqual([one.liveNumber, one.testNumber].sort());
  expect(await listed({ projectId, environment: Environment.TEST })).toEqual([one.testNumber]);
  expect((await listed({ environment: Environment.LIVE })).sort()).toEqual(
    [one.liveNumber, other.liveNumber].sort(),
  );
});

/** All that a list returns page by page, and the number of its pages. */
async function readPages<Item>(
  ask: (page: { pageSize: number; pageToken: string }) => Promise<readonly [Item[], string]>,
  pageSize = 2,
) {
  const read: Item[] = [];
  let pages = 0;
  for (let pageToken = ""; pages === 0 || pageToken !== ""; pages++) {
    const [items, next] = await ask({ pageSize, pageToken });
    expect(items.length).toBeLessThanOrEqual(pageSize);
    read.push(...items);
    pageToken = next;
  }
  return { read, pages };
}

test("the pages of the projects are the whole list, and what is added meanwhile is on the last one", async () => {
  for (let made = 0; made < 5; made++) await projects.createProject({ name: `Paged ${made}` });
  const { projects: all, nextPageToken } = await projects.listProjects({});
  expect(nextPageToken).toBe("");
  let added: string | undefined;
  const { read, pages } = await readPages(async (page) => {
    const answer = await projects.listProjects(page);
    added ??= (await projects.createProject({ name: "Late" })).project?.id;
    return [answer.projects, answer.nextPageToken];
  });
  expect(read.map(({ id }) => id)).toEqual([...all.map(({ id }) => id), added]);
  expect(pages).toBe(Math.ceil((all.length + 1) / 2));
  // A page that ends with the list's last entry is the last one.
  const whole = await projects.listProjects({ pageSize: all.length + 1 });
  expect([whole.projects.length, whole.nextPageToken]).toEqual([all.length + 1, ""]);
  for (const wrong of [{ pageSize: -1 }, { pageSize: largestPage + 1 }]) {
    const answer = await answerOf((options) => projects.listProjects(wrong, options));
    expect(answer).toMatchObject({ code: "validation_failed", fields: ["page_size"] });
  }
});

test("the largest page of the largest projects is no larger than what gRPC clients accept", async () => {
  const { project } = await projects.createProject({
    name: "😀".repeat(100),
    smsTemplate: `${"가".repeat(30)} {code}`,
    parentOrigin: `https://${"a.".repeat(1_016)}example`,
    returnUrl: `https://shop.example/${"😀".repeat(2_027)}`,
    usageLimit: BigInt(Number.MAX_SAFE_INTEGER),
    rateLimitPerMinute: 1_000_000,
  });
  const page = { projects: Array.from({ length: largestPage }, () => project ?? {}) };
  const { length } = toBinary(ListProjectsResponseSchema, create(ListProjectsResponseSchema, page));
  expect(length).toBeGreaterThan(largestPage * 10_000);
  expect(length).toBeLessThan(4 * 1024 * 1024);
});

test("the pages of a project's keys are the whole list, and their tokens are no other project's", async () => {
  const { projectId } = await service.createProject();
  const { projectId: other } = await service.createProject();
  const keys = service.client(ApiKeyService);
  for (let made = 0; made < 3; made++) await keys.createApiKey({ projectId, environment: Environment.LIVE });
  const { apiKeys: all, nextPageToken } = await keys.listApiKeys({ projectId });
  expect([all.length, nextPageToken]).toEqual([5, ""]);
  const { read, pages } = await readPages(async (page) => {
    const answer = await keys.listApiKeys({ projectId, ...page });
    return [answer.apiKeys, answer.nextPageToken];
  });
  expect([read, pages]).toEqual([all, 3]);
  const { nextPageToken: pageToken } = await keys.listApiKeys({ projectId, pageSize: 2 });
  const fieldsOf = async (request: object) =>
    (await answerOf((options) => keys.listApiKeys(request, options))).fields;
  expect(await fieldsOf({ projectId: other, pageToken })).toEqual(["page_token"]);
  expect(await fieldsOf({ projectId, pageSize: largestPage + 1, pageToken: "x" })).toEqual([
    "page_size",
    "page_token",
  ]);
});

test("the pages of the tokens are the whole list, and none is larger than what gRPC clients accept", async () => {
  await service.createToken({ scope: "read" });
  // Each with as many numbers as a request has room for.
  await service.db.query(
    `INSERT INTO service_token (id, scope, source, digest, ending, numbers)
     SELECT uuidv7(n * interval '1 millisecond'), 'ingest', 'large', sha256(n::text::bytea), 'abcd',
       ARRAY(SELECT '0200' || lpad(i::text, 6, '0') FROM generate_series(1, 5000) i)
     FROM generate_series(1, 80) n`,
  );
  onTestFinished(async () => {
    await service.db.query("DELETE FROM service_token WHERE source = 'large'");
  });
  const bytesOf = (page: MessageInitShape<typeof ListServiceTokensResponseSchema>) =>
    toBinary(ListServiceTokensResponseSchema, create(ListServiceTokensResponseSchema, page)).length;
  const accepted = 4 * 1024 * 1024;
  const whole = await tokens.listServiceTokens({});
  expect(bytesOf(whole)).toBeGreaterThan(accepted);
  expect(whole.nextPageToken).toBe("");
  const { read } = await readPages(async (page) => {
    const answer = await tokens.listServiceTokens(page);
    expect(bytesOf(answer)).toBeLessThan(accepted);
    return [answer.serviceTokens, answer.nextPageToken];
  }, largestPage);
  expect(read).toEqual(whole.serviceTokens);
  for (const name of ["One", "Another"]) await projects.createProject({ name });
  const { nextPageToken: pageToken } = await projects.listProjects({ pageSize: 1 });
  const ofProjects = await answerOf((options) => tokens.listServiceTokens({ pageToken }, options));
  expect(ofProjects).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
});

test("the pages of the numbers are the whole list of the filter, and their tokens are no other list's", async () => {
  const { projectId } = await service.createProject();
  const numbers = service.client(DestinationNumberService);
  const environment = Environment.LIVE;
  for (let made = 0; made < 4; made++) {
    const number = `02030000${70 + made}`;
    await numbers.addDestinationNumber({ number, environment, projectId });
  }
  const filter = { projectId, environment };
  const { destinationNumbers: all } = await numbers.listDestinationNumbers(filter);
  const { read, pages } = await readPages(async (page) => {
    const answer = await numbers.listDestinationNumbers({ ...filter, ...page });
    return [answer.destinationNumbers, answer.nextPageToken];
  });
  expect([read, pages]).toEqual([all, 3]);
  const { nextPageToken: pageToken } = await numbers.listDestinationNumbers({ ...filter, pageSize: 2 });
  const rest = await numbers.listDestinationNumbers({ ...filter, pageToken });
  expect([rest.destinationNumbers, rest.nextPageToken]).toEqual([all.slice(2), ""]);
  // What is removed meanwhile is missing, and nothing else.
  await numbers.removeDestinationNumber({ number: all[1]?.number ?? "" });
  const after = await numbers.listDestinationNumbers({ ...filter, pageToken });
  expect(after.destinationNumbers).toEqual(all.slice(2));
  for (const other of [{ projectId }, { environment }, {}]) {
    const answer = await answerOf((options) =>
      numbers.listDestinationNumbers({ ...other, pageToken }, options),
    );
    expect(answer).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
  }
});

test("a webhook read by its id is not found if the given project or environment is not its own", async () => {
  const [{ projectId }, other] = [await service.createProject(), await service.createProject()];
  const webhooks = service.client(WebhookService);
  const { webhook } = await webhooks.setWebhook({
    projectId,
    environment: Environment.LIVE,
    url: "https://shop.example/hook",
  });
  const webhookId = webhook?.id ?? "";
  const shown = (given: { projectId?: string; environment?: Environment }) =>
    answerOf((options) => webhooks.getWebhook({ webhookId, ...given }, options));
  expect(await shown({})).toMatchObject({ code: "ok" });
  expect(await shown({ projectId, environment: Environment.LIVE })).toMatchObject({ code: "ok" });
  expect(await shown({ projectId: other.projectId })).toMatchObject({ code: "not_found" });
  expect(await shown({ environment: Environment.TEST })).toMatchObject({ code: "not_found" });
});

test("changes that wait for a lock leave connections for everybody else's calls", async () => {
  const small = await service.startAnother({ DATABASE_POOL_SIZE: "4" });
  const [locked, other] = [await small.createProject(), await small.createProject()];
  const shop = merchant(small.httpUrl, other.liveKey);
  // Now the process has a connection for everything that a creation needs.
  expect((await shop.create()).status).toBe(201);
  const administrator = small.client(ProjectService);
  const changes: Promise<unknown>[] = [];
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    await holder.query("SELECT FROM project WHERE id = $1 FOR UPDATE", [decodeId("prj_", locked.projectId)]);
    for (let change = 0; change < 8; change++) {
      changes.push(
        answerOf((options) =>
          administrator.updateProject({ projectId: locked.projectId, validitySeconds: 60 + change }, options),
        ),
      );
    }
    await untilWaiting(service.db, 1);
    // Once this is answered, all of them have arrived.
    expect(await answerOf((options) => administrator.listProjects({}, options))).toMatchObject({
      code: "ok",
    });
    expect((await shop.create()).status).toBe(201);
  } finally {
    holder.release(true);
  }
  for (const changed of await Promise.all(changes)) expect(changed).toMatchObject({ code: "ok" });
});

/** Changes a project each time it is called. */
type Changer = (options: CallOptions) => Promise<unknown>;

test.for<[what: string, changerOf: (process: TestService, projectId: string) => Promise<Changer>]>([
  [
    "settings",
    async (process, projectId) => {
      const client = process.client(ProjectService);
      let validitySeconds = 60;
      return (options) => client.updateProject({ projectId, validitySeconds: validitySeconds++ }, options);
    },
  ],
  [
    "keys",
    async (process, projectId) => {
      const client = process.client(ApiKeyService);
      const { apiKey } = await client.createApiKey({ projectId, environment: Environment.TEST });
      const overlap = { seconds: 60n };
      return (options) => client.rotateApiKey({ apiKeyId: apiKey?.id ?? "", overlap }, options);
    },
  ],
])("changes of a project's %s that wait for its lock do not hold up the suspension of another project", async ([
  ,
  changerOf,
]) => {
  const small = await service.startAnother({ DATABASE_POOL_SIZE: "8" });
  const [locked, other] = [await small.createProject(), await small.createProject()];
  const change = await changerOf(small, locked.projectId);
  const changes: Promise<unknown>[] = [];
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    await holder.query("SELECT FROM project WHERE id = $1 FOR UPDATE", [decodeId("prj_", locked.projectId)]);
    // As many as may run at once.
    changes.push(answerOf(change), answerOf(change));
    await untilWaiting(service.db, 1);
    expect(
      await answerOf((options) =>
        small.client(ProjectService).suspendProject({ projectId: other.projectId }, options),
      ),
    ).toMatchObject({ code: "ok" });
  } finally {
    holder.release(true);
  }
  for (const changed of await Promise.all(changes)) expect(changed).toMatchObject({ code: "ok" });
});

test("webhooks that wait to be set, because their deliveries are locked, leave connections, too", async () => {
  const small = await service.startAnother({ DATABASE_POOL_SIZE: "4" });
  const [waiting, other] = [await small.createProject(), await small.createProject()];
  const [waitingShop, shop] = [waiting, other].map(({ liveKey }) => merchant(small.httpUrl, liveKey));
  const webhooks = small.client(WebhookService);
  const place = { projectId: waiting.projectId, environment: Environment.LIVE };
  const set = () =>
    answerOf((options) => webhooks.setWebhook({ ...place, url: "https://shop.example/events" }, options));
  expect(await set()).toMatchObject({ code: "ok" });
  const { body } = (await waitingShop?.create()) ?? {};
  expect((await waitingShop?.cancel(body?.id ?? ""))?.status).toBe(200);
  await webhooks.disableWebhook(place);
  expect((await shop?.create())?.status).toBe(201);
  const changes: Promise<unknown>[] = [];
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    await holder.query("SELECT FROM webhook_delivery WHERE verification_id = $1 FOR UPDATE", [
      decodeId("vrf_", body?.id ?? ""),
    ]);
    for (let change = 0; change < 4; change++) changes.push(set());
    await untilWaiting(service.db, 1);
    // Once this is answered, all of them have arrived.
    await small.client(ProjectService).listProjects({});
    expect((await shop?.create())?.status).toBe(201);
  } finally {
    holder.release(true);
  }
  for (const changed of await Promise.all(changes)) expect(changed).toMatchObject({ code: "ok" });
});

test.for([
  { scope: ServiceTokenScope.INGEST, source: "", fields: ["source"] },
  { scope: ServiceTokenScope.INGEST, source: "a".repeat(65), fields: ["source"] },
  { scope: ServiceTokenScope.INGEST, source: "two words", fields: ["source"] },
  { scope: ServiceTokenScope.READ, source: "gateway-1", fields: ["source"] },
  { scope: ServiceTokenScope.ADMIN, source: "gateway-1", fields: ["source"] },
  { scope: ServiceTokenScope.UNSPECIFIED, source: "", fields: ["scope"] },
])("a service token with scope $scope and the source '$source' is refused", async ({
  scope,
  source,
  fields,
}) => {
  const result = await answerOf((options) => tokens.createServiceToken({ scope, source }, options));
  expect(result).toMatchObject({ code: "validation_failed", fields });
});
