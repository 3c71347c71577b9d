import { describe, expect, test } from "vitest";
import { merchant } from "../gateway/merchant.ts";
import { moveClock, stopClock } from "../harness/clock.ts";
import { raceTo } from "./barrier.ts";
import { startClockedPair } from "./clocked-pair.ts";
import { createPending, letExpire } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const { service, here, there } = await startClockedPair();
const project = await here.createProject();
const shop = merchant(here.httpUrl, project.liveKey);
const testShop = merchant(here.httpUrl, project.testKey);
const [sourceHere, sourceThere] = [smsSource(here), smsSource(there)];

const start = new Date("2031-05-01T00:00:00.000Z");
const minute = 60_000;

let guesses = 0;

/** A message without a code, with a unique text: a NO_MATCH. */
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

/** Whether the sender is muted: sends a valid code from it and checks that it is refused or verified accordingly. */
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
  test("mutes a message with the right code within the same batch", async () => {
    const { id, to, text } = await createPending(shop);
    const from = newPhone();
    // The first is sent alone; those that arrive meanwhile form a batch.
    const messages = [guess(newPhone()), ...times(5, () => guess(from)), { from, to, text }];
    expect(await outcomesOf(messages)).toEqual([...times(6, () => "NO_MATCH"), "MUTED"]);
    expect((await shop.read(id)).body.status).toBe("pending");
  });

  test("mutes the sender; the fourth does not", async () => {
    const from = newPhone();
    await outcomesOf(times(4, () => guess(from)));
    expect(await isMute(from)).toBe(false);
    await outcomesOf([guess(from)]);
    expect(await isMute(from)).toBe(true);
  });

  test("mutes however the sender is written", async () => {
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

  test("mutes within the same request", async () => {
    const from = newPhone();
    const { id, to, text } = await createPending(shop);
    expect(await outcomesOf([...times(5, () => guess(from)), { from, to, text }])).toEqual([
      ...times(5, () => "NO_MATCH"),
      "MUTED",
    ]);
    expect((await shop.read(id)).body.status).toBe("pending");
  });

  test("mutes even if verified messages come between the misses", async () => {
    const from = newPhone();
    for (let miss = 0; miss < 4; miss++) {
      await outcomesOf([guess(from)]);
      expect(await isMute(from)).toBe(false);
    }
    await outcomesOf([guess(from)]);
    expect(await isMute(from)).toBe(true);
  });

  test("mutes across all numbers and projects of the environment", async () => {
    const neighbour = await here.createProject();
    const from = newPhone();
    await outcomesOf([...times(3, () => guess(from)), ...times(2, () => guess(from, neighbour.liveNumber))]);
    expect(await isMute(from)).toBe(true);
    expect(await isMute(from, merchant(here.httpUrl, neighbour.liveKey))).toBe(true);
  });

  test("mutes in its own environment only", async () => {
    const from = newPhone();
    await outcomesOf(times(4, () => guess(from, project.testNumber)));
    await muted(from);
    expect(await isMute(from)).toBe(true);
    expect(await isMute(from, testShop)).toBe(false);
    await outcomesOf([guess(from, project.testNumber)]);
    expect(await isMute(from, testShop)).toBe(true);
  });

  test("mutes neither the destination nor the verification: another sender can still verify", async () => {
    const from = newPhone();
    await muted(from);
    const { id, to, text } = await createPending(shop);
    expect((await sourceHere.send({ from, to, text })).outcome).toBe("MUTED");
    expect(await sourceHere.send({ to, text })).toMatchObject({ outcome: "VERIFIED", verificationId: id });
  });
});

describe("outcomes as misses:", () => {
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

  test("NOT_PENDING with a number of the SMS text does not count, nor in one batch with the message that verified", async () => {
    const { liveKey } = await here.createProject({ smsTemplate: "{code} 문의 1588-1234" });
    const { to, text } = await createPending(merchant(here.httpUrl, liveKey));
    const from = newPhone();
    const repeats = times(6, () => ({ from, to, text: `${text} (${guess(from).text})` }));
    // The first is sent alone; those that arrive meanwhile form a batch.
    expect(await outcomesOf([guess(newPhone()), { to, text }, ...repeats])).toEqual([
      "NO_MATCH",
      "VERIFIED",
      ...times(6, () => "NOT_PENDING"),
    ]);
    expect(await isMute(from)).toBe(false);
  });

  test("a duplicate does not count, whether by its id or by its content", async () => {
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

  test("NO_MATCH on an unregistered number does not count, because it belongs to no environment", async () => {
    const from = newPhone();
    await outcomesOf(times(6, () => guess(from, "0200999996")));
    expect(await isMute(from)).toBe(false);
    expect(await isMute(from, testShop)).toBe(false);
  });

  test("the misses of other senders do not count, however many there are", async () => {
    const from = newPhone();
    await outcomesOf(times(20, () => guess(newPhone())));
    expect(await isMute(from)).toBe(false);
  });
});

describe("a muted sender", () => {
  test("gets MUTED for everything it sends, except web-sent and invalid messages", async () => {
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
    { name: "is muted until the last millisecond of ten minutes", later: 10 * minute - 1, mute: true },
    { name: "is no longer muted after ten minutes", later: 10 * minute, mute: false },
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

  test("is muted again only after another five misses", async () => {
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

describe("after the database's clock was an hour ahead", () => {
  const hour = 60 * minute;

  test.for([
    { name: "a sender muted meanwhile is not muted", misses: 5 },
    { name: "misses counted meanwhile do not count", misses: 4 },
  ])("$name", async ({ misses }) => {
    await stopClock(service.db, start);
    const from = newPhone();
    await moveClock(service.db, hour);
    await outcomesOf(times(misses, () => guess(from)));
    await moveClock(service.db, -hour);
    await outcomesOf(times(1, () => guess(from)));
    expect(await isMute(from)).toBe(false);
  });

  test("a sender is muted by five misses", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    await moveClock(service.db, hour);
    await muted(from);
    await moveClock(service.db, -hour);
    await muted(from);
    expect(await isMute(from)).toBe(true);
  });

  test("a sender muted just before a correction of a second stays muted", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    await muted(from);
    await moveClock(service.db, -1_000);
    expect(await isMute(from)).toBe(true);
  });

  test("misses just before a correction of a second still count", async () => {
    await stopClock(service.db, start);
    const from = newPhone();
    await outcomesOf(times(4, () => guess(from)));
    await moveClock(service.db, -1_000);
    await outcomesOf([guess(from)]);
    expect(await isMute(from)).toBe(true);
  });
});

describe("misses", () => {
  test("within ten minutes count together", async () => {
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
  test("five concurrent misses count as five: the sixth message is MUTED on either process", async () => {
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

  test("of any number of concurrent guesses exactly five are examined", async () => {
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

  test("four misses on one process and the fifth on the other mute the sender", async () => {
    const from = newPhone();
    await outcomesOf(
      times(4, () => guess(from)),
      sourceHere,
    );
    await outcomesOf([guess(from)], sourceThere);
    expect(await isMute(from)).toBe(true);
  });
});

test("forged web-sent messages with a victim's number cannot mute the victim", async () => {
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
