/**
 * Callers can neither see nor change anything of another project or environment: every request about it is answered as if it
 * had never existed. bench/tenancy-timing.ts compares the times.
 */

import { create, type DescMethod, type Message, ScalarType, toJsonString } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type encodeId, newRequestId } from "../../src/core/ids.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { type Answer, merchant } from "../gateway/merchant.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { callOnce, rpcs } from "../rpc/every-rpc.ts";
import { refusalOf } from "../rpc/grpc-answer.ts";
import { createPending } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";

const service = await startTestService({ ROLES: "api" });
const environment = Environment.LIVE;
const parentOrigin = "https://shop.example";
const returnUrl = "https://shop.example/back";
const plenty = { rateLimitPerMinute: 1_000_000 };

const owner = await service.createProject({ ...plenty, parentOrigin, returnUrl });
const neighbour = await service.createProject(plenty);
const shop = merchant(service.httpUrl, owner.liveKey);

const pending = await createPending(shop);
const verified = await createPending(shop, { client_reference: "the owner's" });
const phone = "01012345678";
await service.sms({ to: verified.to, text: verified.text, from: phone });
const idempotencyKey = "the-owners-key";
await shop.create({}, idempotencyKey);
await shop.create({}, `${idempotencyKey}-rest`);
const { webhook } = await service
  .client(WebhookService)
  .setWebhook({ projectId: owner.projectId, environment, url: "https://shop.example/hook" });
const { apiKeys } = await service.client(ApiKeyService).listApiKeys({ projectId: owner.projectId });
const ownerToken = await service.createToken({ scope: "read", projectId: owner.projectId });
const { serviceTokens } = await service.client(ServiceTokenService).listServiceTokens({});

const never = (prefix: Parameters<typeof encodeId>[0]) => newRequestId().replace("req_", prefix);

/** What a request can name, by field: first an existing thing of another project, then one that never existed. */
const named: Record<string, readonly [existing: string, never: string]> = {
  project_id: [owner.projectId, never("prj_")],
  verification_id: [pending.id, never("vrf_")],
  event_id: [verified.id.replace("vrf_", "evt_"), never("evt_")],
  api_key_id: [apiKeys[0]?.id ?? "", never("key_")],
  webhook_id: [webhook?.id ?? "", never("whk_")],
  service_token_id: [
    serviceTokens.find(({ ending }) => ownerToken.endsWith(ending))?.id ?? "",
    never("tok_"),
  ],
  idempotency_key: [idempotencyKey, "a-key-of-nobody"],
  number: [owner.liveNumber, "0299999999"],
  numbers: [owner.liveNumber, "0299999999"],
  phone: [phone, "01087654321"],
  client_reference: ["the owner's", "nobody's"],
  parent_origin: [parentOrigin, "https://nobody.example"],
  return_url: [returnUrl, "https://nobody.example/back"],
};

/** Text fields that name nothing. Page tokens are tested in test/rpc/list-verifications.test.ts. */
const nameless = new Set(
  "name state expected_phone sms_template url actor source page_token month service host".split(" "),
);

/** Credentials without access to any of it, including the owner's key of the other environment. */
const strangers: Record<string, { credential: string; namesProject: boolean }> = {
  "another project's live key": { credential: neighbour.liveKey, namesProject: true },
  "another project's test key": { credential: neighbour.testKey, namesProject: true },
  "the other environment's key": { credential: owner.testKey, namesProject: false },
  "another project's read token": {
    credential: await service.createToken({ scope: "read", projectId: neighbour.projectId }),
    namesProject: true,
  },
  "another project's write token": {
    credential: await service.createToken({ scope: "write", projectId: neighbour.projectId }),
    namesProject: true,
  },
  "an ingest token": {
    credential: await service.createToken({
      scope: "ingest",
      source: "elsewhere",
      environment: Environment.TEST,
    }),
    namesProject: true,
  },
};

/** Everything of the owner's live environment that can be changed. */
async function belongings(): Promise<unknown> {
  const tables = ["verification", "event", "api_key", "webhook_configuration", "destination_number"];
  const rows = tables.map((table) => `SELECT to_jsonb(t) - 'last_used_at' AS row FROM "${table}" t`);
  const { rows: found } = await service.db.query(`${rows.join(" UNION ALL ")} ORDER BY 1`);
  return found.filter(({ row }) => row.environment !== "test" && JSON.stringify(row).includes(ownerUuid));
}

let ownerUuid = "";
let before: unknown;
beforeAll(async () => {
  const { rows } = await service.db.query(
    "SELECT project_id::text AS id FROM destination_number WHERE number = $1",
    [owner.liveNumber],
  );
  ownerUuid = rows[0].id;
  before = await belongings();
});
afterAll(async () => {
  expect(before).not.toEqual([]);
  expect(await belongings()).toEqual(before);
});

/** Removes what differs between any two answers: ids, times, codes, and texts that are returned as they were sent. */
function withoutChance(text: string): string {
  return text
    .replace(/\b(vrf|prj|key|evt|whk|tok|req)_[0-9a-z]{26}/g, "$1_…")
    .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, "…")
    .replace(/\/v\/[\w-]{22}/g, "/v/…")
    .replace(/the owner's|nobody's/g, "…")
    .replace(/번호확인 \d+/g, "번호확인 …");
}

const texts = ({ input }: DescMethod) =>
  input.fields.filter(
    (field) =>
      (field.fieldKind === "scalar" && field.scalar === ScalarType.STRING) ||
      (field.fieldKind === "list" && field.listKind === "scalar" && field.scalar === ScalarType.STRING),
  );

test("the tables contain every text field of every RPC's request", () => {
  const unknown = rpcs.flatMap(({ name, method }) =>
    texts(method)
      .filter((field) => !(field.name in named) && !nameless.has(field.name))
      .map((field) => `${name}: ${field.name}`),
  );
  expect(unknown.filter((field) => !/^grpc\./.test(field))).toEqual([]);
  expect(Object.values(named).flat()).not.toContain("");
});

function requestNaming(method: DescMethod, which: 0 | 1, leftOut: readonly string[]): Message {
  const request: Record<string, unknown> = {};
  for (const { name, localName, fieldKind } of texts(method)) {
    const pair = named[name];
    if (pair === undefined || leftOut.includes(name)) continue;
    request[localName] = fieldKind === "list" ? [pair[which]] : pair[which];
  }
  if (!leftOut.includes("environment") && method.input.field.environment) request.environment = environment;
  return create(method.input, request);
}

async function answerTo(transport: Transport, method: DescMethod, request: Message): Promise<string> {
  try {
    const message = await callOnce(transport, method, request);
    return withoutChance(message === undefined ? "nothing" : toJsonString(method.output, message as Message));
  } catch (error) {
    const { code, status, fields, retryAfterSeconds } = refusalOf(error);
    const { rawMessage } = error as { rawMessage: string };
    return withoutChance(JSON.stringify({ code, status, fields, retryAfterSeconds, rawMessage }));
  }
}

const ours = rpcs.filter(({ name }) => name.startsWith("phoneproof."));

test.for(
  Object.entries(strangers),
)("over gRPC %s gets the same answers about existing and nonexistent things from every RPC", async ([
  ,
  { credential, namesProject },
]) => {
  const transport = transportTo(service.grpcAddress, `Bearer ${credential}`);
  // What belongs to the project as a whole is not foreign to its other environment.
  const own = namesProject ? [] : ["project_id", "parent_origin", "return_url"];
  const omissions = [own, [...own, "environment"]];
  if (namesProject) omissions.push(["project_id"], ["project_id", "environment"]);
  const all: (readonly [call: string, existing: string, unknown: string])[] = [];
  // One RPC after the other: all at once, some would be refused as too much on a slow machine.
  for (const { name, method } of ours) {
    const answers = omissions.map(async (leftOut) => {
      const of = (which: 0 | 1) => answerTo(transport, method, requestNaming(method, which, leftOut));
      return [`${name} without ${leftOut}`, await of(0), await of(1)] as const;
    });
    all.push(...(await Promise.all(answers)));
  }
  expect(Object.fromEntries(all.map(([call, existing]) => [call, existing]))).toEqual(
    Object.fromEntries(all.map(([call, , unknown]) => [call, unknown])),
  );
});

function overRest({ status, headers, text }: Answer) {
  const names = [...headers.keys()].filter((name) => name !== "date").sort();
  return { status, names, replayed: headers.get("idempotent-replayed"), body: withoutChance(text) };
}

test.for(
  Object.entries({
    "another project's live key": neighbour.liveKey,
    "another project's test key": neighbour.testKey,
    "the other environment's key": owner.testKey,
  }),
)("over REST %s gets the same answers about existing and nonexistent things", async ([stranger, apiKey]) => {
  const other = merchant(service.httpUrl, apiKey);
  for (const [what, call] of Object.entries({
    "reads a pending verification": (which: 0 | 1) => other.read(named.verification_id?.[which] ?? ""),
    "cancels a pending verification": (which: 0 | 1) => other.cancel(named.verification_id?.[which] ?? ""),
    "reads a verified one": (which: 0 | 1) => other.read([verified.id, never("vrf_")][which] ?? ""),
    "cancels a verified one": (which: 0 | 1) => other.cancel([verified.id, never("vrf_")][which] ?? ""),
    "uses an Idempotency-Key": (which: 0 | 1) =>
      other.create({ state: "s" }, `${named.idempotency_key?.[which]}-rest`),
  })) {
    expect([what, overRest(await call(0))]).toEqual([what, overRest(await call(1))]);
  }
  if (stranger === "the other environment's key") return;
  for (const field of ["parent_origin", "return_url"]) {
    const create = async (which: 0 | 1) => overRest(await other.create({ [field]: named[field]?.[which] }));
    expect(await create(0)).toEqual(await create(1));
  }
});

test("a source that may not deliver to a number gets the same receipt as for an unknown number", async () => {
  const elsewhere = [
    await service.createToken({ scope: "ingest", source: "of-test", environment: Environment.TEST }),
    await service.createToken({ scope: "ingest", source: "of-others", numbers: [neighbour.liveNumber] }),
  ];
  for (const token of elsewhere) {
    const source = smsSource(service, token);
    for (const to of [pending.to, "0299999999"]) {
      expect(await source.send({ to, text: pending.text })).toMatchObject({
        outcome: "NO_MATCH",
        verificationId: "",
      });
    }
  }
});

test("a restricted token cannot learn from message ids what another token of its source has delivered", async () => {
  const shared = { scope: "ingest", source: "shared" } as const;
  const whole = smsSource(service, await service.createToken(shared));
  const bound = [
    { ...shared, environment: Environment.TEST },
    { ...shared, numbers: [neighbour.liveNumber] },
  ];
  const { liveKey } = await service.createProject();
  const mine = await createPending(merchant(service.httpUrl, liveKey));
  const sent = { messageId: "counted-1", to: mine.to, text: mine.text, from: newPhone() };
  expect(await whole.send(sent)).toMatchObject({ outcome: "VERIFIED", verificationId: mine.id });
  const marked = { messageId: "counted-2", to: mine.to, text: "[Web발신] hello", from: newPhone() };
  expect(await whole.send(marked)).toMatchObject({ outcome: "WEB_SENT", verificationId: "" });
  for (const token of bound) {
    const source = smsSource(service, await service.createToken(token));
    const to = "numbers" in token ? neighbour.liveNumber : neighbour.testNumber;
    for (const text of ["hello", mine.text]) {
      expect(await source.send({ ...sent, to, text })).toEqual({
        messageId: sent.messageId,
        outcome: "INVALID",
        verificationId: "",
        duplicate: false,
      });
    }
    expect(await source.send({ ...marked, to, text: "hello" })).toMatchObject({
      outcome: "INVALID",
      duplicate: false,
    });
    // Nor does it if it repeats the message as it was, to the number that it may not deliver to.
    expect(await source.send(sent)).toEqual({
      messageId: sent.messageId,
      outcome: "NO_MATCH",
      verificationId: "",
      duplicate: true,
    });
    // Repeats of its own messages are reported as duplicates.
    const own = { messageId: `own-${to}`, to, text: "hello", from: newPhone() };
    expect(await source.send(own)).toMatchObject({ outcome: "NO_MATCH", duplicate: false });
    expect(await source.send(own)).toMatchObject({ outcome: "NO_MATCH", duplicate: true });
  }
  expect(await whole.send(sent)).toMatchObject({ verificationId: mine.id, duplicate: true });
  // Nor once the message has been erased, and with it the number that it went to.
  await service.client(ErasureService).eraseVerification({ verificationId: mine.id });
  for (const token of bound) {
    const source = smsSource(service, await service.createToken(token));
    const to = "numbers" in token ? neighbour.liveNumber : neighbour.testNumber;
    expect(await source.send({ ...sent, to })).toMatchObject({ outcome: "INVALID", verificationId: "" });
    expect(await source.send(sent)).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
  }
  expect(await whole.send(sent)).toMatchObject({ verificationId: mine.id, duplicate: true });
});
