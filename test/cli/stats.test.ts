import { create, toBinary } from "@bufbuild/protobuf";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { GetStatisticsResponseSchema } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { Carrier, Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { createPending } from "../service/pending.ts";
import { answerOf, run, towards } from "./command.ts";
import { startGrpcPeer } from "./grpc-peer.ts";

let service: TestService;
let project: TestProject;
let environment: Record<string, string>;

const stats = (...args: string[]) =>
  answerOf(["stats", "--project", project.projectId, ...args], environment);

/** The lines of the human-readable output in a terminal of `columns` columns. */
async function seen(columns: number, ...args: string[]): Promise<string[]> {
  const { code, stdout, stderr } = await run(["stats", "--project", project.projectId, ...args], {
    ...environment,
    COLUMNS: String(columns),
  });
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return stdout.trimEnd().split("\n");
}

beforeAll(async () => {
  service = await startTestService({ ROLES: "api" });
  project = await service.createProject();
  environment = towards(service);
  const shop = merchant(service.httpUrl, project.liveKey);
  const pending = await Promise.all(Array.from({ length: 5 }, () => createPending(shop)));
  await service.sms(
    ...pending
      .slice(0, 3)
      .map(({ to, text }, index) => ({ to, text, carrier: "LGT", from: `0103000000${index}` })),
  );
  await shop.cancel(pending[3]?.id ?? "");
  // A fixed duration, set before the worker that counts is started.
  await service.db.query(
    "UPDATE verification SET verified_at = created_at + interval '0.5 s' WHERE status = 'verified'",
  );
  await service.startAnother({ ROLES: "worker" });
  await vi.waitUntil(
    async () => {
      const { environments } = await stats("--environment", "live");
      const [{ total }] = environments;
      return total.created + total.verified + total.cancelled === 9;
    },
    { interval: 100, timeout: 45_000 },
  );
});

const instant = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
const counts = {
  created: 5,
  verified: 3,
  expired: 0,
  cancelled: 1,
  conversion: 0.75,
  time_to_verify: { p50_seconds: 1, p95_seconds: 1 },
};
const nothing = { created: 0, verified: 0, expired: 0, cancelled: 0, conversion: null, time_to_verify: null };

test("--json reports each environment separately, with every hour, number and carrier", async () => {
  const answer = await stats();
  expect(answer).toEqual({
    since: instant,
    until: instant,
    counted_until: instant,
    incomplete: false,
    environments: [
      {
        environment: "live",
        total: counts,
        hours: expect.any(Array),
        numbers: [{ destination: project.liveNumber, ...counts, silence: null }],
        carriers: [{ carrier: "LGU+", verified: 3, time_to_verify: counts.time_to_verify, silence: null }],
      },
      { environment: "test", total: nothing, hours: expect.any(Array), numbers: [], carriers: [] },
    ],
  });
  const [live] = answer.environments;
  expect(live.hours).toHaveLength(24);
  expect(live.hours[0]).toEqual({ hour: answer.since, ...nothing });
});

test("--since and --hours select the hours", async () => {
  const { environments } = await stats("--since", "72h", "--hours", "30", "--environment", "live");
  expect(environments[0].hours).toHaveLength(30);
  expect(environments[0].total).toEqual(nothing);
  expect((await stats("--since", "72h")).environments[0].hours).toHaveLength(73);
});

describe("human-readable output", () => {
  const hoursIn = (lines: string[]) => lines.filter((line) => /^\d{4}-\d\d-\d\d \d\d:00 /.test(line));

  test("hours in the future are left out instead of being shown as empty", async () => {
    const lines = await seen(120, "--since", "1h", "--hours", "30", "--environment", "live");
    expect([2, 3]).toContain(hoursIn(lines).length);
    expect(lines).toContainEqual(expect.stringMatching(/^expired {5}0 {2}·{2,3}$/));
  });

  test("totals have a sparkline over the hours; the number and the carrier have bars", async () => {
    const lines = await seen(120, "--hours", "12");
    expect(lines).toContain("live");
    expect(lines).toContainEqual(expect.stringMatching(/^created {5}5 {2}·{10,11}█·?$/));
    expect(lines).toContainEqual(expect.stringMatching(/^cancelled {3}1 {2}·{10,11}█·?$/));
    expect(lines).toContainEqual(expect.stringMatching(/^expired {5}0 {2}·{11,12}$/));
    expect(lines).toContain("conversion  75.0 % of those that ended");
    expect(lines).toContain("took        half of them 1 s or less, 95 % of them 1 s or less");
    // An hour that has just begun may not be counted yet.
    expect([12, 11]).toContain(hoursIn(lines).length);
    expect(lines).toContainEqual(
      expect.stringMatching(new RegExp(`^${project.liveNumber} +5 +█{16} +3 +0 +1 +75.0 % +1 s +1 s$`)),
    );
    expect(lines).toContainEqual(expect.stringMatching(/^LGU\+ +3 +█{16} +100 % +1 s +1 s$/));
    expect(lines.slice(-2)).toEqual(["test", "No verifications in this period."]);
  });

  test("a week of hours is shown by day", async () => {
    const lines = await seen(120, "--hours", "168", "--environment", "live");
    const days = lines.filter((line) => /^\d{4}-\d\d-\d\d +\d+ /.test(line));
    expect([8, 7]).toContain(days.length);
  });

  test("columns that do not fit are named once for all tables", async () => {
    const lines = await seen(50, "--hours", "3");
    expect(lines.filter((line) => line.startsWith("No room for "))).toEqual([lines.at(-1)]);
    expect(lines.at(-1)).toMatch(/ EXPIRED, CANCELLED, P50, P95: /);
  });

  test.for([60, 80])("fits in %i columns", async (columns) => {
    for (const line of await seen(columns, "--hours", "48")) {
      if (!/^(took|conversion|No room for) /.test(line)) expect(line.length).toBeLessThanOrEqual(columns);
    }
  });
});

test.for([
  { args: ["--hours", "0"], code: 2, says: /whole number from 1/ },
  { args: ["--hours", "745"], code: 1, says: /validation_failed: --hours: must be 1 to 744/ },
  { args: ["--since", "yesterday"], code: 2, says: /an RFC 3339 time/ },
  { args: ["--since", "999999999w"], code: 2, says: /an RFC 3339 time/ },
  {
    args: ["--since", "2999-01-01T00:00:00Z"],
    code: 1,
    says: /validation_failed: --since: must not be in the future/,
  },
])("$args is refused with the reason", async ({ args, code, says }) => {
  const finished = await run(["stats", "--project", project.projectId, ...args], environment);
  expect(finished).toMatchObject({ code, stdout: "", stderr: expect.stringMatching(says) });
});

test("an unknown project is refused with not_found", async () => {
  const finished = await run(["stats", "--project", "prj_01kaex4mpyf2xbtyt1s6vdr4e9"], environment);
  expect(finished).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/not_found: There is no such project/),
  });
});

test("if no carrier has verified anything, none has a share", async () => {
  const statistics = create(GetStatisticsResponseSchema, {
    environments: [{ environment: Environment.LIVE, carriers: [{ carrier: Carrier.SKT }] }],
  });
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(GetStatisticsResponseSchema, statistics))),
  );
  const at = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x", COLUMNS: "120" };
  const { stdout } = await run(["stats", "--project", "prj_1"], at);
  expect(stdout).toMatch(/^SKT +0 +- +- +-$/m);
});
