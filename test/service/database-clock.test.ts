import { describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createRetentionTasks } from "../../src/storage/retention.ts";
import { merchant } from "../gateway/merchant.ts";
import { byTheClock, clockIsSteady, installClock, moveClock } from "../harness/clock.ts";
import { tablesWith } from "../harness/every-table.ts";
import { startTestService } from "../harness/service.ts";
import { createWindow, openStream } from "../window/open-window.ts";
import { createPending, uuidOf } from "./pending.ts";
import { newPhone, smsSource } from "./sms-source.ts";

const hour = 3_600_000;
const day = 24 * hour;
const minute = 60_000;
const phone = "01012345678";

test.for([
  { name: "100 days behind", databaseAhead: 100 * day },
  { name: "9 hours behind", databaseAhead: 9 * hour },
  { name: "9 hours ahead of", databaseAhead: -9 * hour },
  { name: "100 days ahead of", databaseAhead: -100 * day },
])("a process whose clock is $name the database's still gives the pending hint and erases phones when due", async (row) => {
  const plain = await startTestService({ ROLES: "api" });
  await installClock(plain.db);
  await moveClock(plain.db, row.databaseAhead);
  const url = byTheClock(plain.databaseUrl);
  const service = await plain.startAnother({ ROLES: "api", DATABASE_URL: url });
  const database = openDatabase({ connectionString: url }, { poolSize: 1, onError: () => {} });
  const retain = async () => {
    await clockIsSteady(plain.db);
    const days = { unmatchedDays: 7, finishedDays: 90, statisticsDays: 400 };
    for (const task of createRetentionTasks(database, days)) while (await task.work());
  };
  const phoneOf = async (id: string) => {
    const { rows } = await plain.db.query("SELECT phone FROM verification WHERE id = $1", [uuidOf(id)]);
    return rows[0].phone;
  };
  try {
    const project = await service.createProject();
    const shop = merchant(service.httpUrl, project.liveKey);
    const { id, to, text } = await createPending(shop, { mode: "match", expected_phone: phone });
    const createdAt = Date.parse((await shop.read(id)).body.created_at);
    expect(Math.abs(timeOf(id) - createdAt)).toBeLessThan(minute);

    await service.sms({ to, from: phone, text: "it does not work" });
    const { rows } = await plain.db.query("SELECT reason FROM pending_hint WHERE verification_id = $1", [
      uuidOf(id),
    ]);
    expect(rows).toEqual([{ reason: "without_code" }]);

    expect(await service.sms({ to, from: phone, text })).toMatchObject([{ outcome: "VERIFIED" }]);
    // Other verifications are created meanwhile.
    for (let passed = 0; passed < 9; passed++) {
      await retain();
      expect(await phoneOf(id)).toBe(phone);
      await moveClock(plain.db, 10 * day - 10 * minute);
      await shop.create();
    }
    await moveClock(plain.db, day);
    await plain.db.query("UPDATE verification SET status = 'expired' WHERE status = 'pending'");
    await retain();
    expect(await phoneOf(id)).toBeNull();
  } finally {
    await database.close();
  }
});

test.for([
  { name: "forward", by: 400 * day },
  { name: "back", by: -400 * day },
])("ids have the time of their creation also right after the database's clock was set $name, and each call counts once", async ({
  by,
}) => {
  const plain = await startTestService({ ROLES: "api" });
  await installClock(plain.db);
  const service = await plain.startAnother({ ROLES: "api", DATABASE_URL: byTheClock(plain.databaseUrl) });
  const shop = merchant(service.httpUrl, (await service.createProject()).liveKey);
  await shop.create();
  await moveClock(plain.db, by);
  const creations = await Promise.all(Array.from({ length: 20 }, () => shop.create()));
  for (const { status, body } of creations) {
    expect(status).toBe(201);
    expect(Math.abs(timeOf(body.id) - Date.parse(body.created_at))).toBeLessThan(minute);
    expect(Math.abs(Date.now() + by - Date.parse(body.created_at))).toBeLessThan(hour);
  }
  const calls = creations.map(({ headers }) => Number(headers.get("x-usage-calls")));
  // Another month begins.
  expect(calls.sort((one, other) => one - other)).toEqual(
    Array.from({ length: 20 }, (_, index) => index + 1),
  );
});

describe("right after the database's clock was set back by half a minute, as by a standby that takes over", async () => {
  const plain = await startTestService({ ROLES: "api" });
  await installClock(plain.db);
  const service = await plain.startAnother({ ROLES: "api", DATABASE_URL: byTheClock(plain.databaseUrl) });
  const project = await service.createProject();
  const { send } = smsSource(service);
  const setBack = () => moveClock(plain.db, -30_000);

  test("an open window shows the next hint", async () => {
    const window = await createWindow(service, project, { mode: "match", expected_phone: newPhone() });
    const stream = await openStream(window.url);
    await send({ to: window.to, text: window.text, from: newPhone() });
    const hinted = async () => {
      for (;;) {
        const state = (await stream.next())?.state;
        if (state?.hint !== null) return { hint: state?.hint, at: Number(state?.version.split(".")[1]) };
      }
    };
    const first = await hinted();
    await setBack();
    await send({ to: window.to, text: `[Web발신] ${window.text}`, from: newPhone() });
    const second = await hinted();
    expect([first.hint, second.hint]).toEqual(["another_number", "web_sent"]);
    // The page ignores what is not newer.
    expect(second.at).toBeGreaterThan(first.at);
  });

  test("the erasure of a verification finds the messages that carried its code", async () => {
    const shop = merchant(service.httpUrl, project.liveKey);
    const [one, other] = [await createPending(shop), await createPending(shop)];
    await setBack();
    const from = newPhone();
    const { outcome } = await send({ to: one.to, text: `${one.code}, ${other.code}`, from });
    expect(outcome).toBe("AMBIGUOUS");
    const { erasure } = await service.client(ErasureService).eraseVerification({ verificationId: one.id });
    expect(erasure).toMatchObject({ verifications: 1, messages: 1 });
    expect(await tablesWith(plain.db, from)).toEqual([]);
  });
});

/** Milliseconds since the epoch, with which a UUIDv7 begins. */
function timeOf(id: string): number {
  const uuid = decodeId("vrf_", id) ?? "";
  return Number.parseInt(uuid.slice(0, 8) + uuid.slice(9, 13), 16);
}
