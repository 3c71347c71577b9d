/**
 * Scenarios of several days: silence is judged by a week, and creations are kept a day longer than their idempotency
 * records.
 */
import { timestampDate, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { expect, test, vi } from "vitest";
import {
  type EnvironmentStatistics,
  StatisticsService,
} from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { CarrierSchema } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { byTheClock, installClock, moveClock } from "../harness/clock.ts";
import { startTestService, type TestProject } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { createPending } from "./pending.ts";

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;

let senders = 20_000_000;

/** A service with a movable clock, and workers for it. Ids follow the real time, so each test begins with that. */
async function onTheClock() {
  const plain = await startTestService({ ROLES: "api" });
  await installClock(plain.db);
  const DATABASE_URL = byTheClock(plain.databaseUrl);
  const service = await plain.startAnother({ ROLES: "api", DATABASE_URL });
  const startWorker = () => plain.startAnother({ ROLES: "worker", DATABASE_URL });

  /** Counts until the past has no gaps and the present is reached. */
  async function countAll(): Promise<void> {
    await moveClock(plain.db, minute);
    const worker = await startWorker();
    await vi.waitUntil(
      async () => {
        const { rows } = await plain.db.query(
          `SELECT min(counted_until) > clock.now() - interval '1 minute' AND NOT EXISTS (SELECT FROM statistics_gap) AS done
           FROM statistics_progress`,
        );
        return rows[0].done;
      },
      { timeout: 45_000, interval: 20 },
    );
    await worker.close();
  }

  return { service, db: plain.db, startWorker, countAll };
}

type Clocked = Awaited<ReturnType<typeof onTheClock>>;

const everyCarrier = ["SKT", "KT", "LGU+"];

/** Creates `count` verifications, a third for each carrier, and verifies those whose carrier is in `deliveringCarriers`. */
async function use(
  { service }: Clocked,
  { liveKey }: TestProject,
  count: number,
  deliveringCarriers: readonly string[],
) {
  const shop = merchant(service.httpUrl, liveKey);
  const pending = await Promise.all(Array.from({ length: count }, () => createPending(shop)));
  const messages = pending.map(({ to, text }, index) => ({
    to,
    text,
    carrier: everyCarrier[index % 3] ?? "",
    from: `010${++senders}`,
  }));
  await service.sms(...messages.filter(({ carrier }) => deliveringCarriers.includes(carrier)));
}

async function read(
  { service }: Clocked,
  { liveKey }: TestProject,
  hours = 0,
): Promise<EnvironmentStatistics> {
  const { environments } = await service.client(StatisticsService, liveKey).getStatistics({ hours });
  const [environment] = environments;
  if (environment === undefined) throw new Error("there is no environment");
  return environment;
}

async function silentIn(clocked: Clocked, project: TestProject): Promise<string[]> {
  const { numbers, carriers } = await read(clocked, project);
  return [
    ...numbers.filter(({ silence }) => silence).map(({ destination }) => destination),
    ...carriers
      .filter(({ silence }) => silence)
      .map(({ carrier }) => CarrierSchema.value[carrier]?.localName ?? ""),
  ].sort();
}

test("verifications created while no worker ran for over a day are counted, though their idempotency records are gone", async () => {
  const clocked = await onTheClock();
  const project = await clocked.service.createProject();
  await use(clocked, project, 9, everyCarrier);
  // Longer than the past that silence is judged by, which is read for each period.
  await moveClock(clocked.db, 12 * day);
  await clocked.db.query("DELETE FROM idempotency_record");
  await use(clocked, project, 6, ["KT"]);
  await clocked.countAll();
  const { total, carriers } = await read(clocked, project, 14 * 24);
  expect([total?.created, total?.verified].map(Number)).toEqual([15, 11]);
  expect(carriers.reduce((sum, { verified }) => sum + Number(verified), 0)).toBe(11);
});

test("a number or carrier that is silent compared with its own past is flagged, in the statistics and in a metric", async () => {
  const clocked = await onTheClock();
  const { service, db } = clocked;
  // The following must fall into the same hour of each day: near the end of an hour, begin with the next.
  const leftOfHour = hour - (Date.now() % hour);
  if (leftOfHour < 10 * minute) await moveClock(db, leftOfHour);
  const make = () => service.createProject();
  const [shop, dead, closed, quiet, young] = [
    await make(),
    await make(),
    await make(),
    await make(),
    await make(),
  ];
  for (let daysAgo = 8; daysAgo > 0; daysAgo--) {
    await Promise.all([
      use(clocked, shop, 90, everyCarrier),
      use(clocked, dead, 40, everyCarrier),
      use(clocked, closed, 40, everyCarrier),
      use(clocked, quiet, 6, everyCarrier),
      daysAgo < 4 && use(clocked, young, 40, everyCarrier),
    ]);
    await moveClock(db, day);
  }
  await use(clocked, shop, 90, ["SKT"]);
  for (const [project, count] of [
    [dead, 40],
    [quiet, 6],
    [young, 40],
  ] as const) {
    await use(clocked, project, count, []);
  }
  await clocked.countAll();

  expect(await silentIn(clocked, shop)).toEqual(["KT", "LGU_PLUS"]);
  expect(await silentIn(clocked, dead)).toEqual([dead.liveNumber]);
  for (const project of [closed, quiet, young]) expect(await silentIn(clocked, project)).toEqual([]);
  const [number] = (await read(clocked, dead)).numbers;
  expect(number?.silence?.expected).toBeCloseTo(40, 0);
  expect(number?.silence?.since && timestampDate(number.silence.since).getTime()).toBeLessThan(
    Date.now() + 8 * day - 20 * 60 * minute,
  );

  // What is silent now is said of now, and not of a period that has ended.
  const { environments: ended } = await service
    .client(StatisticsService, dead.liveKey)
    .getStatistics({ since: timestampFromMs(Date.now() + 5 * day), hours: 48 });
  expect(ended.map(({ numbers }) => numbers)).toMatchObject([[{ destination: dead.liveNumber }]]);
  expect(ended[0]?.numbers[0]?.silence).toBeUndefined();

  const worker = await clocked.startWorker();
  const metrics = async () => {
    const text = await (await fetch(`${worker.opsUrl}/metrics`)).text();
    return text.split("\n").filter((line) => line.startsWith("phoneproof_silent{"));
  };
  await vi.waitUntil(async () => (await metrics()).length > 0, { timeout: 45_000, interval: 20 });
  expect((await metrics()).sort()).toEqual([
    'phoneproof_silent{environment="live",kind="carrier",name="KT"} 1',
    'phoneproof_silent{environment="live",kind="carrier",name="LGU+"} 1',
    `phoneproof_silent{environment="live",kind="number",name="${dead.liveNumber}"} 1`,
  ]);
  await worker.close();

  await use(clocked, dead, 1, everyCarrier);
  await use(clocked, shop, 3, everyCarrier);
  await clocked.countAll();
  expect(await silentIn(clocked, dead)).toEqual([]);
  expect(await silentIn(clocked, shop)).toEqual([]);
});

test("if more numbers are silent than the metric names, it names those in use that lack the most", async () => {
  const service = await startTestService({ ROLES: "api" });
  const numbers = Array.from({ length: 21 }, (_, index) => `02009800${index + 10}`);
  // As an operator removes one because it is silent.
  const removed = "0200980099";
  const all = [...numbers, removed];
  await service.db.query(
    `INSERT INTO destination_number (id, number, environment, removed_at)
     SELECT uuidv7(), name, 'live', CASE WHEN name = $2 THEN now() END FROM unnest($1::text[]) name`,
    [all, removed],
  );
  // Each number had more in every hour than the one before it, and nothing for the last two or three hours.
  await service.db.query(
    `INSERT INTO reception_statistics (environment, hour, kind, name, created, verified, last_verified_at)
     SELECT 'live', hour, 'number', name, count, CASE WHEN ago > 2 THEN count ELSE 0 END,
       CASE WHEN ago > 2 THEN hour + interval '59 minutes' END
     FROM unnest($1::text[]) WITH ORDINALITY AS n (name, place), generate_series(0, 192) ago,
       LATERAL (SELECT place + 20 AS count, date_trunc('hour', now(), 'UTC') - make_interval(hours => ago) AS hour) h`,
    [all],
  );
  await service.db.query("UPDATE statistics_progress SET counted_until = now()");
  const worker = await service.startAnother({ ROLES: "worker" });
  const silent = async () =>
    (await scrape(worker.opsUrl)).samples
      .filter(({ name }) => name === "phoneproof_silent")
      .map(({ labels }) => labels.name);
  await expect.poll(async () => (await silent()).length).toBeGreaterThan(0);
  expect((await silent()).sort()).toEqual([...numbers.slice(1), "others"]);
});
