/** What projects were charged for, as administrators read it. */
import { buffer } from "node:stream/consumers";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import {
  ListUsageRequestSchema,
  ListUsageResponseSchema,
  ProjectService,
} from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { answerOf as printed, run, towards } from "../cli/command.ts";
import { startGrpcPeer } from "../cli/grpc-peer.ts";
import { merchant } from "../gateway/merchant.ts";
import { byTheClock, installClock, stopClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "./grpc-answer.ts";
import { framed } from "./raw-grpc.ts";

const real = await startTestService({ ROLES: "api" });
await installClock(real.db);
const service = await real.startAnother({ DATABASE_URL: byTheClock(real.databaseUrl), ROLES: "api" });
const projects = service.client(ProjectService);
const shops = [
  await service.createProject({ name: "One", usageLimit: 5n }),
  await service.createProject({ name: "Two" }),
  await service.createProject({ name: "Three" }),
  await service.createProject({ name: "Never called" }),
] as const;
const [one, two, three] = shops;

async function call(key: string, times: number): Promise<unknown[]> {
  const numbers: unknown[] = [];
  for (let made = 0; made < times; made++) {
    const answer = await merchant(service.httpUrl, key).read("vrf_00000000000000000000000000");
    numbers.push(answer.headers.get("x-usage-calls"));
  }
  return numbers;
}

// 59 minutes before the month ends in Seoul, and in its first second.
await stopClock(service.db, new Date("2031-03-31T14:01:00.000Z"));
await call(one.liveKey, 2);
await call(one.testKey, 1);
await call(two.liveKey, 7);
const inApril = new Date("2031-03-31T15:00:00.500Z");
await stopClock(service.db, inApril);
await call(one.liveKey, 1);
await call(three.testKey, 4);

const row = (shop: { projectId: string }, name: string, month: string, calls: number, limit?: number) => ({
  projectId: shop.projectId,
  projectName: name,
  month,
  calls: BigInt(calls),
  ...(limit === undefined ? {} : { usageLimit: BigInt(limit) }),
});
const rows = {
  oneInMarch: row(one, "One", "2031-03", 3, 5),
  twoInMarch: row(two, "Two", "2031-03", 7),
  oneInApril: row(one, "One", "2031-04", 1, 5),
  threeInApril: row(three, "Three", "2031-04", 4),
};

async function listed(request: {
  projectId?: string;
  month?: string;
  pageSize?: number;
  pageToken?: string;
}) {
  const { usage, nextPageToken } = await projects.listUsage(request);
  return { usage: usage.map(({ $typeName: _, ...fields }) => fields), nextPageToken };
}

const { projectId } = one;

test.for([
  {
    asks: "nothing: the current month of all projects",
    request: {},
    usage: [rows.oneInApril, rows.threeInApril],
  },
  { asks: "a month", request: { month: "2031-03" }, usage: [rows.oneInMarch, rows.twoInMarch] },
  { asks: "a month without calls", request: { month: "2030-03" }, usage: [] },
  {
    asks: "a project: its months, the latest first",
    request: { projectId },
    usage: [rows.oneInApril, rows.oneInMarch],
  },
  { asks: "both", request: { projectId, month: "2031-03" }, usage: [rows.oneInMarch] },
  { asks: "a project without calls", request: { projectId: shops[3].projectId }, usage: [] },
])("the request has $asks", async ({ request, usage }) => {
  expect(await listed(request)).toEqual({ usage, nextPageToken: "" });
});

test("the numbers are those that the callers were told, and a refused call is not in them", async () => {
  const shop = await service.createProject({ name: "Limited", usageLimit: 5n });
  const { projectId } = shop;
  // A month that the other tests do not list.
  await stopClock(service.db, new Date("2031-05-15T00:00:00.000Z"));
  onTestFinished(() => stopClock(service.db, inApril));
  expect(await call(shop.testKey, 7)).toEqual(["1", "2", "3", "4", "5", null, null]);
  const { usage } = await listed({ projectId });
  expect(usage).toEqual([row(shop, "Limited", "2031-05", 5, 5)]);
  // A limit that was taken away counts from the next call on.
  await projects.updateProject({ projectId, usageLimit: -1n });
  expect((await listed({ projectId })).usage).toEqual(usage);
  await call(shop.testKey, 1);
  expect((await listed({ projectId })).usage).toEqual([row(shop, "Limited", "2031-05", 6)]);
});

test("calls made while the clock was a month ahead are that month's, and count towards its limit", async () => {
  const shop = await service.createProject({ name: "Ahead", usageLimit: 3n });
  onTestFinished(() => stopClock(service.db, inApril));
  await stopClock(service.db, new Date("2031-07-15T00:00:00.000Z"));
  expect(await call(shop.testKey, 2)).toEqual(["1", "2"]);
  await stopClock(service.db, new Date("2031-06-15T00:00:00.000Z"));
  expect(await call(shop.testKey, 1)).toEqual(["1"]);
  await stopClock(service.db, new Date("2031-07-01T00:00:00.000Z"));
  expect(await call(shop.testKey, 2)).toEqual(["3", null]);
  const { usage } = await listed({ projectId: shop.projectId });
  expect(usage).toEqual([row(shop, "Ahead", "2031-07", 3, 3), row(shop, "Ahead", "2031-06", 1, 3)]);
});

test("a project whose calls were all refused is not listed", async () => {
  const none = await service.createProject({ usageLimit: 0n });
  const before = await listed({});
  expect(await call(none.liveKey, 1)).toEqual([null]);
  expect(await listed({ projectId: none.projectId })).toEqual({ usage: [], nextPageToken: "" });
  expect(await listed({})).toEqual(before);
});

test("the pages of a month are the whole list, and a project's months are one page", async () => {
  const first = await listed({ month: "2031-03", pageSize: 1 });
  expect(first.usage).toEqual([rows.oneInMarch]);
  const pageToken = first.nextPageToken;
  expect(await listed({ month: "2031-03", pageSize: 1, pageToken })).toEqual({
    usage: [rows.twoInMarch],
    nextPageToken: "",
  });
  expect((await listed({ projectId, pageSize: 1 })).usage).toHaveLength(2);
  const other = await answerOf((options) => projects.listUsage({ month: "2031-04", pageToken }, options));
  expect(other).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
});

test("a list of the current month does not go on in the next one", async () => {
  await stopClock(service.db, new Date("2031-03-31T14:59:59.999Z"));
  const { nextPageToken: pageToken } = await projects.listUsage({ pageSize: 1 });
  expect((await listed({ pageSize: 1, pageToken })).usage).toEqual([rows.twoInMarch]);
  await stopClock(service.db, new Date("2031-03-31T15:00:00.000Z"));
  const late = await answerOf((options) => projects.listUsage({ pageSize: 1, pageToken }, options));
  expect(late).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
  // With the month named, it does go on.
  expect((await listed({ month: "2031-03", pageSize: 1, pageToken })).usage).toEqual([rows.twoInMarch]);
});

test("what is no month is refused, together with the rest, and an unknown project is not_found", async () => {
  for (const month of [
    "2031-13",
    "2031-00",
    "2031-3",
    "2031-03-01",
    "now",
    "0000-01",
    "2031-03\0",
    " 2031-03",
  ]) {
    const wrong = { month, pageSize: 201 };
    const answer = await answerOf((options) => projects.listUsage(wrong, options));
    expect([month, answer]).toMatchObject([
      month,
      { code: "validation_failed", fields: ["month", "page_size"] },
    ]);
  }
  for (const unknown of ["prj_00000000000000000000000000", "One"]) {
    const answer = await answerOf((options) => projects.listUsage({ projectId: unknown }, options));
    expect(answer).toMatchObject({ code: "not_found" });
  }
});

test("the command shows it, and prints it as JSON", async () => {
  const { usage } = await printed(["project", "usage", "--month", "2031-03"], towards(service));
  expect(usage).toEqual([
    { project_id: one.projectId, project_name: "One", month: "2031-03", calls: 3, usage_limit: 5 },
    { project_id: two.projectId, project_name: "Two", month: "2031-03", calls: 7, usage_limit: null },
  ]);
  const shown = async (...filter: string[]) =>
    (await run(["project", "usage", ...filter], { ...towards(service), COLUMNS: "100" })).stdout;
  expect(await shown("--month", "2031-03")).toMatch(
    /MONTH .*CALLS[\s\S]*2031-03 +prj_\w+ +Two +7 +unlimited/,
  );
  expect(await shown("--month", "2030-01")).toBe("No calls were charged.\n");
});

test("the command lists the current month to its end, also if the month is over before the next page", async () => {
  onTestFinished(() => stopClock(service.db, inApril));
  await stopClock(service.db, new Date("2031-03-31T14:59:59.999Z"));
  // Passes the command's calls on, for pages of one entry. The month ends after the first.
  const { address } = await startGrpcPeer(async (call) => {
    const request = fromBinary(
      ListUsageRequestSchema,
      (await buffer(call)).subarray(framed(Buffer.of()).length),
    );
    const page = await projects.listUsage({ ...request, pageSize: 1 });
    await stopClock(service.db, inApril);
    call.end(framed(toBinary(ListUsageResponseSchema, page)));
  });
  const peer = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  const { usage } = await printed(["project", "usage"], peer);
  expect(usage.map(({ month, calls }: Record<string, unknown>) => [month, calls])).toEqual([
    ["2031-03", 3],
    ["2031-03", 7],
  ]);
});

test("many thousands of projects with years of usage are read a page at a time", async () => {
  const other = await startTestService();
  const { projectId: template } = await other.createProject();
  await other.db.query(
    `INSERT INTO project (id, name, code_format, code_length, validity_seconds, rate_limit_per_minute)
     SELECT uuidv7(), 'p' || n, 'numeric', 8, 600, 6000 FROM generate_series(1, 1200) n`,
  );
  await other.db.query(
    `INSERT INTO usage (project_id, month, calls, granted)
     SELECT id, '2031-01-01'::date + make_interval(months => m), m + 1, 1
     FROM project, generate_series(0, 11) m WHERE id <> $1`,
    [decodeId("prj_", template)],
  );
  const { usage } = await printed(["project", "usage", "--month", "2031-12"], towards(other));
  expect(usage.map(({ project_name, calls }: Record<string, unknown>) => [project_name, calls])).toEqual(
    Array.from({ length: 1_200 }, (_, index) => [`p${index + 1}`, 12]),
  );
});
