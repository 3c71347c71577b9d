/** Messages by the thousand, so that more than one batch of them is in the database at a time. */
import { expect, test } from "vitest";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { createPending, type Pending } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const service = await startTestService({ ROLES: "api" });
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);
const source = smsSource(service);

const times = <T>(count: number, make: (n: number) => T): T[] =>
  Array.from({ length: count }, (_, n) => make(n));

/** Of somebody new, without a code. */
const noise = (n: number): SmsFields => ({ from: newPhone(), to: project.liveNumber, text: `hello ${n}` });

test("of two messages with one code the first to arrive wins, however far apart they are", async () => {
  const pending: Pending[] = [];
  for (let made = 0; made < 200; made += 50)
    pending.push(...(await Promise.all(times(50, () => createPending(shop)))));
  const sending = () => pending.map(({ to, text }) => ({ from: newPhone(), to, text }));
  // The second ones come while the first are in the database, and so do the third.
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

test("a sender is muted after five misses that lie among thousands of others' messages", async () => {
  const guesser = newPhone();
  const guess = (n: number): SmsFields => ({ from: guesser, to: project.liveNumber, text: `is it 99-${n}?` });
  const messages = times(8, (n) => [...times(250, (m) => noise(n * 1_000 + m)), guess(n)]).flat();
  const outcomes = (await source.sendAll(messages)).map(({ outcome }) => outcome);
  expect(times(8, (n) => outcomes[n * 251 + 250])).toEqual([
    ...times(5, () => "NO_MATCH"),
    ...times(3, () => "MUTED"),
  ]);
});
