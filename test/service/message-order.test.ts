/** Thousands of messages, so that more than one batch of them is in the database at a time. */
import { expect, test, vi } from "vitest";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { untilWaiting } from "./barrier.ts";
import { createPending, type Pending, uuidOf } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const service = await startTestService({ ROLES: "api" });
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);
const source = smsSource(service);

const times = <T>(count: number, make: (n: number) => T): T[] =>
  Array.from({ length: count }, (_, n) => make(n));

/** A message from a new phone, without a code. */
const noise = (n: number): SmsFields => ({ from: newPhone(), to: project.liveNumber, text: `hello ${n}` });

/** A message from a new phone, with the code. */
const withCode = ({ to, text }: Pending): SmsFields => ({ from: newPhone(), to, text });

test("of several messages with one code, the first to arrive verifies, however far apart they are", async () => {
  const pending: Pending[] = [];
  for (let made = 0; made < 200; made += 50)
    pending.push(...(await Promise.all(times(50, () => createPending(shop)))));
  const sending = () => pending.map(withCode);
  // The second and third series arrive while the first is being stored.
  const messages = [
    ...times(300, noise),
    ...sending(),
    ...times(200, noise),
    ...sending(),
    ...times(500, noise),
    ...sending(),
  ];
  const outcomes = (await source.sendAll(messages)).map(({ outcome }) => outcome);
  expect(outcomes.slice(300, 500)).toEqual(times(200, () => "VERIFIED"));
  expect(outcomes.slice(700, 900)).toEqual(times(200, () => "NOT_PENDING"));
  expect(outcomes.slice(1_400)).toEqual(times(200, () => "NOT_PENDING"));
  const batches = await service.db.query(
    "SELECT count(DISTINCT ingested_at)::int AS count FROM inbound_message",
  );
  expect(batches.rows[0].count).toBeGreaterThan(2);
});

test("the second message with a code cannot overtake the first in a batch that runs beside", async () => {
  const [held, wanted] = [await createPending(shop), await createPending(shop)];
  const holder = await service.db.connect();
  await holder.query("BEGIN");
  await holder.query("SELECT FROM verification WHERE id = $1 FOR UPDATE", [uuidOf(held.id)]);
  // Messages two and three are one batch, which waits for the holder and has not touched the other code yet.
  const first = source.sendAll([noise(0), withCode(held), withCode(wanted), ...times(200, noise)]);
  await untilWaiting(service.db, 1);
  const beside = times(300, (n) => ({ ...noise(n), text: `beside ${n}` }));
  const second = source.sendAll([withCode(wanted), ...beside]);
  const stored = async () => {
    const { rows } = await service.db.query(
      "SELECT count(*)::int AS count FROM inbound_message WHERE text LIKE 'beside %'",
    );
    return rows[0].count;
  };
  await vi.waitUntil(async () => (await stored()) > 0, { timeout: 45_000, interval: 5 });
  await holder.query("ROLLBACK");
  holder.release();
  expect((await first).slice(1, 3).map(({ outcome }) => outcome)).toEqual(["VERIFIED", "VERIFIED"]);
  expect((await second)[0]?.outcome).toBe("NOT_PENDING");
});

test("a sender is muted after five misses scattered among thousands of others' messages", async () => {
  const guesser = newPhone();
  const guess = (n: number): SmsFields => ({ from: guesser, to: project.liveNumber, text: `is it 99-${n}?` });
  const messages = times(8, (n) => [...times(250, (m) => noise(n * 1_000 + m)), guess(n)]).flat();
  const outcomes = (await source.sendAll(messages)).map(({ outcome }) => outcome);
  expect(times(8, (n) => outcomes[n * 251 + 250])).toEqual([
    ...times(5, () => "NO_MATCH"),
    ...times(3, () => "MUTED"),
  ]);
});
