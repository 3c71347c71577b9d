import pg from "pg";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { type Merchant, merchant, newIdempotencyKey, usageOf } from "../gateway/merchant.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { createPending } from "./pending.ts";
import { smsSource } from "./sms-source.ts";

const service = await startTestService({ ROLES: "api" });
const numbers = service.client(DestinationNumberService);
const { LIVE, TEST } = Environment;

/** More than a thousandth of all six-digit codes. */
const crowd = 1001;

let added = 0;

async function addNumber(projectId = "", environment: Environment = LIVE): Promise<string> {
  added += 1;
  const number = `0201${String(added).padStart(6, "0")}`;
  await numbers.addDestinationNumber({ number, environment, projectId });
  return number;
}

/** Inserts `count` codes of this length for the number, which expire in `minutes`. They begin with 9. */
async function fill(number: string, count: number, length = 6, minutes = 10): Promise<void> {
  await service.db.query(
    `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
     SELECT $1, '9' || lpad(code::text, $3::int - 1, '0'), 'numeric', gen_random_uuid(), now() + make_interval(mins => $4::int)
     FROM generate_series(1, $2::int) code`,
    [number, count, length, minutes],
  );
}

/** A process that has just started, and so has just counted the codes in use. */
const startedNow = (): Promise<TestService> => service.startAnother();

const shopOf = (process: TestService, apiKey: string): Merchant => merchant(process.httpUrl, apiKey);

async function placesOf(shop: Merchant, count: number): Promise<{ number: string; length: number }[]> {
  const made = await Promise.all(Array.from({ length: count }, () => createPending(shop)));
  return made.map(({ to, code }) => ({ number: to, length: code.length }));
}

describe("when more than a thousandth of a number's codes is pending", async () => {
  const [lone, spread, twice, nearly, rushed, past, other] = await Promise.all(
    Array.from({ length: 7 }, () => service.createProject({ codeLength: 6, rateLimitPerMinute: 1_000_000 })),
  );
  if (!(lone && spread && twice && nearly && rushed && past && other))
    throw new Error("seven projects were made");
  const free = await addNumber(spread.projectId);
  const second = await addNumber(twice.projectId);
  for (const number of [lone.liveNumber, spread.liveNumber, twice.liveNumber, second])
    await fill(number, crowd);
  await fill(twice.liveNumber, 10 * crowd, 7);
  for (const number of [nearly.liveNumber, rushed.liveNumber]) await fill(number, crowd - 10);
  await fill(past.liveNumber, crowd, 6, -60);
  const process = await startedNow();

  test("another number of the project is used, with the configured code length", async () => {
    const places = await placesOf(shopOf(process, spread.liveKey), 20);
    expect(places).toEqual(places.map(() => ({ number: free, length: 6 })));
  });

  test("and the project has no other number, codes are longer", async () => {
    const places = await placesOf(shopOf(process, lone.liveKey), 20);
    expect(places).toEqual(places.map(() => ({ number: lone.liveNumber, length: 7 })));
  });

  test("the longer code length is recorded once, not for every verification", async () => {
    await placesOf(shopOf(process, lone.liveKey), 1);
    const lock = await service.db.connect();
    await lock.query("BEGIN; LOCK TABLE used_code_length IN SHARE MODE");
    try {
      const places = await placesOf(shopOf(process, lone.liveKey), 20);
      expect(places).toEqual(places.map(() => ({ number: lone.liveNumber, length: 7 })));
    } finally {
      await lock.query("ROLLBACK");
      lock.release();
    }
  });

  test("and every other number is as full, the one that allows the shortest longer code is used", async () => {
    const places = await placesOf(shopOf(process, twice.liveKey), 20);
    expect(places).toEqual(places.map(() => ({ number: second, length: 7 })));
  });

  test("codes are longer from the moment the threshold is reached, or sooner if codes are counted meanwhile", async () => {
    const shop = shopOf(process, nearly.liveKey);
    const lengths: number[] = [];
    for (let made = 0; made < 20; made++) lengths.push((await createPending(shop)).code.length);
    const short = lengths.indexOf(7);
    // The thousandth pending code is the last short one. Codes made during a count may be counted twice.
    expect(short).toBeGreaterThan(0);
    expect(short).toBeLessThanOrEqual(1_000 - (crowd - 10));
    expect(lengths.slice(short)).toEqual(lengths.slice(short).map(() => 7));
  });

  test("codes are longer beyond the threshold, however many are created at once", async () => {
    const places = await placesOf(shopOf(process, rushed.liveKey), 100);
    const short = places.filter(({ length }) => length === 6);
    // As above: the thousandth pending code is the last short one, and codes may be counted twice.
    expect(short.length).toBeGreaterThan(0);
    expect(short.length).toBeLessThanOrEqual(1_000 - (crowd - 10));
    expect(places.filter(({ length }) => length === 7)).toHaveLength(100 - short.length);
  });

  test("codes that have expired and are not assigned again yet do not count", async () => {
    const places = await placesOf(shopOf(process, past.liveKey), 10);
    expect(places).toEqual(places.map(() => ({ number: past.liveNumber, length: 6 })));
  });

  test("the numbers of other projects are not affected", async () => {
    const places = await placesOf(shopOf(process, other.liveKey), 10);
    expect(places).toEqual(places.map(() => ({ number: other.liveNumber, length: 6 })));
  });

  test("a project with numbers of its own does not fall back to a shared number", async () => {
    const shared = await addNumber();
    const places = await placesOf(shopOf(process, lone.liveKey), 10);
    expect(places).toEqual(places.map(() => ({ number: lone.liveNumber, length: 7 })));
    await numbers.removeDestinationNumber({ number: shared });
  });
});

test("if every code tried is taken, though the count does not show it yet, a longer one is used", async () => {
  const { testKey, testNumber } = await service.createProject({ codeLength: 6 });
  const shop = shopOf(service, testKey);
  // Every six-digit code tried becomes the one that the first creation took.
  await service.db.query(`
    CREATE FUNCTION one_short_code() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.code := 0; RETURN NEW; END';
    CREATE TRIGGER one_short_code BEFORE INSERT ON live_code FOR EACH ROW
    WHEN (NEW.destination = '${testNumber}' AND length(NEW.code) = 6) EXECUTE FUNCTION one_short_code()`);
  onTestFinished(() => service.db.query("DROP TRIGGER one_short_code ON live_code").then(() => {}));
  expect((await shop.create()).status).toBe(201);
  const second = await shop.create();
  expect([second.status, usageOf(second)]).toEqual([201, "2/unlimited"]);
  expect(second.body.sms_text).toMatch(/(?<!\d)\d{7}(?!\d)/);
});

test("a number with room for one more short code assigns it, even if the first code tried is taken", async () => {
  const { liveKey, liveNumber } = await service.createProject({ codeLength: 6 });
  await fill(liveNumber, 999);
  const process = await startedNow();
  // The first code tried becomes one of those, on the fast path and on the careful one.
  await service.db.query(`
    CREATE SEQUENCE codes_tried;
    CREATE FUNCTION first_is_taken() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN IF nextval(''codes_tried'') <= 2 THEN NEW.code := 900001; END IF; RETURN NEW; END';
    CREATE TRIGGER first_is_taken BEFORE INSERT ON live_code FOR EACH ROW WHEN (NEW.destination = '${liveNumber}')
    EXECUTE FUNCTION first_is_taken()`);
  onTestFinished(() => service.db.query("DROP TRIGGER first_is_taken ON live_code").then(() => {}));
  expect((await createPending(shopOf(process, liveKey))).code).toHaveLength(6);
  const { rows } = await service.db.query("SELECT last_value::int AS tried FROM codes_tried");
  expect(rows).toEqual([{ tried: 3 }]);
});

test("if no free code is found, the refusal is counted, shows no usage and leaves the idempotency key unused", async () => {
  const { testKey, testNumber } = await service.createProject({ usageLimit: 100n });
  const shop = shopOf(service, testKey);
  // Every code tried becomes the one that the first creation took.
  await service.db.query(`
    CREATE FUNCTION same_code() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.code := 0; RETURN NEW; END';
    CREATE TRIGGER same_code BEFORE INSERT ON live_code FOR EACH ROW WHEN (NEW.destination = '${testNumber}')
    EXECUTE FUNCTION same_code()`);
  expect(usageOf(await shop.create())).toBe("1/100");
  const key = newIdempotencyKey();
  const refused = await shop.create({}, key);
  await service.db.query("DROP TRIGGER same_code ON live_code");
  expect([refused.status, refused.body.error.code]).toEqual([503, "no_receiving_number"]);
  expect([...refused.headers.keys()].filter((name) => name.startsWith("x-usage"))).toEqual([]);
  const again = await shop.create({}, key);
  expect([again.status, usageOf(again)]).toEqual([201, "3/100"]);
});

test("a longer code is matched at once by a process that knew only shorter lengths", async () => {
  const { liveKey, liveNumber } = await service.createProject({ codeLength: 6 });
  await fill(liveNumber, crowd, 6);
  await fill(liveNumber, 10 * crowd, 7);
  await fill(liveNumber, 100 * crowd, 8);
  // Whatever other tests have created, these are the first codes of nine digits.
  await service.db.query("DELETE FROM used_code_length WHERE code_length = 9");
  await service.db.query("NOTIFY phoneproof_directory");
  const { rows } = await service.db.query("SELECT FROM project WHERE code_length = 9");
  expect(rows).toEqual([]);
  const process = await startedNow();
  // The process has just looked up which lengths exist.
  const { send } = smsSource(service);
  const now = performance.now();
  expect((await send({ to: liveNumber, text: "hello" })).outcome).toBe("NO_MATCH");
  // The notice of the new length is on its way. Without it, the lookup would stay cached for a second by this clock.
  const clock = vi.spyOn(performance, "now").mockReturnValue(now);
  onTestFinished(() => clock.mockRestore());
  const { id, to, text, code } = await createPending(shopOf(process, liveKey));
  expect(code).toHaveLength(9);
  await expect
    .poll(() => send({ to, text }), { interval: 10 })
    .toMatchObject({ outcome: "VERIFIED", verificationId: id });
});

test("a longer code is matched by the process that made it without waiting for a notice", async () => {
  const { liveKey, liveNumber } = await service.createProject({ codeLength: 6 });
  await fill(liveNumber, crowd, 6);
  // Whatever other tests have created, this is the first code of seven digits.
  await service.db.query("DELETE FROM used_code_length WHERE code_length = 7");
  await service.db.query("NOTIFY phoneproof_directory");
  const { rows } = await service.db.query("SELECT FROM project WHERE code_length = 7");
  expect(rows).toEqual([]);
  const process = await startedNow();
  const { send } = smsSource(process);
  expect((await send({ to: liveNumber, text: "hello" })).outcome).toBe("NO_MATCH");
  const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
  onTestFinished(() => clock.mockRestore());
  const { emit } = pg.Client.prototype;
  const deaf = vi.spyOn(pg.Client.prototype, "emit");
  deaf.mockImplementation(function (this: pg.Client, event, ...given) {
    return event === "notification" || emit.call(this, event, ...given);
  });
  onTestFinished(() => deaf.mockRestore());
  const { id, to, text, code } = await createPending(shopOf(process, liveKey));
  expect(code).toHaveLength(7);
  expect(await send({ to, text })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
});

describe("a project without a receiving number", () => {
  async function withoutNumber(settings: Parameters<typeof service.createProject>[0] = {}) {
    const project = await service.createProject(settings);
    const shop = shopOf(service, project.liveKey);
    const known = newIdempotencyKey();
    const first = await shop.create({ state: "s" }, known);
    expect(first.status).toBe(201);
    await numbers.removeDestinationNumber({ number: project.liveNumber });
    return { ...project, shop, known, first };
  }

  test("refuses a creation with no_receiving_number, without counting it or using up the idempotency key", async () => {
    const { projectId, shop } = await withoutNumber();
    const key = newIdempotencyKey();
    const refused = await shop.create({ state: "a" }, key);
    expect(refused.status).toBe(503);
    expect(refused.body.error).toMatchObject({
      code: "no_receiving_number",
      message: expect.stringMatching(/^The project has no receiving number/),
    });
    expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
    expect(usageOf(refused)).toBeNull();
    expect(usageOf(await shop.read("vrf_none"))).toBe("2/unlimited");
    const number = await addNumber(projectId);
    const created = await shop.create({ state: "b" }, key);
    expect([created.status, created.body.destination, usageOf(created)]).toEqual([
      201,
      number,
      "3/unlimited",
    ]);
  });

  test.for([
    { whose: "its own", number: "0202000001", isOwn: true },
    { whose: "a shared", number: "0202000002", isOwn: false },
  ])("uses $whose number added elsewhere, even if this process has not been notified of it", async ({
    number,
    isOwn,
  }) => {
    const { projectId, liveKey } = await withoutNumber();
    // A new process: on one that was there before, the notice of the removal could come now, and clear the cache.
    const shop = shopOf(await startedNow(), liveKey);
    expect((await shop.create()).status).toBe(503);
    // Inserted as another process would, but without the notice, which may be late.
    await service.db.query(
      "INSERT INTO destination_number (id, number, environment, project_id) VALUES (gen_random_uuid(), $1, 'live', $2)",
      [number, isOwn ? decodeId("prj_", projectId) : null],
    );
    const created = await shop.create();
    // Other projects are to be without a number again.
    await numbers.removeDestinationNumber({ number });
    expect([created.status, created.body.destination]).toEqual([201, number]);
  });

  test("refuses creations on other processes, too, after its number was removed", async () => {
    const process = await startedNow();
    const project = await service.createProject();
    const shop = shopOf(process, project.liveKey);
    await createPending(shop);
    await numbers.removeDestinationNumber({ number: project.liveNumber });
    await expect.poll(async () => (await shop.create()).status, { interval: 10 }).toBe(503);
  });

  test("still replays creations over REST and gRPC and reports conflicts, all of them counted", async () => {
    const { shop, known, first, liveKey } = await withoutNumber();
    const replay = await shop.create({ state: "s" }, known);
    expect([replay.status, replay.headers.get("idempotent-replayed")]).toEqual([200, "true"]);
    expect(replay.text).toBe(first.text);
    expect(usageOf(replay)).toBe("2/unlimited");
    const overGrpc = await service
      .client(VerificationService, liveKey)
      .createVerification({ idempotencyKey: known, state: "s" });
    expect([overGrpc.idempotentReplayed, overGrpc.verification?.id]).toEqual([true, first.body.id]);
    const conflict = await shop.create({ state: "t" }, known);
    expect([conflict.status, conflict.body.error.code]).toEqual([409, "idempotency_conflict"]);
    expect(usageOf(conflict)).toBe("4/unlimited");
  });

  test("reports other errors first", async () => {
    const { projectId, shop } = await withoutNumber();
    expect((await shop.create({ state: "\0" })).body.error.code).toBe("validation_failed");
    expect((await shop.create({}, "short")).body.error.code).toBe("idempotency_key_invalid");
    await service.client(ProjectService).updateProject({ projectId, usageLimit: 3n });
    expect((await shop.create()).body.error.code).toBe("usage_limit_exceeded");
  });

  test("reports a usage limit of zero first, even before the first call of the month", async () => {
    const project = await service.createProject({ usageLimit: 0n });
    await numbers.removeDestinationNumber({ number: project.liveNumber });
    const refused = await shopOf(service, project.liveKey).create();
    expect([refused.status, refused.body.error.code]).toEqual([429, "usage_limit_exceeded"]);
    // Calls with a service token have no limit.
    const { projectId } = project;
    const request = { projectId, environment: LIVE, idempotencyKey: newIdempotencyKey() };
    const uncounted = await answerOf((options) =>
      service.client(VerificationService).createVerification(request, options),
    );
    expect(uncounted.code).toBe("no_receiving_number");
  });

  test("makes no other project wait while the service confirms that there is none", async () => {
    const { liveKey } = await withoutNumber();
    const other = await service.createProject();
    // A new process: on one that was there before, the notice of the removal could come now, and clear the cache.
    const process = await startedNow();
    const [without, shop] = [shopOf(process, liveKey), shopOf(process, other.liveKey)];
    // By this clock, what is cached once stays cached.
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
    onTestFinished(() => clock.mockRestore());
    await createPending(shop);
    const lock = await service.db.connect();
    await lock.query("BEGIN; LOCK TABLE destination_number");
    let refused: ReturnType<typeof without.create>;
    try {
      refused = without.create();
      const isConfirming = async () =>
        (
          await service.db.query(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
          )
        ).rowCount === 1;
      await vi.waitUntil(isConfirming, { timeout: 45_000, interval: 10 });
      expect((await shop.create()).status).toBe(201);
    } finally {
      await lock.query("ROLLBACK");
      lock.release();
    }
    expect((await refused).body.error.code).toBe("no_receiving_number");
  });

  test("still works in its other environment", async () => {
    const { testKey, testNumber } = await withoutNumber();
    expect((await createPending(shopOf(service, testKey))).to).toBe(testNumber);
  });
});

describe("a removed number", () => {
  test("gets no new verifications, and those pending on it still work", async () => {
    const project = await service.createProject();
    const shop = shopOf(service, project.liveKey);
    const pendings = await Promise.all(Array.from({ length: 3 }, () => createPending(shop)));
    const successor = await addNumber(project.projectId);
    await numbers.removeDestinationNumber({ number: project.liveNumber });
    const places = await placesOf(shop, 10);
    expect(places.map(({ number }) => number)).toEqual(places.map(() => successor));
    const process = await startedNow();
    const [one, other, third] = pendings;
    if (!(one && other && third)) throw new Error("three verifications were made");
    expect(await smsSource(service).send(one)).toMatchObject({ outcome: "VERIFIED", verificationId: one.id });
    expect(await smsSource(process).send(other)).toMatchObject({
      outcome: "VERIFIED",
      verificationId: other.id,
    });
    expect((await shop.cancel(third.id)).body.status).toBe("cancelled");
  });

  test("that was added again for another project still serves the verifications pending on it", async () => {
    const [former, latter] = [await service.createProject(), await service.createProject()];
    const pending = await createPending(shopOf(service, former.liveKey));
    const number = former.liveNumber;
    await numbers.removeDestinationNumber({ number });
    await numbers.addDestinationNumber({ number, environment: LIVE, projectId: latter.projectId });
    await numbers.removeDestinationNumber({ number: latter.liveNumber });
    const { to } = await createPending(shopOf(service, latter.liveKey));
    expect(to).toBe(number);
    expect(await smsSource(service).send(pending)).toMatchObject({
      outcome: "VERIFIED",
      verificationId: pending.id,
    });
  });
});

describe("a project", () => {
  test("with numbers of its own uses all of them and no others", async () => {
    const [shared, project] = [await addNumber(), await service.createProject()];
    const second = await addNumber(project.projectId);
    const places = await placesOf(shopOf(service, project.liveKey), 60);
    expect(new Set(places.map(({ number }) => number))).toEqual(new Set([project.liveNumber, second]));
    await numbers.removeDestinationNumber({ number: shared });
  });

  test("without numbers of its own uses the shared ones of its environment, and no other project's", async () => {
    const project = await service.createProject();
    await service.createProject();
    await numbers.removeDestinationNumber({ number: project.liveNumber });
    await numbers.removeDestinationNumber({ number: project.testNumber });
    const [live, trial] = [await addNumber("", LIVE), await addNumber("", TEST)];
    expect(await placesOf(shopOf(service, project.liveKey), 5)).toEqual(
      Array.from({ length: 5 }, () => ({ number: live, length: 8 })),
    );
    expect(await placesOf(shopOf(service, project.testKey), 5)).toEqual(
      Array.from({ length: 5 }, () => ({ number: trial, length: 8 })),
    );
    await numbers.removeDestinationNumber({ number: live });
    await numbers.removeDestinationNumber({ number: trial });
  });

  test("can share a number with others, and every code on it finds its own verification", async () => {
    const shared = await addNumber();
    const projects = await Promise.all(Array.from({ length: 3 }, () => service.createProject()));
    for (const { liveNumber } of projects) await numbers.removeDestinationNumber({ number: liveNumber });
    const pendings = await Promise.all(
      projects.map(({ liveKey }) => createPending(shopOf(service, liveKey))),
    );
    expect(new Set(pendings.map(({ to }) => to))).toEqual(new Set([shared]));
    const receipts = await smsSource(service).sendAll(pendings.toReversed());
    expect(receipts.map(({ verificationId }) => verificationId)).toEqual(
      pendings.toReversed().map(({ id }) => id),
    );
    await numbers.removeDestinationNumber({ number: shared });
  });
});
