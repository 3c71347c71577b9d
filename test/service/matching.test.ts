import { setTimeout as delay } from "node:timers/promises";
import { type Client, Code } from "@connectrpc/connect";
import type pg from "pg";
import { describe, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { CodeFormat, ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  Environment,
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { freshSeconds } from "../../src/storage/creation-batch.ts";
import { type Answer, merchant } from "../gateway/merchant.ts";
import { moveClock, stopClock } from "../harness/clock.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { tablesWith } from "../harness/every-table.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { createWindow } from "../window/open-window.ts";
import { untilWaiting } from "./barrier.ts";
import { startClockedPair } from "./clocked-pair.ts";
import { createPending, eventsOf, letExpire, type Pending, uuidOf } from "./pending.ts";
import { newPhone, smsSource } from "./sms-source.ts";

const { service, clocked, here, there } = await startClockedPair();
const project = await here.createProject();
const shop = merchant(here.httpUrl, project.liveKey);
const shopThere = merchant(there.httpUrl, project.liveKey);
const rpc = there.client(VerificationService, project.liveKey);

const pending = (request: object = {}) => createPending(shop, request);

const { send, sendAll } = smsSource(here);

async function statusOf(id: string): Promise<string> {
  return (await shop.read(id)).body.status;
}

async function verified(): Promise<Pending> {
  const verification = await pending();
  expect((await send(verification)).outcome).toBe("VERIFIED");
  return verification;
}

async function cancelled(): Promise<Pending> {
  const verification = await pending();
  expect((await shop.cancel(verification.id)).status).toBe(200);
  return verification;
}

async function expired(): Promise<Pending> {
  const verification = await pending();
  await letExpire(service.db, verification.id);
  return verification;
}

async function databaseTime(): Promise<string> {
  const { rows } = await service.db.query("SELECT clock_timestamp()::text AS now");
  return rows[0].now;
}

/** Whether the addition of a number has asked since then which creations are under way. */
function asksForCreations(since: string) {
  return async () => {
    const { rows } = await service.db.query(
      `SELECT FROM pg_stat_activity
       WHERE datname = current_database() AND application_name = 'phoneproof' AND query LIKE '%pg_locks%'
         AND query_start > $1::timestamptz`,
      [since],
    );
    return rows.length > 0;
  };
}

describe("the sender's number", () => {
  test.for([
    ["national digits", "01012348001"],
    ["hyphens", "010-1234-8002"],
    ["spaces", "010 1234 8003"],
    ["+82", "+82 10-1234-8004"],
    ["82", "821012348005"],
    ["0082", "0082-10-1234-8006"],
  ] as const)("is accepted with %s and read back as national digits", async ([, from]) => {
    const { id, to, text } = await pending();
    expect(await send({ to, text, from })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
    expect((await shop.read(id)).body.phone).toBe(`0101234${from.slice(-4)}`);
  });

  test.for([
    ["a number with another mobile prefix", "01112345678"],
    ["a landline", "0212345678"],
    ["a foreign number", "+811012345678"],
    ["a digit too short", "0101234567"],
    ["a digit too long", "010123456789"],
    ["a name", "Kakao"],
  ] as const)("makes a message INVALID if it is %s", async ([, from]) => {
    const { id, to, text } = await pending();
    expect(await send({ to, text, from })).toMatchObject({ outcome: "INVALID", verificationId: "" });
    expect(await statusOf(id)).toBe("pending");
  });
});

describe("the destination number", () => {
  test.for([
    ["hyphens", (number: string) => `${number.slice(0, 3)}-${number.slice(3, 6)}-${number.slice(6)}`],
    ["spaces", (number: string) => `${number.slice(0, 3)} ${number.slice(3)}`],
    ["+82", (number: string) => `+82 ${number.slice(1)}`],
    ["82", (number: string) => `82${number.slice(1)}`],
    ["0082", (number: string) => `0082-${number.slice(1)}`],
  ] as const)("is accepted with %s", async ([, spell]) => {
    const { id, to, text } = await pending();
    expect(await send({ to: spell(to), text })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });

  test("may be a short code with #", async () => {
    const other = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    await numbers.removeDestinationNumber({ number: other.liveNumber });
    await numbers.addDestinationNumber({
      number: "#4567",
      environment: Environment.LIVE,
      projectId: other.projectId,
    });
    const { to, text } = await createPending(merchant(here.httpUrl, other.liveKey));
    expect(to).toBe("#4567");
    expect((await send({ to: "# 4567", text })).outcome).toBe("VERIFIED");
  });

  test("gives NO_MATCH if it is not registered, whatever code the text contains", async () => {
    const { id, text } = await pending();
    expect(await send({ to: "0200999999", text })).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
    expect(await statusOf(id)).toBe("pending");
  });
});

describe("a number that was added a moment ago", () => {
  /** Adds a number without a notice, and moves the project's only one away: as if the notice were still on its way. */
  async function addUnnoticed(liveKey: string, from: string, to: string) {
    const { rowCount } = await service.db.query(
      `WITH former AS (UPDATE destination_number SET removed_at = now() WHERE number = $1 RETURNING *)
       INSERT INTO destination_number (id, number, environment, project_id) SELECT uuidv7(), $2, environment, project_id FROM former`,
      [from, to],
    );
    expect(rowCount).toBe(1);
    // This process has not seen any number of the project.
    const fresh = await service.startAnother(clocked);
    return createPending(merchant(fresh.httpUrl, liveKey));
  }

  test("receives messages on a process that has not heard of it", async () => {
    const { liveKey, liveNumber } = await here.createProject();
    const added = `02${liveNumber.slice(2, -4)}7001`;
    const stranger = smsSource(there);
    // Now the numbers are cached, also that this is none of them.
    expect(await stranger.send({ to: liveNumber, text: "hello" })).toMatchObject({ outcome: "NO_MATCH" });
    const created = await addUnnoticed(liveKey, liveNumber, added);
    expect(created.to).toBe(added);
    expect(await stranger.send(created)).toMatchObject({ outcome: "VERIFIED", verificationId: created.id });
  });

  test("receives messages on a process that has only heard of its removal from the other environment", async () => {
    const { liveKey, liveNumber, testNumber: moved } = await here.createProject();
    const stranger = smsSource(there);
    await there.client(DestinationNumberService).removeDestinationNumber({ number: moved });
    // Now the numbers are cached, also that this one is removed.
    expect(await stranger.send({ to: liveNumber, text: "hello" })).toMatchObject({ outcome: "NO_MATCH" });
    const created = await addUnnoticed(liveKey, liveNumber, moved);
    expect(created.to).toBe(moved);
    expect(await stranger.send(created)).toMatchObject({ outcome: "VERIFIED", verificationId: created.id });
  });
});

describe("the two environments", () => {
  test("have separate codes: a code sent to the other environment's number is NO_MATCH", async () => {
    const { id, code } = await pending();
    const receipt = await send({ to: project.testNumber, text: code });
    expect(receipt).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
    expect(await statusOf(id)).toBe("pending");
  });

  test("can use the same code at the same time; the number determines whose it is", async () => {
    const testShop = merchant(here.httpUrl, project.testKey);
    const [live, trial] = [await pending(), await createPending(testShop)];
    await service.db.query("UPDATE live_code SET code = $1 WHERE destination = $2 AND code = $3", [
      live.code,
      trial.to,
      trial.code,
    ]);
    const receipt = await send({ to: live.to, text: live.code });
    expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId: live.id });
    expect((await testShop.read(trial.id)).body.status).toBe("pending");
    const second = await send({ to: trial.to, text: live.code });
    expect(second).toMatchObject({ outcome: "VERIFIED", verificationId: trial.id });
  });
});

describe("a number that has moved to the other environment", () => {
  /** Removes a number, and sets back when, so that it need not wait before it serves the other environment. */
  async function removeLongAgo(numbers: Client<typeof DestinationNumberService>, number: string) {
    await numbers.removeDestinationNumber({ number });
    await service.db.query(
      "UPDATE destination_number SET removed_at = removed_at - interval '5 seconds' WHERE number = $1",
      [number],
    );
  }

  const trialShop = merchant(here.httpUrl, project.testKey);

  /**
   * Puts the verification on the test environment's number, as if created by a process that had not heard of the
   * move.
   */
  async function leftBehind(verification: Pending): Promise<Pending> {
    const place = [project.testNumber, uuidOf(verification.id)];
    await service.db.query("UPDATE live_code SET destination = $1 WHERE verification_id = $2", place);
    await service.db.query("UPDATE verification SET destination = $1 WHERE id = $2", place);
    return { ...verification, to: project.testNumber };
  }

  test.for([
    { name: "pending", made: pending, status: "pending" },
    { name: "verified", made: verified, status: "verified" },
    { name: "cancelled", made: cancelled, status: "cancelled" },
    { name: "expired", made: expired, status: "expired" },
  ])("does not match the code of a $name verification of its former environment", async ({
    made,
    status,
  }) => {
    const left = await leftBehind(await made());
    const token = await here.createToken({
      scope: "ingest",
      source: `trials-${status}`,
      environment: Environment.TEST,
    });
    const from = newPhone();
    const trials = smsSource(here, token);
    expect(await trials.send({ ...left, from })).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
    expect(await trials.send({ ...left, from })).toMatchObject({ outcome: "NO_MATCH", duplicate: true });
    expect(await trials.send({ to: left.to, text: `[Web발신]\n${left.text}` })).toMatchObject({
      outcome: "WEB_SENT",
      verificationId: "",
    });
    expect((await shop.read(left.id)).body).toMatchObject({ status });
    const { rows } = await service.db.query("SELECT reason FROM pending_hint WHERE verification_id = $1", [
      uuidOf(left.id),
    ]);
    expect(rows).toEqual([]);
  });

  test("sets the hint without_code only for the expected sender's verification in its current environment", async () => {
    const from = newPhone();
    const expecting = { mode: "match", expected_phone: from };
    const left = await leftBehind(await pending(expecting));
    const trial = await createPending(trialShop, expecting);
    expect((await send({ to: left.to, text: "확인해 주세요", from })).outcome).toBe("NO_MATCH");
    const { rows } = await service.db.query(
      "SELECT verification_id, reason FROM pending_hint WHERE verification_id = ANY ($1)",
      [[uuidOf(left.id), uuidOf(trial.id)]],
    );
    expect(rows).toEqual([{ verification_id: uuidOf(trial.id), reason: "without_code" }]);
  });

  test("matches a code of its own environment beside one of the former", async () => {
    const [left, trial] = [await leftBehind(await pending()), await createPending(trialShop)];
    const receipt = await send({ to: left.to, text: `${left.code}, ${trial.code}` });
    expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId: trial.id });
    expect(await statusOf(left.id)).toBe("pending");
  });

  test("gets simulated SMS only for its current environment", async () => {
    const left = await leftBehind(await pending());
    const window = await createWindow(here, project);
    expect((await window.receipt({ text: left.text })).outcome).toBe("NO_MATCH");
    expect(await statusOf(left.id)).toBe("pending");
  });

  test("that is live now gets no simulated SMS from an older window", async () => {
    const moving = await here.createProject();
    const window = await createWindow(here, moving);
    await window.cancel();
    const numbers = here.client(DestinationNumberService);
    const { projectId, testNumber: number } = moving;
    for (const each of [number, moving.liveNumber]) await removeLongAgo(numbers, each);
    await numbers.addDestinationNumber({ number, environment: Environment.LIVE, projectId });
    const liveShop = merchant(here.httpUrl, moving.liveKey);
    const live = await createPending(liveShop);
    expect(live.to).toBe(number);
    expect((await window.receipt({ text: live.text })).outcome).toBe("NO_MATCH");
    expect((await liveShop.read(live.id)).body.status).toBe("pending");
  });

  test("and was removed there, too, matches the codes of the environment that it was removed from last", async () => {
    const moved = await here.createProject();
    const { projectId, testNumber: number } = moved;
    const numbers = here.client(DestinationNumberService);
    for (const each of [number, moved.liveNumber]) await removeLongAgo(numbers, each);
    await numbers.addDestinationNumber({ number, environment: Environment.LIVE, projectId });
    const left = await createPending(merchant(here.httpUrl, moved.liveKey));
    await numbers.removeDestinationNumber({ number });
    expect(await send(left)).toMatchObject({ outcome: "VERIFIED", verificationId: left.id });
  });

  test("can be moved only once nothing is pending on it", async () => {
    const [from, to] = [await here.createProject(), await here.createProject()];
    const number = from.liveNumber;
    const merchantOf = merchant(here.httpUrl, from.liveKey);
    const [first, second, third] = [
      await createPending(merchantOf),
      await createPending(merchantOf),
      await createPending(merchantOf),
    ];
    const numbers = here.client(DestinationNumberService);
    await numbers.removeDestinationNumber({ number });
    const move = async () => {
      const { projectId } = to;
      const environment = Environment.TEST;
      return answerOf(() => numbers.addDestinationNumber({ number, environment, projectId }));
    };
    expect((await send(first)).outcome).toBe("VERIFIED");
    await merchantOf.cancel(second.id);
    expect(await move()).toMatchObject({ code: "number_pending" });
    const { projectId } = to;
    await numbers.addDestinationNumber({ number, environment: Environment.LIVE, projectId });
    await removeLongAgo(numbers, number);
    await letExpire(service.db, third.id);
    const { message } = await move();
    expect(message?.destinationNumber).toMatchObject({ number, environment: Environment.TEST });
  });

  test("is not moved while a creation is under way that has chosen it before", async () => {
    const { projectId, liveKey, liveNumber: number } = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    const holder = await service.db.connect();
    await holder.query("BEGIN; LOCK TABLE live_code IN SHARE MODE");
    const created = createPending(merchant(there.httpUrl, liveKey));
    await untilWaiting(service.db, 1);
    await numbers.removeDestinationNumber({ number });
    const moved = answerOf(() =>
      numbers.addDestinationNumber({ number, environment: Environment.TEST, projectId }),
    );
    // Long enough for an addition that waits for nothing.
    for (let asked = 0; asked < 10; asked++) await numbers.listDestinationNumbers({ projectId });
    await holder.query("COMMIT");
    holder.release();
    const left = await created;
    expect(left.to).toBe(number);
    expect(await moved).toMatchObject({ code: "number_pending" });
    expect(await send(left)).toMatchObject({ outcome: "VERIFIED", verificationId: left.id });
  });

  test.for([
    "usage",
    "verification",
    "idempotency_record",
    "live_code",
  ])("is not moved while such a creation still waits for the table %s, however long ago the number was removed", async (table) => {
    const { projectId, liveKey, liveNumber: number } = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    const holder = await service.db.connect();
    let created: Promise<Pending>;
    let moved: Promise<{ code: string }>;
    try {
      await holder.query(`BEGIN; LOCK TABLE ${table} IN SHARE MODE`);
      created = createPending(merchant(there.httpUrl, liveKey));
      await untilWaiting(service.db, 1);
      await removeLongAgo(numbers, number);
      const isWaiting = asksForCreations(await databaseTime());
      let isAnswered = false;
      moved = answerOf(() =>
        numbers.addDestinationNumber({ number, environment: Environment.TEST, projectId }),
      ).finally(() => {
        isAnswered = true;
      });
      await vi.waitUntil(async () => isAnswered || (await isWaiting()), { timeout: 45_000, interval: 5 });
      await holder.query("COMMIT");
    } finally {
      holder.release(true);
    }
    const left = await created;
    expect(left.to).toBe(number);
    expect(await moved).toMatchObject({ code: "number_pending" });
    expect(await send(left)).toMatchObject({ outcome: "VERIFIED", verificationId: left.id });
  });

  /** Lets the first creation on the number wait for a code that is then taken. */
  async function holdCode(holder: pg.PoolClient, number: string): Promise<void> {
    await holder.query(`
      CREATE SEQUENCE creations;
      CREATE FUNCTION first_code() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF nextval(''creations'') = 1 THEN NEW.code := ''00000000''; END IF; RETURN NEW; END';
      CREATE TRIGGER first_code BEFORE INSERT ON live_code FOR EACH ROW
        WHEN (NEW.destination = '${number}' AND NEW.code <> '00000000') EXECUTE FUNCTION first_code()`);
    await holder.query(`
      BEGIN;
      INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
      VALUES ('${number}', '00000000', 'numeric', uuidv7(), now() + interval '1 hour')`);
  }

  /** Lets every creation of the process wait for that of another project, until it was long ago that it chose its number. */
  async function holdBatch(holder: pg.PoolClient): Promise<void> {
    const { projectId, liveKey } = await there.createProject();
    const other = merchant(there.httpUrl, liveKey);
    await createPending(other);
    await holder.query("BEGIN");
    await holder.query("SELECT FROM usage WHERE project_id = $1 FOR UPDATE", [decodeId("prj_", projectId)]);
    other.create().catch(() => {});
    await untilWaiting(service.db, 1);
  }

  test.for([
    { name: "begins its statement late", hold: holdBatch },
    { name: "repeats its statement", hold: holdCode },
  ])("takes no verification with it of a creation that had chosen it and then $name", async ({ hold }) => {
    const { projectId, liveKey, liveNumber: number } = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    const moving = merchant(there.httpUrl, liveKey);
    await moving.read("nothing");
    const holder = await service.db.connect();
    let created: Promise<Answer>;
    try {
      await hold(holder, number);
      created = moving.create();
      await untilWaiting(service.db, 1);
      await removeLongAgo(numbers, number);
      await moveClock(service.db, 4_000);
      await holder.query("COMMIT");
    } finally {
      holder.release(true);
    }
    const { status, body } = await created;
    expect([status, body.error?.code]).toEqual([503, "no_receiving_number"]);
    const environment = Environment.TEST;
    const added = await answerOf(() => numbers.addDestinationNumber({ number, environment, projectId }));
    expect(added).toMatchObject({ code: "ok" });
  });

  test("is replaced in a creation that begins its statement late, though its process has heard of no removal", async () => {
    const { projectId, liveKey, liveNumber } = await here.createProject();
    const other = "0203000041";
    const late = merchant(there.httpUrl, liveKey);
    await late.read("nothing");
    const holder = await service.db.connect();
    let created: Promise<Answer>;
    try {
      await holdBatch(holder);
      created = late.create();
      // By the answer it has chosen its number.
      await late.read("nothing");
      await service.db.query("UPDATE destination_number SET removed_at = now() WHERE number = $1", [
        liveNumber,
      ]);
      await service.db.query(
        "INSERT INTO destination_number (id, number, environment, project_id) VALUES (uuidv7(), $1, 'live', $2)",
        [other, decodeId("prj_", projectId)],
      );
      await moveClock(service.db, 4_000);
      await holder.query("COMMIT");
    } finally {
      holder.release(true);
    }
    const { status, body } = await created;
    expect([status, body.destination]).toEqual([201, other]);
  });

  test("is not in a creation that read the numbers before its removal, and waited for their answer", async () => {
    const { liveKey, liveNumber } = await service.createProject();
    const proxy = await startCuttableProxy(service.databaseUrl);
    const slow = await service.startAnother({ DATABASE_URL: proxy.patientUrl });
    const reading = proxy.holdAnswerTo("\0numbers\0");
    const created = merchant(slow.httpUrl, liveKey).create();
    await reading;
    // The server reads them in less time.
    await service.createProject();
    await service.db.query("UPDATE destination_number SET removed_at = now() WHERE number = $1", [
      liveNumber,
    ]);
    // Longer than a number counts as in use unseen.
    await delay(freshSeconds * 1_000 + 500);
    proxy.restore();
    const { status, body } = await created;
    expect([status, body.error?.code]).toEqual([503, "no_receiving_number"]);
  });

  test("is not moved if it was added and removed again while the call waited: it waits for that removal, too", async () => {
    const { projectId, liveNumber: number } = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    await numbers.removeDestinationNumber({ number });
    await service.db.query(
      "UPDATE destination_number SET removed_at = now() - interval '6 seconds' WHERE number = $1",
      [number],
    );
    const holder = await service.db.connect();
    let moved: ReturnType<typeof answerOf>;
    try {
      // Like a creation that is under way.
      await holder.query("BEGIN; LOCK TABLE usage IN ROW EXCLUSIVE MODE");
      const isWaiting = asksForCreations(await databaseTime());
      moved = answerOf((options) =>
        numbers.addDestinationNumber(
          { number, environment: Environment.TEST, projectId },
          { ...options, timeoutMs: 4_000 },
        ),
      );
      await vi.waitUntil(isWaiting, { timeout: 45_000, interval: 5 });
      await numbers.addDestinationNumber({ number, environment: Environment.LIVE, projectId });
      await numbers.removeDestinationNumber({ number });
      await holder.query("COMMIT");
    } finally {
      holder.release(true);
    }
    expect(await moved).toMatchObject({ status: Code.DeadlineExceeded });
  });

  test("counts as removed once nothing holds up its removal, not from when that began", async () => {
    const { liveNumber: number } = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    const holder = await service.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM destination_number WHERE number = $1 FOR UPDATE", [number]);
    const removed = numbers.removeDestinationNumber({ number });
    await untilWaiting(service.db, 1);
    await delay(100);
    const { rows } = await holder.query("SELECT clock_timestamp() AS now");
    await holder.query("COMMIT");
    holder.release();
    await removed;
    const { rows: found } = await service.db.query(
      "SELECT removed_at FROM destination_number WHERE number = $1",
      [number],
    );
    expect(found[0].removed_at.getTime()).toBeGreaterThanOrEqual(rows[0].now.getTime());
  });

  test("is not moved by a call whose client has given up while it waited: the next one moves it", async () => {
    const { projectId, liveNumber: number } = await here.createProject();
    const numbers = here.client(DestinationNumberService);
    await numbers.removeDestinationNumber({ number });
    // However late the call is read, it has to wait for a second.
    await stopClock(service.db, new Date());
    await service.db.query(
      "UPDATE destination_number SET removed_at = clock.now() - interval '4 seconds' WHERE number = $1",
      [number],
    );
    const move = (timeoutMs?: number) =>
      answerOf((options) =>
        numbers.addDestinationNumber(
          { number, environment: Environment.TEST, projectId },
          { ...options, ...(timeoutMs && { timeoutMs }) },
        ),
      );
    expect(await move(100)).toMatchObject({ status: Code.DeadlineExceeded });
    // Then the call that was given up would have moved it.
    await delay(1_000);
    expect(await move()).toMatchObject({ code: "ok" });
  });
});

test.for([
  { name: "another's addition", number: "0204711001", wasMoved: false },
  { name: "another's addition, after creations on it", number: "0204711002", wasMoved: true },
])("a number is not added by a call whose client has given up while it waited for $name", async ({
  number,
  wasMoved,
}) => {
  const numbers = here.client(DestinationNumberService);
  const environment = Environment.TEST;
  const left = new AbortController();
  const add = () =>
    answerOf(() => numbers.addDestinationNumber({ number, environment }, { signal: left.signal }));
  const holder = await service.db.connect();
  const hold = async () => {
    await holder.query("BEGIN");
    await holder.query(
      "INSERT INTO destination_number (id, number, environment) VALUES (uuidv7(), $1, 'live')",
      [number],
    );
  };
  try {
    let added: ReturnType<typeof add>;
    if (wasMoved) {
      await service.db.query(
        "INSERT INTO destination_number (id, number, environment, removed_at) VALUES (uuidv7(), $1, 'live', now() - interval '10 seconds')",
        [number],
      );
      const creation = await service.db.connect();
      try {
        await creation.query("BEGIN; LOCK TABLE usage IN ROW EXCLUSIVE MODE");
        const asks = asksForCreations(await databaseTime());
        added = add();
        await vi.waitUntil(asks, { timeout: 45_000, interval: 5 });
        await hold();
      } finally {
        creation.release(true);
      }
    } else {
      await hold();
      added = add();
    }
    await untilWaiting(service.db, 1);
    left.abort();
    expect(await added).toMatchObject({ status: Code.Canceled });
    // On the same connection: once it is answered, the service knows that the other call was given up.
    await numbers.listDestinationNumbers({ environment });
    await holder.query("ROLLBACK");
  } finally {
    holder.release(true);
  }
  const isAtWork = async () => {
    const { rows } = await service.db.query(
      "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'phoneproof' AND state NOT IN ('idle', 'disabled')",
    );
    return rows.length > 0;
  };
  await vi.waitUntil(async () => !(await isAtWork()), { timeout: 45_000, interval: 5 });
  const { rows } = await service.db.query(
    "SELECT FROM destination_number WHERE number = $1 AND removed_at IS NULL",
    [number],
  );
  expect(rows).toEqual([]);
});

describe("a numeric code is found", () => {
  test.for([
    ["alone", (code: string) => code],
    ["with spaces inside", (code: string) => [...code].join(" ")],
    ["with a hyphen inside", (code: string) => `${code.slice(0, 4)}-${code.slice(4)}`],
    ["with an en dash inside", (code: string) => `${code.slice(0, 4)}–${code.slice(4)}`],
    ["with spaces and hyphens mixed", (code: string) => `${code.slice(0, 3)} - ${code.slice(3)}`],
    ["split over two lines", (code: string) => `${code.slice(0, 4)}\n${code.slice(4)}`],
    ["between Hangul without a space", (code: string) => `인증번호${code}입니다`],
    ["after kana with a long vowel, without a space", (code: string) => `メンバー${code}です`],
    ["in quotation marks", (code: string) => `“${code}”`],
    ["in a quotation", (code: string) => `> ${code}\n보냈어요`],
    ["before a signature", (code: string) => `${code}\n-- \n홍길동 드림. Sent from my phone 3`],
    ["after a greeting", (code: string) => `안녕하세요, 저는 3층에 사는데요. ${code}`],
    ["between punctuation", (code: string) => `(${code}).`],
    [
      "in full-width digits",
      (code: string) => code.replace(/\d/g, (digit) => String.fromCharCode(digit.charCodeAt(0) + 0xfee0)),
    ],
    ["twice", (code: string) => `${code}, ${code}`],
  ] as const)("%s", async ([, write]) => {
    const { id, to, code } = await pending();
    expect(await send({ to, text: write(code) })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });
});

describe("a numeric code is not found", () => {
  test.for([
    ["followed by a digit", (code: string) => `${code}0`],
    ["preceded by a digit", (code: string) => `0${code}`],
    ["within a longer number", (code: string) => `12${code}34`],
    ["with a letter at its end", (code: string) => `${code}a`],
    ["with a letter inside", (code: string) => `${code.slice(0, 4)}x${code.slice(4)}`],
    ["if it is cut short", (code: string) => code.slice(0, 7)],
    ["with punctuation inside", (code: string) => `${code.slice(0, 4)}.${code.slice(4)}`],
    ["with Hangul inside", (code: string) => `${code.slice(0, 4)}그리고${code.slice(4)}`],
  ] as const)("%s", async ([, write]) => {
    const { id, to, code } = await pending();
    expect(await send({ to, text: write(code) })).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
    expect(await statusOf(id)).toBe("pending");
  });
});

describe("an alphanumeric code is found", async () => {
  const { liveKey } = await here.createProject({ codeFormat: CodeFormat.ALPHANUMERIC, codeLength: 10 });
  const alphanumeric = merchant(here.httpUrl, liveKey);

  test.for([
    ["as shown", (code: string) => code],
    ["in lower case", (code: string) => code.toLowerCase()],
    ["in lower case with hyphens", (code: string) => code.toLowerCase().replace(/^(.{5})/, "$1-")],
    [
      "in full-width letters",
      (code: string) => code.replace(/\w/g, (letter) => String.fromCharCode(letter.charCodeAt(0) + 0xfee0)),
    ],
  ] as const)("%s", async ([, write]) => {
    const { id, to, code } = await createPending(alphanumeric);
    expect(await send({ to, text: write(code) })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });

  test("even if the project's code length has changed since", async () => {
    const { projectId, liveKey } = await here.createProject({
      codeFormat: CodeFormat.ALPHANUMERIC,
      codeLength: 11,
    });
    const { id, to, code } = await createPending(merchant(here.httpUrl, liveKey));
    await here.client(ProjectService).updateProject({ projectId, codeLength: 12 });
    expect(await send({ to, text: code })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });

  test("but not with an additional letter", async () => {
    const { id, to, code } = await createPending(alphanumeric);
    expect((await send({ to, text: `${code}A` })).outcome).toBe("NO_MATCH");
    expect((await alphanumeric.read(id)).body.status).toBe("pending");
  });
});

describe("a message with several codes", () => {
  test("is AMBIGUOUS if two are live, and both stay usable", async () => {
    const [one, other] = [await pending(), await pending()];
    const receipt = await send({ to: one.to, text: `${one.code} ${other.code}` });
    expect(receipt).toMatchObject({ outcome: "AMBIGUOUS", verificationId: "" });
    for (const verification of [one, other]) {
      expect(await statusOf(verification.id)).toBe("pending");
      expect((await send(verification)).outcome).toBe("VERIFIED");
    }
  });

  test.for([
    ["verified", verified],
    ["cancelled", cancelled],
    ["expired", expired],
  ] as const)("verifies the live one beside one that is %s", async ([, dead]) => {
    const [gone, live] = [await dead(), await pending()];
    const receipt = await send({ to: live.to, text: `${gone.code} ${live.code}` });
    expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId: live.id });
  });

  test("verifies the live one beside a number that is no code", async () => {
    const { id, to, code } = await pending();
    const text = `${code.slice(1)}0 ${code}`;
    expect(await send({ to, text })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });

  test("is AMBIGUOUS if it contains too many possible codes, even with the right one among them", async () => {
    const { id, to, code } = await pending();
    const guesses = Array.from({ length: 33 }, (_, guess) => String(10_000_000 + guess));
    const text = [code, ...guesses].join(", ");
    expect(await send({ to, text })).toMatchObject({ outcome: "AMBIGUOUS", verificationId: "" });
    expect(await statusOf(id)).toBe("pending");
  });
});

describe("the code of a verification that has ended", () => {
  test.for([
    ["verified", verified, "NOT_PENDING"],
    ["cancelled", cancelled, "NOT_PENDING"],
    ["expired", expired, "LATE"],
  ] as const)("gets the outcome for its status: %s", async ([status, dead, outcome]) => {
    const { id, to, text } = await dead();
    expect(await send({ to, text })).toMatchObject({ outcome, verificationId: id });
    expect(await statusOf(id)).toBe(status);
    expect(await eventsOf(service.db, id)).toEqual([`verification.${status}`]);
  });

  test("gets LATE whatever received_at the source reports", async () => {
    const { id, to, text } = await expired();
    const receivedAt = new Date(Date.now() - 4_000_000);
    const receipt = await send({ to, text, receivedAt });
    expect(receipt).toMatchObject({ outcome: "LATE", verificationId: id });
  });
});

describe("the instant of expiry", () => {
  test.for([
    { name: "one millisecond before it, an SMS verifies", late: -1, outcome: "VERIFIED", status: "verified" },
    { name: "at this instant, an SMS is LATE", late: 0, outcome: "LATE", status: "expired" },
    { name: "one millisecond after it, an SMS is LATE", late: 1, outcome: "LATE", status: "expired" },
  ])("$name", async ({ late, outcome, status }) => {
    const { id, to, text, expiresAt } = await pending();
    const arrival = new Date(expiresAt.getTime() + late);
    await stopClock(service.db, arrival);
    expect(await send({ to, text })).toMatchObject({ outcome, verificationId: id });
    const { body } = await shopThere.read(id);
    expect([body.status, body.server_time]).toEqual([status, arrival.toISOString()]);
    expect(body.verified_at).toBe(status === "verified" ? arrival.toISOString() : null);
    expect(await eventsOf(service.db, id)).toEqual([`verification.${status}`]);
  });

  test("at this instant, a cancel is refused, and lists show the verification as expired", async () => {
    const [{ id, expiresAt }, other] = [await pending(), await pending()];
    await stopClock(service.db, expiresAt);
    const { status, body } = await shopThere.cancel(id);
    expect([status, body.error.code]).toEqual([409, "verification_not_cancellable"]);
    expect(await eventsOf(service.db, id)).toEqual(["verification.expired"]);
    await stopClock(service.db, other.expiresAt);
    const idsOf = async (listed: VerificationStatus) =>
      (await rpc.listVerifications({ statuses: [listed], pageSize: 1000 })).verifications.map(({ id }) => id);
    expect(await idsOf(VerificationStatus.EXPIRED)).toContain(other.id);
    expect(await idsOf(VerificationStatus.PENDING)).not.toContain(other.id);
  });

  test.for([
    {
      name: "one millisecond before it, the window shows the verification as pending",
      late: -1,
      shows: "pending",
    },
    {
      name: "at this instant, the window shows it as expired, with the event written",
      late: 0,
      shows: "expired",
    },
  ])("$name", async ({ late, shows }) => {
    const window = await createWindow(here, project);
    const { rows } = await service.db.query("SELECT expires_at FROM verification WHERE id = $1", [
      uuidOf(window.id),
    ]);
    await stopClock(service.db, new Date(rows[0].expires_at.getTime() + late));
    const { status, remainingMs } = JSON.parse((await window.get("/status")).text);
    expect([status, remainingMs]).toEqual([shows, Math.abs(late)]);
    expect(await eventsOf(service.db, window.id)).toEqual(late < 0 ? [] : ["verification.expired"]);
  });

  test("is final once a read has shown it, even if the clock is set back", async () => {
    const { id, to, text, expiresAt } = await pending();
    await stopClock(service.db, expiresAt);
    expect((await shopThere.read(id)).body.status).toBe("expired");
    await moveClock(service.db, -60_000);
    expect(await send({ to, text })).toMatchObject({ outcome: "LATE", verificationId: id });
    expect(await statusOf(id)).toBe("expired");
  });
});

describe("in match mode", () => {
  const expectedPhone = "010-1234-9001";

  test("the expected sender verifies", async () => {
    const { id, to, text } = await pending({ mode: "match", expected_phone: expectedPhone });
    const receipt = await send({ to, text, from: "+82 10 1234 9001" });
    expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId: id });
    expect((await shop.read(id)).body).toMatchObject({ status: "verified", phone: "01012349001" });
  });

  test("another sender gets SENDER_MISMATCH, after which the expected one still verifies", async () => {
    const { id, to, text } = await pending({ mode: "match", expected_phone: expectedPhone });
    for (let stranger = 0; stranger < 7; stranger++) {
      expect(await send({ to, text })).toMatchObject({ outcome: "SENDER_MISMATCH", verificationId: id });
    }
    expect((await shop.read(id)).body).toMatchObject({ status: "pending", phone: null, carrier: null });
    expect(await eventsOf(service.db, id)).toEqual([]);
    expect((await send({ to, text, from: expectedPhone })).outcome).toBe("VERIFIED");
  });

  test("another sender right before the expected one in the same request changes nothing", async () => {
    const { id, to, text } = await pending({ mode: "match", expected_phone: expectedPhone });
    // The first is sent alone; the others form a batch.
    const receipts = await sendAll([
      { to, text: "hello" },
      { to, text },
      { to, text, from: expectedPhone },
    ]);
    expect(receipts.map(({ outcome, verificationId }) => [outcome, verificationId])).toEqual([
      ["NO_MATCH", ""],
      ["SENDER_MISMATCH", id],
      ["VERIFIED", id],
    ]);
  });

  test("an expected phone sent in discover mode is neither compared nor stored", async () => {
    const [expected, from] = [newPhone(), newPhone()];
    const { id, to, text } = await pending({ mode: "discover", expected_phone: expected });
    expect(await tablesWith(service.db, expected)).toEqual([]);
    expect((await send({ to, text, from })).outcome).toBe("VERIFIED");
    expect((await shop.read(id)).body.phone).toBe(from);
  });
});

describe("a web-sent message", () => {
  test.for([
    "[Web발신]",
    "[WEB발신]",
    "[web발신]",
    "[ Web 발신 ]",
    "[Web 발신]",
    "(Web발신)",
    "【Web발신】",
    "<Web발신>",
    "［Ｗｅｂ발신］",
    "[국제발신]",
    "[국제 발신]",
    "[국외발신]",
    "(국외발신)",
    "[웹발신]",
    "[국제웹발신]",
    "[국제 Web발신]",
  ])("marked %s is refused whatever it contains", async (mark) => {
    const { id, to, text } = await pending();
    const receipt = await send({ to, text: `${mark}\n${text}` });
    expect(receipt).toMatchObject({ outcome: "WEB_SENT", verificationId: id });
    expect(await statusOf(id)).toBe("pending");
    expect((await send({ to, text })).outcome).toBe("VERIFIED");
  });

  test("is WEB_SENT on an unregistered number, too", async () => {
    const { id, text } = await pending();
    const receipt = await send({ to: "0200999999", text: `[Web발신]\n${text}` });
    expect(receipt).toMatchObject({ outcome: "WEB_SENT", verificationId: "" });
    expect(await statusOf(id)).toBe("pending");
  });

  test("is recognized only by a mark at its beginning: further on, a mark is the sender's own text", async () => {
    const { to, text } = await pending();
    expect((await send({ to, text: `${text}\n[Web발신]` })).outcome).toBe("VERIFIED");
  });
});

describe("the carrier", () => {
  test.for([
    ["SKT", "SKT"],
    ["KT_MVNO", "KT"],
    ["LG U+", "LGU+"],
    ["450-06", "LGU+"],
    ["EXAMPLE MOBILE", null],
    ["", null],
  ] as const)("sent as %s is read back over REST as %s", async ([carrier, read]) => {
    const { id, to, text } = await pending();
    expect((await send({ to, text, carrier })).outcome).toBe("VERIFIED");
    expect((await shop.read(id)).body.carrier).toBe(read);
  });
});
