import { afterEach, describe, expect, test } from "vitest";
import { merchant } from "../gateway/merchant.ts";
import { byTheClock, installClock, moveClock, resetClock, stopClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { raceTo } from "./barrier.ts";
import { createPending, letExpire } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const service = await startTestService({ ROLES: "api" });
await installClock(service.db);
const clocked = { DATABASE_URL: byTheClock(service.databaseUrl) };
const [here, there] = await Promise.all([service.startAnother(clocked), service.startAnother(clocked)]);
const project = await here.createProject();
const shop = merchant(here.httpUrl, project.liveKey);
const testShop = merchant(here.httpUrl, project.testKey);
const [sourceHere, sourceThere] = [smsSource(here), smsSource(there)];

afterEach(() => resetClock(service.db));

const start = new Date("2031-05-01T00:00:00.000Z");
const minute = 60_000;

let guesses = 0;

/** A message without any code, of a text of its own: a NO_MATCH. */
function guess(from: string, to = project.liveNumber): SmsFields {
  guesses += 1;
  return { from, to, text: `is it 99-${guesses}?` };
}

async function outcomesOf(messages: readonly SmsFields[], source = sourceHere): Promise<string[]> {
  return (await source.sendAll(messages)).map(({ outcome }) => outcome);
}

const times = <T>(count: number, make: () => T): T[] => Array.from({ length: count }, make);

async function muted(from: string): Promise<void> {
  expect(await outcomesOf(times(5, () => guess(from)))).toEqual(times(5, () => "NO_MATCH"));
}

/** Whether the sender's right code is taken, and so whether it is mute. */
async function isMute(from: string, of = shop): Promise<boolean> {
  const { id, to, text } = await createPending(of);
  const { outcome, verificationId } = await sourceHere.send({ from, to, text });
  if (outcome === "MUTED") {
    expect(verificationId).toBe("");
    expect((await of.read(id)).body.status).toBe("pending");
    return true;
  }
  expect([outcome, verificationId]).toEqual(["VERIFIED", id]);
  return false;
}

describe("the fifth miss within ten minutes", () => {
  test("mutes within one batch, too, what is the right code of a pending verification", async () => {
    const { id, to, text } = await createPending(shop);
    const from = newPhone();
    // The first goes alone, those that come meanwhile together.
    const messages = [guess(newPhone()), ...times(5, () => guess(from)), { from, to, text }];
    expect(await outcomesOf(messages)).toEqual([...times(6, () => "NO_MATCH"), "MUTED"]);
    expect((await shop.read(id)).body.status).toBe("pending");
  });

  test("mutes the sender, and the fourth does not", async () => {
    const from = newPhone();
    await outcomesOf(times(4, () => guess(from)));
    expect(await isMute(from)).toBe(false);
    await outcomesOf([guess(from)]);
    expect(await isMute(from)).toBe(true);
  });

  test("mutes however the sender is spelled", async () => {
    const from = newPhone();
    const spellings = [
      from,
      `+82${from.slice(1)}`,
      `0082 ${from.slice(1)}`,
      `${from.slice(0, 3)}-${from.slice(3)}`,
    ];
    await outcomesOf([...spellings, from].map((spelling) => guess(spelling)));
    expect(await isMute(`82-${from.slice(1)}`)).toBe(true);
  });

  test("mutes within the request that holds it", async () => {
    const from = newPhone();
    const { id, to, text } = await createPending(shop);
    expect(await outcomesOf([...times(5, () => guess(from)), { from, to, text }])).toEqual([
      ...times(5, () => "NO_MATCH"),
      "MUTED",
    ]);
    expect((await shop.read(id)).body.status).toBe("pending");
  });

  test("mutes though verified messages come between the misses", async () => {
    const from = newPhone();
    for (let miss = 0; miss < 4; miss++) {
      await outcomesOf([guess(from)]);
      expect(await isMute(from)).toBe(false);
    }
    await outcomesOf([guess(from)]);
    expect(await isMute(from)).toBe(true);
  });

  test("mutes on whichever numbers of the environment, and of whichever projects, the misses were", async () => {
    const neighbour = await here.createProject();
    const from = newPhone();
    await outcomesOf([...times(3, () => guess(from)), ...times(2, () => guess(from, neighbour.liveNumber))]);
    expect(await isMute(from)).toBe(true);
    expect(await isMute(from, merchant(here.httpUrl, neighbour.liveKey))).toBe(true);
  });

  test("mutes in its environment alone", async () => {
    const from = newPhone();
    await outcomesOf(times(4, () => guess(from, project.testNumber)));
    await muted(from);
    expect(await isMute(from)).toBe(true);
    expect(await isMute(from, testShop)).toBe(false);
    await outcomesOf([guess(from, project.testNumber)]);
    expect(await isMute(from, testShop)).toBe(true);
  });

  test("mutes neither the destination nor the verification: another sender still verifies", async () => {
    const from = newPhone();
    await muted(from);
    const { id, to, text } = await createPending(shop);
    expect((await sourceHere.send({ from, to, text })).outcome).toBe("MUTED");
    expect(await sourceHere.send({ to, text })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });
});

describe("of the outcomes", () => {
  test.for<[string, boolean, (from: string) => Promise<SmsFields[]>]>([
    ["NO_MATCH", true, async (from) => times(5, () => guess(from))],
    [
      "AMBIGUOUS",
      true,
      async (from) => {
        const [one, other] = [await createPending(shop), await createPending(shop)];
        return times(5, () => ({
          from,
          to: one.to,
          text: `${one.code}, ${other.code}, ${guess(from).text}`,
        }));
      },
    ],
    [
      "SENDER_MISMATCH",
      true,
      async (from) => {
        const { to, code } = await createPending(shop, { mode: "match", expected_phone: newPhone() });
        return times(5, () => ({ from, to, text: `${code}, ${guess(from).text}` }));
      },
    ],
    [
      "WEB_SENT",
      false,
      async (from) => times(6, () => ({ ...guess(from), text: `[Web발신] ${guess(from).text}` })),
    ],
    ["INVALID", false, async (from) => times(6, () => ({ ...guess(from), carrier: "\0" }))],
    [
      "LATE",
      false,
      async (from) => {
        const { id, to, code } = await createPending(shop);
        await letExpire(service.db, id);
        return times(6, () => ({ from, to, text: `${code}, ${guess(from).text}` }));
      },
    ],
    [
      "NOT_PENDING",
      false,
      async (from) => {
        const { id, to, code } = await createPending(shop);
        await shop.cancel(id);
        return times(6, () => ({ from, to, text: `${code}, ${guess(from).text}` }));
      },
    ],
  ])("%s counts as a miss: %s", async ([outcome, counts, messagesFrom]) => {
    const from = newPhone();
    const messages = await messagesFrom(from);
    const outcomes = new Set(await outcomesOf(messages));
    expect([...outcomes]).toEqual([outcome]);
    expect(await isMute(from)).toBe(counts);
  });

  test("a duplicate's never counts, by its id or by its content", async () => {
    const from = newPhone();
    const message = guess(from);
    const repeated = { ...message, messageId: "guess-repeated" };
    const receipts = await sourceHere.sendAll([...times(6, () => repeated), ...times(6, () => message)]);
    expect(receipts.map(({ outcome, duplicate }) => [outcome, duplicate])).toEqual([
      ["NO_MATCH", false],
      ...times(11, () => ["NO_MATCH", true]),
    ]);
    await outcomesOf(times(3, () => guess(from)));
    expect(await isMute(from)).toBe(false);
  });

  test("NO_MATCH on a number that nobody has does not count: it belongs to no environment", async () => {
    const from = newPhone();
    await outcomesOf(times(6, () => guess(from, "0200999996")));
    expect(await isMute(from)).toBe(false);
    expect(await isMute(from, testShop)).toBe(false);
  });

  test("the misses of another sender do not count, however many there are", async () => {
    const from = newPhone();
    await outcomesOf(times(20, () => guess(newPhone())));
    expect(await isMute(from)).toBe(false);
  });
});

describe("a muted sender", () => {
  test("is told so about whatever it sends, but for what was sent from the web or is not sound", async () => {
    const from = newPhone();
    await muted(from);
    const { to, text } = await createPending(shop);
    expect(
      await outcomesOf([
        { from, to, text },
        guess(from),
        { from, to, text: `[Web발신]\n${text}` },
        { from, to, text: "" },
      ]),
    ).toEqual(["MUTED", "MUTED", "WEB_SENT", "INVALID"]);
  });

  test.for([
    { name: "is mute to the last millisecond of ten minutes", later: 10 * minute - 1, mute: true },
    { name: "is heard again after ten minutes", later: 10 * minute, mute: false },
  ])("$name", async ({ later, mute }) => {
    await stopClock(service.db, start);
    const from = newPhone();
    await muted(from);
    await moveClock(service.db, later);
    expect(await isMute(from)).toBe(mute);
  });

  test("is not muted for longer by what it sends meanwhile", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    await muted(from);
    for (let elapsed = 0; elapsed < 9; elapsed++) {
      await moveClock(service.db, minute);
      expect(await outcomesOf(times(5, () => guess(from)))).toEqual(times(5, () => "MUTED"));
    }
    await moveClock(service.db, minute);
    expect(await isMute(from)).toBe(false);
  });

  test("has five misses again afterwards", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    await muted(from);
    await moveClock(service.db, 10 * minute);
    await outcomesOf(times(4, () => guess(from)));
    expect(await isMute(from)).toBe(false);
    await outcomesOf([guess(from)]);
    expect(await isMute(from)).toBe(true);
  });
});

describe("misses", () => {
  test("count together within ten minutes", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    await outcomesOf([guess(from)]);
    await moveClock(service.db, 10 * minute - 1);
    await outcomesOf(times(4, () => guess(from)));
    expect(await isMute(from)).toBe(true);
  });

  test("further apart do not, however many there are", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    for (let miss = 0; miss < 12; miss++) {
      expect(await outcomesOf([guess(from)])).toEqual(["NO_MATCH"]);
      await moveClock(service.db, 2.5 * minute);
    }
    expect(await isMute(from)).toBe(false);
  });
});

describe("on two processes", () => {
  test("five misses at the same time are five: the sixth message is MUTED wherever it arrives", async () => {
    for (const [last, where] of [
      [sourceHere, "here"],
      [sourceThere, "there"],
    ] as const) {
      const from = newPhone();
      const outcomes = await raceTo(service.db, "inbound_message", [
        () =>
          outcomesOf(
            times(3, () => guess(from)),
            sourceHere,
          ),
        () =>
          outcomesOf(
            times(2, () => guess(from)),
            sourceThere,
          ),
      ]);
      expect(outcomes.flat()).toEqual(times(5, () => "NO_MATCH"));
      const { to, text } = await createPending(shop);
      expect([where, (await last.send({ from, to, text })).outcome]).toEqual([where, "MUTED"]);
    }
  });

  test("of any number of guesses at the same time exactly five are looked at", async () => {
    for (let round = 0; round < 10; round++) {
      const from = newPhone();
      const streams = times(8, () => times(2, () => guess(from)));
      const outcomes = await Promise.all(
        streams.map((messages, index) => outcomesOf(messages, index % 2 === 0 ? sourceHere : sourceThere)),
      );
      const counted = Object.groupBy(outcomes.flat(), (outcome) => outcome);
      expect([counted.NO_MATCH?.length, counted.MUTED?.length]).toEqual([5, 11]);
    }
  });

  test("four misses here and the fifth there mute", async () => {
    const from = newPhone();
    await outcomesOf(
      times(4, () => guess(from)),
      sourceHere,
    );
    await outcomesOf([guess(from)], sourceThere);
    expect(await isMute(from)).toBe(true);
  });
});

test("who forges a victim's number on the web cannot mute the victim", async () => {
  const victim = newPhone();
  const { id, to, text } = await createPending(shop, { mode: "match", expected_phone: victim });
  const forged = [
    ...times(20, () => ({ ...guess(victim), text: `[Web발신] ${guess(victim).text}` })),
    { from: victim, to, text: `[국제발신]\n${text}` },
  ];
  expect(new Set(await outcomesOf(forged))).toEqual(new Set(["WEB_SENT"]));
  expect(await sourceThere.send({ from: victim, to, text })).toMatchObject({
    outcome: "VERIFIED",
    verificationId: id,
  });
});
