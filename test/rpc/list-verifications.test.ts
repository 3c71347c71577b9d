import type { MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate, timestampMs } from "@bufbuild/protobuf/wkt";
import { type Client, Code } from "@connectrpc/connect";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import {
  Environment,
  type ListVerificationsRequestSchema,
  type Verification,
  VerificationMode,
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { createPending, eventsOf, letExpire, type Pending } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { answerOf } from "./grpc-answer.ts";

// Without the expiry job: an expiry is detected by reads.
const service = await startTestService({ ROLES: "api" });
const { send } = smsSource(service);

type Filter = MessageInitShape<typeof ListVerificationsRequestSchema>;
const { PENDING, VERIFIED, EXPIRED, CANCELLED } = VerificationStatus;

async function newShop() {
  const project = await service.createProject();
  const shop = merchant(service.httpUrl, project.liveKey);
  const testShop = merchant(service.httpUrl, project.testKey);
  return { ...project, shop, testShop, rpc: service.client(VerificationService, project.liveKey) };
}

async function inOrder(count: number, make: (index: number) => Promise<Pending>): Promise<string[]> {
  const ids: string[] = [];
  for (let index = 0; index < count; index++) ids.push((await make(index)).id);
  return ids;
}

/** `instant`, in whole milliseconds, plus `nanoseconds`. */
function nanosecondsAfter(instant: Date, nanoseconds: number) {
  const { seconds, nanos } = timestampFromDate(instant);
  return { seconds, nanos: nanos + nanoseconds };
}

const idsOf = (verifications: readonly Verification[]) => verifications.map(({ id }) => id);

/** The ids of all pages, following the page tokens. */
async function pagesOf(rpc: Client<typeof VerificationService>, filter: Filter): Promise<string[][]> {
  const pages: string[][] = [];
  let pageToken = "";
  do {
    const page = await rpc.listVerifications({ ...filter, pageToken });
    pages.push(idsOf(page.verifications));
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  return pages;
}

describe("pages", () => {
  test("contain every verification once, newest first", async () => {
    const { shop, rpc } = await newShop();
    const newestFirst = (await inOrder(7, () => createPending(shop))).reverse();
    expect(await pagesOf(rpc, {})).toEqual([newestFirst]);
    expect(await pagesOf(rpc, { pageSize: 3 })).toEqual([
      newestFirst.slice(0, 3),
      newestFirst.slice(3, 6),
      newestFirst.slice(6),
    ]);
    expect(await pagesOf(rpc, { pageSize: 1 })).toEqual(newestFirst.map((id) => [id]));
  });

  test("end without an empty page if the last one is full", async () => {
    const { shop, rpc } = await newShop();
    const newestFirst = (await inOrder(4, () => createPending(shop))).reverse();
    expect(await pagesOf(rpc, { pageSize: 2 })).toEqual([newestFirst.slice(0, 2), newestFirst.slice(2)]);
    expect(await pagesOf(rpc, { pageSize: 4 })).toEqual([newestFirst]);
  });

  test("are a single empty one if there is nothing to list", async () => {
    const { rpc } = await newShop();
    expect(await pagesOf(rpc, {})).toEqual([[]]);
  });

  test("do not shift when verifications are created in between", async () => {
    const { shop, rpc } = await newShop();
    const newestFirst = (await inOrder(4, () => createPending(shop))).reverse();
    const first = await rpc.listVerifications({ pageSize: 2 });
    await inOrder(3, () => createPending(shop));
    const second = await rpc.listVerifications({ pageSize: 2, pageToken: first.nextPageToken });
    expect([...idsOf(first.verifications), ...idsOf(second.verifications)]).toEqual(newestFirst);
    expect(second.nextPageToken).toBe("");
  });

  test("have 100 verifications by default, and more on request", async () => {
    const { shop, rpc } = await newShop();
    await Promise.all(Array.from({ length: 101 }, () => createPending(shop)));
    expect((await pagesOf(rpc, {})).map(({ length }) => length)).toEqual([100, 1]);
    expect((await pagesOf(rpc, { pageSize: 1000 })).map(({ length }) => length)).toEqual([101]);
  });

  test("keep the filter of the first", async () => {
    const { shop, rpc } = await newShop();
    const ids = await inOrder(6, (index) =>
      createPending(shop, { client_reference: index % 2 === 0 ? "even" : "odd" }),
    );
    const even = ids.filter((_, index) => index % 2 === 0).reverse();
    expect(await pagesOf(rpc, { pageSize: 2, clientReference: "even" })).toEqual([
      even.slice(0, 2),
      even.slice(2),
    ]);
  });
});

describe("filters", async () => {
  const { shop, testShop, projectId, testKey, rpc } = await newShop();
  const phone = newPhone();
  const ids: Record<string, string> = {};
  const remember = async (name: string, made: Promise<Pending>) => {
    const pending = await made;
    ids[name] = pending.id;
    return pending;
  };

  await remember("pending", createPending(shop, { client_reference: "order-1" }));
  const verified = await remember("verified", createPending(shop, { client_reference: "order-1" }));
  await send({ ...verified, from: phone });
  const cancelled = await remember("cancelled", createPending(shop, { client_reference: "order-2" }));
  await shop.cancel(cancelled.id);
  const expired = await remember("expired", createPending(shop, { client_reference: "Order-1" }));
  await remember("of test", createPending(testShop, { client_reference: "order-1" }));
  await letExpire(service.db, expired.id);
  const firstCreated = new Date((await shop.read(ids.pending ?? "")).body.created_at);
  const namesOf = (verifications: readonly Verification[]) =>
    verifications.map(({ id }) => Object.entries(ids).find(([, known]) => known === id)?.[0]).sort();

  test.for<[string, Filter, string[]]>([
    ["none", {}, ["cancelled", "expired", "pending", "verified"]],
    ["pending", { statuses: [PENDING] }, ["pending"]],
    ["verified", { statuses: [VERIFIED] }, ["verified"]],
    ["expired", { statuses: [EXPIRED] }, ["expired"]],
    ["cancelled", { statuses: [CANCELLED] }, ["cancelled"]],
    ["two statuses", { statuses: [CANCELLED, EXPIRED] }, ["cancelled", "expired"]],
    ["a client reference, exactly", { clientReference: "order-1" }, ["pending", "verified"]],
    ["the beginning of a client reference", { clientReference: "order-" }, []],
    ["a phone", { phone }, ["verified"]],
    [
      "a phone with the country code",
      { phone: `+82 10-${phone.slice(3, 7)}-${phone.slice(7)}` },
      ["verified"],
    ],
    ["a phone that has verified nothing", { phone: "01012349999" }, []],
    ["a client reference and a status", { clientReference: "order-1", statuses: [VERIFIED] }, ["verified"]],
    [
      "its own environment",
      { environment: Environment.LIVE },
      ["cancelled", "expired", "pending", "verified"],
    ],
    [
      "created from an instant on",
      { createdFrom: timestampFromDate(firstCreated) },
      ["cancelled", "pending", "verified"],
    ],
    [
      "created from the next millisecond on",
      { createdFrom: timestampFromDate(new Date(firstCreated.getTime() + 1)) },
      ["cancelled", "verified"],
    ],
    [
      "created from a nanosecond later on",
      { createdFrom: nanosecondsAfter(firstCreated, 1) },
      ["cancelled", "verified"],
    ],
    [
      "created from a nanosecond earlier on",
      { createdFrom: nanosecondsAfter(new Date(firstCreated.getTime() - 1), 999_999) },
      ["cancelled", "pending", "verified"],
    ],
    ["created before an instant", { createdBefore: timestampFromDate(firstCreated) }, ["expired"]],
    [
      "created before a nanosecond later",
      { createdBefore: nanosecondsAfter(firstCreated, 1) },
      ["expired", "pending"],
    ],
    [
      "created before the last possible instant",
      { createdBefore: { seconds: 253_402_300_799n, nanos: 999_999_999 } },
      ["cancelled", "expired", "pending", "verified"],
    ],
    [
      "created before the next millisecond",
      { createdBefore: timestampFromDate(new Date(firstCreated.getTime() + 1)) },
      ["expired", "pending"],
    ],
  ])("%s", async ([, filter, names]) => {
    const { verifications } = await rpc.listVerifications(filter);
    expect(namesOf(verifications)).toEqual(names);
  });

  test("a merchant's key lists its own environment only, a service token both or the one that it names", async () => {
    const testRpc = service.client(VerificationService, testKey);
    expect(namesOf((await testRpc.listVerifications({})).verifications)).toEqual(["of test"]);
    const token = await service.createToken({ scope: "read", projectId });
    const reader = service.client(VerificationService, token);
    const everything = ["cancelled", "expired", "of test", "pending", "verified"];
    expect(namesOf((await reader.listVerifications({})).verifications)).toEqual(everything);
    const ofTest = await reader.listVerifications({ environment: Environment.TEST });
    expect(namesOf(ofTest.verifications)).toEqual(["of test"]);
    const forAll = service.client(VerificationService, await service.createToken({ scope: "read" }));
    expect(namesOf((await forAll.listVerifications({ projectId })).verifications)).toEqual(everything);
  });
});

test("an overdue verification is listed as expired before the expiry job has run, and stays expired", async () => {
  const { shop, rpc } = await newShop();
  const { id, to, text } = await createPending(shop);
  await letExpire(service.db, id);
  expect((await rpc.listVerifications({ statuses: [PENDING] })).verifications).toEqual([]);
  expect(await eventsOf(service.db, id)).toEqual([]);
  const { verifications } = await rpc.listVerifications({});
  expect(verifications.map(({ status }) => status)).toEqual([EXPIRED]);
  expect(await eventsOf(service.db, id)).toEqual(["verification.expired"]);
  expect(await send({ to, text })).toMatchObject({ outcome: "LATE", verificationId: id });
});

describe("a request for a list", async () => {
  const { shop, rpc, testKey } = await newShop();
  await createPending(shop);
  const otherShop = await newShop();
  await createPending(otherShop.shop);
  const unknown = 99 as VerificationStatus;

  test.for<[string, Filter, string[]]>([
    ["a negative page size", { pageSize: -1 }, ["page_size"]],
    ["a page size of 1001", { pageSize: 1001 }, ["page_size"]],
    ["a page token that was never issued", { pageToken: "next" }, ["page_token"]],
    ["an unknown status", { statuses: [unknown] }, ["statuses"]],
    // As many as fit into a message: checking them must not take minutes.
    [
      "sixty thousand unknown statuses",
      { statuses: Array<VerificationStatus>(60_000).fill(unknown) },
      ["statuses"],
    ],
    ["an unspecified status", { statuses: [VerificationStatus.UNSPECIFIED] }, ["statuses"]],
    ["a client reference of 161 characters", { clientReference: "가".repeat(161) }, ["client_reference"]],
    ["a client reference that holds NUL", { clientReference: "\0" }, ["client_reference"]],
    ["an invalid phone", { phone: "0212345678" }, ["phone"]],
    [
      "the first instant after the year 9999",
      { createdBefore: { seconds: 253_402_300_800n, nanos: 0 } },
      ["created_before"],
    ],
    [
      "an instant long after the year 9999",
      { createdFrom: { seconds: 2n ** 62n, nanos: 0 } },
      ["created_from"],
    ],
    [
      "an instant long before the year 1",
      { createdBefore: { seconds: -(2n ** 62n), nanos: 0 } },
      ["created_before"],
    ],
    [
      "an instant with more nanoseconds than a second has",
      { createdFrom: { seconds: 0n, nanos: 1_000_000_000 } },
      ["created_from"],
    ],
    [
      "an instant with negative nanoseconds",
      { createdBefore: { seconds: 0n, nanos: -1 } },
      ["created_before"],
    ],
    [
      "every field invalid at once",
      {
        environment: 7 as Environment,
        pageSize: -1,
        pageToken: "next",
        clientReference: "\0",
        phone: "x",
        statuses: [unknown],
        createdFrom: { seconds: 0n, nanos: -1 },
        createdBefore: { seconds: 2n ** 62n, nanos: 0 },
      },
      [
        "client_reference",
        "created_before",
        "created_from",
        "environment",
        "page_size",
        "page_token",
        "phone",
        "statuses",
      ],
    ],
  ])("is refused: %s", async ([, filter, fields]) => {
    expect(await answerOf((options) => rpc.listVerifications(filter, options))).toMatchObject({
      code: "validation_failed",
      status: Code.InvalidArgument,
      fields,
    });
  });

  test("is not found if its project does not exist", async () => {
    const forAll = service.client(VerificationService, await service.createToken({ scope: "read" }));
    for (const projectId of ["prj_00000000000000000000000000", "prj_none"]) {
      const answer = await answerOf((options) => forAll.listVerifications({ projectId }, options));
      expect(answer, projectId).toMatchObject({ code: "not_found", status: Code.NotFound });
    }
  });

  test("may repeat the statuses of its page token in another order and several times", async () => {
    const { shop: own, rpc: ownRpc } = await newShop();
    await createPending(own);
    await createPending(own);
    const { nextPageToken: pageToken } = await ownRpc.listVerifications({
      pageSize: 1,
      statuses: [PENDING, CANCELLED],
    });
    const next = await ownRpc.listVerifications({ pageToken, statuses: [CANCELLED, PENDING, PENDING] });
    expect(next.verifications).toHaveLength(1);
  });

  test("is refused if its page token was changed or issued for another filter, environment or project; the page size may change", async () => {
    await createPending(shop);
    const { nextPageToken: pageToken } = await rpc.listVerifications({ pageSize: 1 });
    expect((await rpc.listVerifications({ pageToken, pageSize: 2 })).verifications).toHaveLength(1);
    const phone = "01012345678";
    for (const token of [` ${pageToken}`, `${pageToken}=`, pageToken.replace(/^.{5}/, "$&!")]) {
      const refused = await answerOf((options) => rpc.listVerifications({ pageToken: token }, options));
      expect(refused).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
    }
    for (const filter of [{ phone }, { clientReference: "x" }, { statuses: [VerificationStatus.PENDING] }]) {
      const refused = await answerOf((options) => rpc.listVerifications({ ...filter, pageToken }, options));
      expect(refused).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
    }
    // A token cannot be compared with a filter that is invalid itself; the page size is not part of the filter.
    const fieldsOf = async (filter: Filter) =>
      (await answerOf((options) => rpc.listVerifications(filter, options))).fields;
    expect(await fieldsOf({ phone: "x", pageSize: -1, pageToken })).toEqual(["page_size", "phone"]);
    expect(await fieldsOf({ phone, pageSize: -1, pageToken })).toEqual(["page_size", "page_token"]);
    expect(await fieldsOf({ pageSize: -1, pageToken })).toEqual(["page_size"]);
    const testRpc = service.client(VerificationService, testKey);
    for (const otherRpc of [testRpc, otherShop.rpc]) {
      const elsewhere = await answerOf((options) => otherRpc.listVerifications({ pageToken }, options));
      expect(elsewhere).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
    }
  });
});

test("a listed verification has everything that reading it returns", async () => {
  const { shop, rpc } = await newShop();
  const { id, to, text } = await createPending(shop, { client_reference: "r", state: "s" });
  await send({ to, text, carrier: "KT" });
  const { verification } = await rpc.getVerification({ verificationId: id });
  const [listed] = (await rpc.listVerifications({})).verifications;
  if (listed?.serverTime === undefined || verification?.serverTime === undefined)
    throw new Error("no server_time");
  expect(timestampMs(listed.serverTime)).toBeGreaterThanOrEqual(timestampMs(verification.serverTime));
  expect({ ...listed, serverTime: undefined }).toEqual({ ...verification, serverTime: undefined });
});

test("a phone, of any length that a request may have, costs no more than its spelling may be long", async () => {
  const { rpc } = await newShop();
  // Sorting this many combining marks takes a fifth of a second.
  const marks = "\u0315\u0300".repeat(15_000);
  const normalize = vi.spyOn(String.prototype, "normalize");
  onTestFinished(() => normalize.mockRestore());
  const calls: (() => Promise<unknown>)[] = [
    () => rpc.listVerifications({ phone: marks }),
    () =>
      rpc.createVerification({
        idempotencyKey: "a-long-phone",
        mode: VerificationMode.MATCH,
        expectedPhone: marks,
      }),
  ];
  for (const call of calls) expect((await answerOf(call)).code).toBe("validation_failed");
  const longest = Math.max(0, ...normalize.mock.contexts.map((text) => String(text).length));
  expect(longest).toBeLessThan(1_000);
});
