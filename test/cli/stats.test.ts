import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { beforeAll, describe, expect, test, vi } from "vitest";
import {
  GetStatisticsResponseSchema,
  type VerificationCountsSchema,
} from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
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
  expect((await stats("--environment", "test")).environments).toMatchObject([{ environment: "test" }]);
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
    // An hour that has just begun may not be counted yet, and another may begin meanwhile.
    expect([1, 2, 3]).toContain(hoursIn(lines).length);
    expect(lines).toContainEqual(expect.stringMatching(/^expired {5}0 {2}·{1,3}$/));
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

  test("however narrow the terminal is, a sparkline has eight characters", async () => {
    const lines = await seen(10, "--hours", "24");
    expect(lines).toContainEqual(expect.stringMatching(/^created {5}5 {2}·{6,7}█·?$/));
  });

  test("a week of hours is shown by day", async () => {
    const lines = await seen(120, "--hours", "168", "--environment", "live");
    const days = lines.filter((line) => /^\d{4}-\d\d-\d\d +\d+ /.test(line));
    expect([8, 7]).toContain(days.length);
  });

  test("columns that do not fit are named once for all tables", async () => {
    const lines = await seen(50, "--hours", "3");
    expect(lines.filter((line) => line.startsWith("No room for "))).toEqual([lines.at(-1)]);
    expect(lines.at(-1)).toMatch(/^No room for EXPIRED, CANCELLED, P50, P95: /);
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

test.for([
  ["prj_01kaex4mpyf2xbtyt1s6vdr4e9", "There is no such project."],
  ["Demo", "There is no such project: give its id, prj_…, not its name."],
] as const)("an unknown project, %s, is refused with not_found", async ([project, message]) => {
  for (const command of [["stats"], ["key", "list"], ["verification", "list"]]) {
    const finished = await run([...command, "--project", project], environment);
    expect(finished).toMatchObject({ code: 1, stderr: expect.stringContaining(`not_found: ${message}`) });
  }
});

/** The lines of the human-readable output for an answer of the service. */
async function shown(answer: MessageInitShape<typeof GetStatisticsResponseSchema>): Promise<string[]> {
  const statistics = create(GetStatisticsResponseSchema, answer);
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(GetStatisticsResponseSchema, statistics))),
  );
  const at = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x", COLUMNS: "120" };
  const { stdout } = await run(["stats", "--project", "prj_1"], at);
  return stdout.trimEnd().split("\n");
}

test("if no carrier has verified anything, none has a share", async () => {
  const lines = await shown({
    environments: [{ environment: Environment.LIVE, carriers: [{ carrier: Carrier.SKT }] }],
  });
  expect(lines).toContainEqual(expect.stringMatching(/^SKT +0 +- +- +-$/));
});

test("a count that is small beside the highest has the shortest bar, and none only zero", async () => {
  const hours = [1_000_000n, 1n, 0n].map((created) => ({ counts: { created } }));
  const numbers = hours.map((hour, index) => ({ destination: `0101234567${index}`, ...hour }));
  const lines = await shown({ environments: [{ environment: Environment.LIVE, hours, numbers }] });
  expect(lines).toContainEqual(expect.stringMatching(/^created .* █▁·$/));
  expect(lines).toContainEqual(expect.stringMatching(/^01012345670 +1,000,000 {2}█{16} +0 /));
  expect(lines).toContainEqual(expect.stringMatching(/^01012345671 +1 {2}▏ +0 /));
  expect(lines).toContainEqual(expect.stringMatching(/^01012345672 +0 +0 /));
  // Under the end of the heading, which is longer.
  const table = lines.slice(lines.findIndex((line) => line.startsWith("NUMBER ")));
  const end = (table[0]?.indexOf("VERIFIED") ?? 0) + "VERIFIED".length;
  expect(table.map((line) => line.slice(end - 2, end))).toEqual(["ED", " 0", " 0", " 0"]);
});

describe("of three days, of which two are counted so far,", () => {
  const at = (hour: number) => timestampFromMs(Date.parse("2026-11-19T00:00:00Z") + hour * 3_600_000);
  const answer = (total: MessageInitShape<typeof VerificationCountsSchema>, incomplete: boolean) => ({
    since: at(0),
    until: at(72),
    countedUntil: at(48),
    incomplete,
    environments: [
      {
        environment: Environment.LIVE,
        total,
        hours: Array.from({ length: 72 }, (_, hour) => ({ hour: at(hour), counts: { created: 1n } })),
        numbers: [{ destination: "01012345678", silence: { since: at(30), expected: 1_234.5 } }],
        carriers: [{ carrier: Carrier.LGU_PLUS, silence: { since: at(31), expected: 12.4 } }],
      },
    ],
  });

  test("the end of the counts is shown, what is silent, and every counted hour", async () => {
    const times = { p50Seconds: 60, p95Seconds: 151.4 };
    const lines = await shown(answer({ created: 48n, conversion: 0.9994, timeToVerify: times }, true));
    expect(lines.slice(0, 6)).toEqual([
      "2026-11-19 09:00:00 to 2026-11-21 09:00:00 +09:00",
      "",
      "Earlier verifications are still being counted: these counts may grow.",
      "",
      "live",
      "! 01012345678 is silent: none verified since 2026-11-20 15:00:00, 1,235 expected.",
    ]);
    expect(lines[6]).toBe("! LGU+ is silent: none verified since 2026-11-20 16:00:00, 12 expected.");
    expect(lines).toContain("conversion  99.9 % of those that ended");
    expect(lines).toContain("took        half of them 1 min or less, 95 % of them 2 min 31 s or less");
    expect(lines.filter((line) => /^2026-11-\d\d \d\d:00 +1 /.test(line))).toHaveLength(48);
  });

  test("once more than two days are counted, a day has the sum of its hours, by this machine's time zone", async () => {
    const lines = await shown({ ...answer({}, false), countedUntil: at(72) });
    const days = lines.flatMap((line) => /^(2026-11-\d\d) +(\d+) /.exec(line)?.slice(1).join(": ") ?? []);
    expect(days).toEqual(["2026-11-19: 15", "2026-11-20: 24", "2026-11-21: 24", "2026-11-22: 9"]);
  });

  test("nothing is said about counts that will not grow, and a share is never rounded to 100.0 %", async () => {
    const lines = await shown(answer({ conversion: 0.9996 }, false));
    expect(lines.slice(1, 3)).toEqual(["", "live"]);
    expect(lines).toContain("conversion  100 % of those that ended");
  });
});
