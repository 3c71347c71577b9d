import { describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { moveClock, stopClock } from "../harness/clock.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { raceTo, untilWaiting } from "./barrier.ts";
import { startClockedPair } from "./clocked-pair.ts";
import { createPending, eventsOf, letExpire, type Pending, uuidOf } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const { service, here, there } = await startClockedPair();
const project = await here.createProject({ rateLimitPerMinute: 1_000_000 });
const [shopHere, shopThere] = [
  merchant(here.httpUrl, project.liveKey),
  merchant(there.httpUrl, project.liveKey),
];
const [sourceHere, sourceThere] = [smsSource(here), smsSource(there)];
const listing = there.client(VerificationService, project.liveKey);

const start = new Date("2031-05-01T00:00:00.000Z");
const validityMs = 600_000;

const times = <T>(count: number, make: (index: number) => T): T[] =>
  Array.from({ length: count }, (_, index) => make(index));

/** A cancel as the merchant sees it: the resulting status, or the error code. */
async function cancelOf({ id }: Pending, shop = shopHere): Promise<string> {
  const { status, body } = await shop.cancel(id);
  return status === 200 ? body.status : body.error.code;
}

async function statusOf({ id }: Pending, shop = shopThere): Promise<string> {
  return (await shop.read(id)).body.status;
}

async function outcomeOf({ to, text }: Pending, source = sourceThere, from = newPhone()): Promise<string> {
  return (await source.send({ to, text, from })).outcome;
}

interface Holder {
  lock(): Promise<unknown>;
  letGo(): Promise<void>;
}

describe("two concurrent attempts to end a verification", () => {
  test("an SMS that is first verifies, and the cancel is refused", async () => {
    const pending = await createPending(shopHere);
    const raced = await raceTo(service.db, "event", [() => outcomeOf(pending), () => cancelOf(pending)]);
    expect(raced).toEqual(["VERIFIED", "verification_not_cancellable"]);
    expect(await statusOf(pending)).toBe("verified");
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.verified"]);
  });

  test("a cancel that is first cancels, and the SMS gets NOT_PENDING", async () => {
    const pending = await createPending(shopHere);
    const raced = await raceTo(service.db, "event", [() => cancelOf(pending), () => outcomeOf(pending)]);
    expect(raced).toEqual(["cancelled", "NOT_PENDING"]);
    expect(await statusOf(pending)).toBe("cancelled");
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.cancelled"]);
  });

  test("the first cancel writes the event, and the second gets the same answer", async () => {
    const pending = await createPending(shopHere);
    const raced = await raceTo(service.db, "event", [
      () => cancelOf(pending, shopHere),
      () => cancelOf(pending, shopThere),
    ]);
    expect(raced).toEqual(["cancelled", "cancelled"]);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.cancelled"]);
  });

  test("a read that finds it expired expires it, and the SMS is LATE", async () => {
    const pending = await createPending(shopHere);
    await stopClock(service.db, pending.expiresAt);
    const raced = await raceTo(service.db, "event", [() => statusOf(pending), () => outcomeOf(pending)]);
    expect(raced).toEqual(["expired", "LATE"]);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.expired"]);
  });

  test("an SMS in time verifies, and a read after the expiry waits for it and shows the result", async () => {
    const pending = await createPending(shopHere);
    await stopClock(service.db, new Date(pending.expiresAt.getTime() - 1));
    const raced = await raceTo(service.db, "event", [
      () => outcomeOf(pending),
      async () => {
        await moveClock(service.db, 1);
        return statusOf(pending, shopHere);
      },
    ]);
    expect(raced).toEqual(["VERIFIED", "verified"]);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.verified"]);
  });

  test("a cancel in time cancels, and a read after the expiry waits for it and shows the result", async () => {
    const pending = await createPending(shopHere);
    await stopClock(service.db, new Date(pending.expiresAt.getTime() - 1));
    const raced = await raceTo(service.db, "event", [
      () => cancelOf(pending),
      async () => {
        await moveClock(service.db, 1);
        return statusOf(pending, shopThere);
      },
    ]);
    expect(raced).toEqual(["cancelled", "cancelled"]);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.cancelled"]);
  });

  test.for([
    {
      name: "an SMS in time",
      end: (pending: Pending) => outcomeOf(pending, sourceHere),
      state: "verified",
    },
    { name: "a cancel in time", end: (pending: Pending) => cancelOf(pending), state: "cancelled" },
  ])("an SMS after the expiry waits for $name, and gets NOT_PENDING", async ({ end, state }) => {
    const pending = await createPending(shopHere);
    await stopClock(service.db, new Date(pending.expiresAt.getTime() - 1));
    const [, outcome] = await raceTo(service.db, "event", [
      () => end(pending),
      async () => {
        await moveClock(service.db, 1);
        return outcomeOf(pending);
      },
    ]);
    expect([outcome, await statusOf(pending)]).toEqual(["NOT_PENDING", state]);
    expect(await eventsOf(service.db, pending.id)).toEqual([`verification.${state}`]);
  });

  test("a list of expired verifications waits for an SMS in time, and does not contain what it verified", async () => {
    const [raced, other] = [await createPending(shopHere), await createPending(shopHere)];
    await stopClock(service.db, new Date(raced.expiresAt.getTime() - 1));
    const expired = async () => {
      await moveClock(service.db, 1_000);
      const { verifications } = await listing.listVerifications({ statuses: [VerificationStatus.EXPIRED] });
      return verifications.map(({ id }) => id);
    };
    const [outcome, listed] = await raceTo(service.db, "event", [() => outcomeOf(raced), expired]);
    expect(outcome).toBe("VERIFIED");
    expect(listed).toContain(other.id);
    expect(listed).not.toContain(raced.id);
  });

  test("an SMS in time that had to wait past the expiry is LATE if a read has shown the expiry", async () => {
    const pending = await createPending(shopHere);
    await stopClock(service.db, new Date(pending.expiresAt.getTime() - 1));
    const holder = await service.db.connect();
    await holder.query("BEGIN; LOCK TABLE inbound_message IN SHARE MODE");
    const outcome = outcomeOf(pending, sourceHere);
    await untilWaiting(service.db, 1);
    await moveClock(service.db, 1);
    const shown = await statusOf(pending);
    await holder.query("COMMIT");
    holder.release();
    expect([shown, await outcome, await statusOf(pending)]).toEqual(["expired", "LATE", "expired"]);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.expired"]);
  });

  test("an SMS with another number that had to wait past the expiry is LATE, since its event would be after the expiry", async () => {
    const pending = await createPending(shopHere);
    await stopClock(service.db, new Date(pending.expiresAt.getTime() - 1));
    const holder = await service.db.connect();
    await holder.query("BEGIN; LOCK TABLE inbound_message IN SHARE MODE");
    const outcome = outcomeOf({ ...pending, text: `${pending.text} (0212345678, 12345678)` }, sourceHere);
    await untilWaiting(service.db, 1);
    await moveClock(service.db, 1);
    await holder.query("COMMIT");
    holder.release();
    expect([await outcome, await statusOf(pending)]).toEqual(["LATE", "expired"]);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.expired"]);
  });

  test("SMS that are judged again because others of their batch have expired are judged again once", async () => {
    await stopClock(service.db, start);
    const late = await createPending(shopHere);
    await moveClock(service.db, 1_000);
    const inTime = await createPending(shopHere);
    await stopClock(service.db, new Date(late.expiresAt.getTime() - 1));
    const texts = ["(87654321, 12345678)", `${late.text} (12345678)`, `${inTime.text} (12345678)`];
    const holders = await Promise.all(times(3, () => service.db.connect()));
    const [first, second, third] = holders.map((holder) => ({
      lock: () => holder.query("BEGIN; LOCK TABLE inbound_message IN SHARE MODE"),
      async letGo() {
        await holder.query("COMMIT");
        holder.release();
      },
    })) as [Holder, Holder, Holder];
    await first.lock();
    // The first message is a batch of its own; the others are the next one.
    const receipts = sourceHere.sendAll(texts.map((text) => ({ to: late.to, text, from: newPhone() })));
    await untilWaiting(service.db, 1);
    const firstStored = second.lock();
    await untilWaiting(service.db, 2);
    await first.letGo();
    await firstStored;
    await untilWaiting(service.db, 1);
    const othersRefused = third.lock();
    await untilWaiting(service.db, 2);
    await moveClock(service.db, 1);
    await second.letGo();
    await othersRefused;
    await untilWaiting(service.db, 1);
    await moveClock(service.db, 1_000);
    await third.letGo();
    expect((await receipts).map(({ outcome }) => outcome)).toEqual(["NO_MATCH", "LATE", "VERIFIED"]);
    expect([await statusOf(late), await statusOf(inTime)]).toEqual(["expired", "verified"]);
    const { rows } = await service.db.query(
      "SELECT occurred_at = verified_at AS same FROM event e JOIN verification v ON v.id = e.verification_id WHERE v.id = $1",
      [uuidOf(inTime.id)],
    );
    expect(rows).toEqual([{ same: true }]);
  });

  test("a cancel that waits for a transaction that changes nothing then cancels, and is counted once", async () => {
    const pending = await createPending(shopHere);
    const calls = async () => Number((await shopHere.read(pending.id)).headers.get("x-usage-calls"));
    const before = await calls();
    const somebody = await service.db.connect();
    await somebody.query("BEGIN");
    await somebody.query("UPDATE verification SET state = state WHERE id = $1", [uuidOf(pending.id)]);
    const cancelled = cancelOf(pending);
    await untilWaiting(service.db, 1);
    await somebody.query("COMMIT");
    somebody.release();
    expect(await cancelled).toBe("cancelled");
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.cancelled"]);
    expect(await calls()).toBe(before + 2);
  });

  test("one wins and the other gets a consistent answer, in a hundred races at once", async () => {
    await stopClock(service.db, start);
    const all = await Promise.all(
      times(102, (index) => createPending(index % 2 === 0 ? shopHere : shopThere)),
    );
    const expiry = moveClockOnce(validityMs);
    const endings = await Promise.all(
      all.map(async (pending, index) => {
        const [source, shop] = index % 2 === 0 ? [sourceHere, shopThere] : [sourceThere, shopHere];
        const sms = () => outcomeOf(pending, source);
        const cancel = () => cancelOf(pending, shop);
        const read = async () => {
          await expiry();
          return statusOf(pending, shop);
        };
        const racers = { sms_cancel: [sms, cancel], sms_expiry: [sms, read], cancel_expiry: [cancel, read] };
        const pairs = Object.values(racers);
        const [one, other] = (index < 34 ? pairs[0] : index < 68 ? pairs[1] : pairs[2]) ?? [];
        return Promise.all([one?.(), other?.()]);
      }),
    );
    const possibleResults: Record<string, readonly string[]> = {
      verified: ["VERIFIED", "verification_not_cancellable", "verified"],
      cancelled: ["NOT_PENDING", "cancelled"],
      expired: ["LATE", "verification_not_cancellable", "expired"],
    };
    for (const [index, pending] of all.entries()) {
      const final = await statusOf(pending);
      expect(Object.keys(possibleResults)).toContain(final);
      for (const outcome of endings[index] ?? []) expect(possibleResults[final]).toContain(outcome);
      expect(await eventsOf(service.db, pending.id)).toEqual([`verification.${final}`]);
    }
  });
});

/** Moves the clock for everybody at the first call. */
function moveClockOnce(milliseconds: number): () => Promise<void> {
  let moved: Promise<void> | undefined;
  return () => (moved ??= moveClock(service.db, milliseconds));
}

describe("two senders with one code", () => {
  test("in one request the first verifies, and the other gets NOT_PENDING", async () => {
    const pendings = await Promise.all(times(20, () => createPending(shopHere)));
    const senders = pendings.map(() => [newPhone(), newPhone()] as const);
    const receipts = await sourceHere.sendAll(
      pendings.flatMap(({ to, text }, index) => (senders[index] ?? []).map((from) => ({ to, text, from }))),
    );
    expect(receipts.map(({ outcome, verificationId }) => [outcome, verificationId])).toEqual(
      pendings.flatMap(({ id }) => [
        ["VERIFIED", id],
        ["NOT_PENDING", id],
      ]),
    );
    const phones = await Promise.all(pendings.map(async ({ id }) => (await shopThere.read(id)).body.phone));
    expect(phones).toEqual(senders.map(([first]) => first));
  });

  test("on two processes exactly one verifies, and its phone is the one shown", async () => {
    const pending = await createPending(shopHere);
    const [first, second] = [newPhone(), newPhone()];
    const raced = await raceTo(service.db, "event", [
      () => outcomeOf(pending, sourceHere, first),
      () => outcomeOf(pending, sourceThere, second),
    ]);
    expect(raced).toEqual(["VERIFIED", "NOT_PENDING"]);
    expect((await shopThere.read(pending.id)).body.phone).toBe(first);
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.verified"]);
  });

  test("on two processes, with all codes at once and in opposite orders, each code verifies exactly once", async () => {
    const pendings = await Promise.all(times(100, () => createPending(shopHere)));
    const [one, other] = await Promise.all([
      sourceHere.sendAll(pendings.map(({ to, text }) => ({ to, text }))),
      sourceThere.sendAll(pendings.toReversed().map(({ to, text }) => ({ to, text }))),
    ]);
    const outcomes = pendings.map((_, index) => [one[index]?.outcome, other.at(-1 - index)?.outcome].sort());
    expect(outcomes).toEqual(pendings.map(() => ["NOT_PENDING", "VERIFIED"]));
  });
});

describe("batches that need the same rows in opposite orders lock them in one order:", () => {
  /**
   * Two processes get the same pair, in opposite orders, while a row is locked that belongs to one of it. Returns each one's
   * results, in its own order.
   */
  async function cross<Item, Result>(
    [first, second]: readonly [Item, Item],
    row: { from: string; where: string; value: string },
    takers: readonly [Take<Item, Result>, Take<Item, Result>],
  ): Promise<Result[][]> {
    const holder = await service.db.connect();
    const taken: Promise<Result[]>[] = [];
    try {
      await holder.query("BEGIN");
      const { rowCount } = await holder.query(`SELECT FROM ${row.from} WHERE ${row.where} = $1 FOR UPDATE`, [
        row.value,
      ]);
      expect(rowCount).toBe(1);
      taken.push(takers[0]([first, second]));
      await untilWaiting(service.db, 1);
      taken.push(takers[1]([second, first]));
      await untilWaiting(service.db, 2);
      await holder.query("COMMIT");
    } finally {
      holder.release(true);
    }
    return Promise.all(taken);
  }

  type Take<Item, Result> = (pair: readonly [Item, Item]) => Promise<Result[]>;

  /** The first message of a request is sent alone, not in a batch. */
  const sendingTo =
    (source: typeof sourceHere): Take<SmsFields, string> =>
    async (pair) => {
      const receipts = await source.sendAll([{ to: project.liveNumber, text: "hello" }, ...pair]);
      return receipts.slice(1).map(({ outcome }) => outcome);
    };
  const sending = [sendingTo(sourceHere), sendingTo(sourceThere)] as const;

  /** The first call is sent alone, not in a batch. A merchant's batches would wait for each other to be charged. */
  const cancellingAt = (process: typeof here, token: string): Take<Pending, string> => {
    const verifications = process.client(VerificationService, token);
    const cancelled = (verificationId: string) =>
      answerOf((options) => verifications.cancelVerification({ verificationId }, options));
    return async (pair) => {
      const answers = await Promise.all(["vrf_none", ...pair.map(({ id }) => id)].map(cancelled));
      return answers.slice(1).map(({ code }) => code);
    };
  };

  async function pendingsById(): Promise<[Pending, Pending]> {
    const pendings = [await createPending(shopHere), await createPending(shopHere)];
    const [lower, higher] = pendings.toSorted((one, other) => (one.id < other.id ? -1 : 1));
    if (!(lower && higher)) throw new Error("two verifications were made");
    return [lower, higher];
  }

  const rowOf = ({ id }: Pending) => ({ from: "verification", where: "id", value: uuidOf(id) });

  const helloFrom = (from: string): SmsFields => ({
    from,
    to: project.liveNumber,
    text: `hello from ${from}`,
  });

  test("senders", async () => {
    const [lower, higher] = [newPhone(), newPhone()];
    await sourceHere.sendAll([helloFrom(lower), helloFrom(higher)]);
    const again = (from: string): SmsFields => ({ ...helloFrom(from), text: `goodbye from ${from}` });
    const row = { from: "inbound_sender", where: "phone", value: lower };
    const outcomes = await cross([again(lower), again(higher)], row, sending);
    expect(outcomes).toEqual(times(2, () => times(2, () => "NO_MATCH")));
  });

  test("verifications that messages verify", async () => {
    const pendings = await pendingsById();
    const outcomes = await cross(pendings, rowOf(pendings[0]), sending);
    expect(outcomes).toEqual([times(2, () => "VERIFIED"), times(2, () => "NOT_PENDING")]);
  });

  test("verifications that messages of known senders verify, which are judged one by one", async () => {
    const [lower, higher] = await pendingsById();
    const senders = [newPhone(), newPhone()] as const;
    await sourceHere.sendAll(senders.map(helloFrom));
    const pair = [
      { ...lower, from: senders[0] },
      { ...higher, from: senders[1] },
    ] as const;
    const outcomes = await cross<SmsFields, string>(pair, rowOf(lower), sending);
    // The other process gets copies of what the first one has taken.
    expect(outcomes).toEqual(times(2, () => times(2, () => "VERIFIED")));
  });

  test("verifications that one batch of messages verifies and finds expired, and an erasure ends", async () => {
    const phone = newPhone();
    const expecting = { mode: "match", expected_phone: phone };
    const late = await createPending(shopHere, expecting);
    const inTime = await createPending(shopHere, expecting);
    await letExpire(service.db, late.id);
    const holder = await service.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM verification WHERE id = $1 FOR UPDATE", [uuidOf(late.id)]);
    const erasing = Array.fromAsync(there.client(ErasureService).erasePhone({ phone }));
    await untilWaiting(service.db, 1);
    const receipts = sending[0]([
      { to: inTime.to, text: inTime.text, from: phone },
      { to: late.to, text: late.text, from: phone },
    ]);
    await untilWaiting(service.db, 2);
    await holder.query("COMMIT");
    holder.release();
    expect((await erasing).at(-1)?.erasure).toMatchObject({ verifications: 2, cancelledVerifications: 1 });
    expect(await receipts).toEqual(["NOT_PENDING", "LATE"]);
  });

  // The order that rows would be locked in without a rule depends on the plan. In either order one of these would deadlock.
  test.for([
    { name: "first", held: 0 },
    { name: "second", held: 1 },
  ] as const)("verifications that are cancelled, while the $name is locked", async ({ held }) => {
    const pendings = await pendingsById();
    const token = await here.createToken({ scope: "write", projectId: project.projectId });
    const takers = [cancellingAt(here, token), cancellingAt(there, token)] as const;
    const codes = await cross(pendings, rowOf(pendings[held]), takers);
    expect(codes).toEqual(times(2, () => times(2, () => "ok")));
  });
});

test("concurrent calls of many projects on two processes, in opposite orders, are all charged", async () => {
  const projects = await Promise.all(times(12, () => here.createProject({ rateLimitPerMinute: 1_000_000 })));
  const readOf = async (httpUrl: string, { liveKey }: (typeof projects)[number]) =>
    (await merchant(httpUrl, liveKey).read("vrf_none")).status;
  /** The first of them is sent alone; the others form a batch. */
  async function inOrder(httpUrl: string, ordered: typeof projects): Promise<number[]> {
    const statuses: number[] = [];
    for (let round = 0; round < 60; round++) {
      statuses.push(...(await Promise.all(ordered.map((one) => readOf(httpUrl, one)))));
    }
    return statuses;
  }
  const statuses = await Promise.all([
    inOrder(here.httpUrl, projects),
    inOrder(there.httpUrl, projects.toReversed()),
  ]);
  expect(new Set(statuses.flat())).toEqual(new Set([404]));
  const { rows } = await service.db.query("SELECT calls::int FROM usage WHERE project_id <> $1", [
    decodeId("prj_", project.projectId),
  ]);
  expect(rows.filter(({ calls }) => calls === 120)).toHaveLength(12);
});

test("two settings of a project changed concurrently on two processes are both changed", async () => {
  const { projectId } = await here.createProject();
  await raceTo(service.db, "audit_entry", [
    () => here.client(ProjectService).updateProject({ projectId, validitySeconds: 120 }),
    () => there.client(ProjectService).updateProject({ projectId, codeLength: 9 }),
  ]);
  const { project: changed } = await here.client(ProjectService).getProject({ projectId });
  expect(changed).toMatchObject({ validitySeconds: 120, codeLength: 9 });
});

test("messages and cancels in any order on two processes wait for each other, and none fails", async () => {
  const pendings = await Promise.all(times(90, () => createPending(shopHere)));
  const phones = times(30, newPhone);
  const messages = pendings.map(({ to, text }, index) => ({
    to,
    text,
    from: phones[(index * 7) % 30] ?? "",
  }));
  const repeats = messages.map((message, index) => ({ ...message, messageId: `crossing-${index}` }));
  const [one, other, cancelsHere, cancelsThere] = await Promise.all([
    sourceHere.sendAll(repeats),
    sourceThere.sendAll(repeats.toReversed()),
    Promise.all(pendings.map((pending) => cancelOf(pending, shopHere))),
    Promise.all(pendings.toReversed().map((pending) => cancelOf(pending, shopThere))),
  ]);
  for (const [index, pending] of pendings.entries()) {
    const receipts = [one[index], other.at(-1 - index)];
    const cancels = [cancelsHere[index], cancelsThere.at(-1 - index)];
    const isVerified = (await statusOf(pending)) === "verified";
    expect(receipts.map((receipt) => receipt?.outcome)).toEqual(
      times(2, () => (isVerified ? "VERIFIED" : "NOT_PENDING")),
    );
    expect(receipts.filter((receipt) => receipt?.duplicate)).toHaveLength(1);
    expect(cancels).toEqual(times(2, () => (isVerified ? "verification_not_cancellable" : "cancelled")));
  }
});

/** Deadlocked statements are retried, so the results do not show them. */
test("none of the tests above caused a deadlock", async () => {
  // A connection reports its last counters when it ends.
  await service.db.query(
    `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()`,
  );
  const { rows } = await service.db.query(
    "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()",
  );
  expect(rows).toEqual([{ deadlocks: 0 }]);
});
