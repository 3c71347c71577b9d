import fc from "fast-check";
import { expect, test } from "vitest";
import {
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { type Answer, merchant, newIdempotencyKey, usageOf } from "../gateway/merchant.ts";
import { byTheClock, installClock, moveClock, stopClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { type Creation, Model, type ModelMessage, type ModelVerification } from "./history-model.ts";
import { knownProject } from "./known-project.ts";
import { codeIn, eventsOf } from "./pending.ts";
import { newPhone, smsSource } from "./sms-source.ts";
import { withinLimit } from "./time-limit.ts";

// Without a worker, whose clock would be the real one: from 2031 on it would expire what is pending in the histories.
const service = await startTestService({ ROLES: "api" });
await installClock(service.db);
const clocked = { DATABASE_URL: byTheClock(service.databaseUrl), ROLES: "api,worker" };
const processes = await Promise.all([service.startAnother(clocked), service.startAnother(clocked)]);

const validitySeconds = 303;
const runs = 25;
const timeLimitMs = 20_000;

const where = fc.nat(1);
const which = fc.nat(99);
const phone = fc.nat(1);
const creation = {
  mode: fc.constantFrom("discover", "match"),
  expected: phone,
  reference: fc.string({ unit: "grapheme", maxLength: 12 }),
} as const;
/** The field that differs in a body sent with a known key. */
const what = fc.constantFrom("mode", "expected_phone", "client_reference");
const carrier = fc.constantFrom(["SKT", "SKT"], ["LGT", "LGU+"], ["450-08", "KT"], ["Elsewhere", null]);
/** Except for the validity and the day of idempotency keys, these are no multiples of the periods in the rules. */
const pause = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(1_001, 31_007, 61_013) },
  { weight: 2, arbitrary: fc.constantFrom(validitySeconds * 1000, 600_011) },
  { weight: 1, arbitrary: fc.constant(86_400_000) },
);

/** The index of a verification or message in a step is taken modulo the number of those that exist. */
const step = fc.oneof(
  { weight: 5, arbitrary: fc.record({ kind: fc.constant("create"), where, ...creation }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("replay"), where, which }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("change"), where, which, what }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("cancel"), where, which }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("read"), where, which }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("list"), where }) },
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constant("message"),
      where,
      phone,
      carrier,
      codes: fc.oneof(fc.tuple(), fc.tuple(which), fc.tuple(which), fc.tuple(which, which)),
      aside: fc.constantFrom("", "안녕하세요", "please", "제발", "now", "지금"),
      webSent: fc.nat(9).map((one) => one === 0),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("repeat"), where, which, sameId: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("pass"), milliseconds: pause }) },
);

type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

let histories = 0;

/** Runs a history on the service and on the model, and compares everything that can be seen. */
async function live(steps: readonly Step[]): Promise<void> {
  const { liveKey, liveNumber } = await knownProject(processes, { validitySeconds });
  // All histories share one clock, so each has days of its own.
  histories += 1;
  const model = new Model(Date.UTC(2031, 0, 1) + histories * 100 * 86_400_000, validitySeconds * 1000);
  await stopClock(service.db, new Date(model.now));
  const phones = [newPhone(), newPhone()];
  const shops = processes.map(({ httpUrl }) => merchant(httpUrl, liveKey));
  const rpcs = processes.map((process) => process.client(VerificationService, liveKey));
  const sources = processes.map((process) => smsSource(process));
  const keys: { key: string; request: Creation }[] = [];
  const messages: (ModelMessage & { word: string })[] = [];

  const pick = <T>(from: readonly T[], index: number): T | undefined =>
    from[index % Math.max(1, from.length)];

  function counted(answer: Answer): Answer {
    expect(usageOf(answer)).toBe(`${model.call()}/unlimited`);
    return answer;
  }

  async function create(shop: ReturnType<typeof merchant>, key: string, request: Creation): Promise<void> {
    const expected = model.create(key, request);
    const { status, text, body, headers } = counted(await shop.create(request, key));
    expect(status).toBe(expected.status);
    if (expected.status === 409) return expect(body.error.code).toBe("idempotency_conflict");
    expect(headers.get("idempotent-replayed")).toBe(String(expected.status === 200));
    if (expected.status === 200) return expect(text).toBe(expected.text);
    const { id, destination, sms_text } = body;
    expect(model.verifications.map((verification) => verification.id)).not.toContain(id);
    const issued = { id, to: destination, text: sms_text, code: codeIn(sms_text) };
    expectShown(body, model.created(key, request, text, issued));
    keys.push({ key, request });
  }

  function expectShown(body: Answer["body"], verification: ModelVerification): void {
    const iso = (milliseconds: number) => new Date(milliseconds).toISOString();
    const { id, mode, client_reference, phone, carrier, verifiedAt, createdAt } = verification;
    expect(body).toMatchObject({
      id,
      mode,
      client_reference,
      phone,
      carrier,
      status: model.look(verification),
      created_at: iso(createdAt),
      expires_at: iso(model.expiresAt(verification)),
      verified_at: verifiedAt === null ? null : iso(verifiedAt),
      server_time: iso(model.now),
    });
  }

  async function send(at: number, message: ModelMessage & { word: string }): Promise<void> {
    const { messageId, from, to, text, word } = message;
    const receipt = await sources[at]?.send({ messageId, from, to, text, carrier: word });
    expect(receipt).toEqual({ messageId, ...model.receive(message) });
    messages.push(message);
  }

  /** The request with one field changed. */
  function changed(request: Creation, what: keyof Creation): Creation {
    const changes: Creation = {
      mode: request.mode === "match" ? "discover" : "match",
      expected_phone: phones.find((phone) => phone !== request.expected_phone) ?? "",
      client_reference: `${request.client_reference}!`,
    };
    return { ...request, [what]: changes[what] };
  }

  for (const step of steps) {
    const shop = shops["where" in step ? step.where : 0];
    if (!shop) continue;
    if (step.kind === "pass") {
      await moveClock(service.db, step.milliseconds);
      model.now += step.milliseconds;
    } else if (step.kind === "create") {
      const { mode, expected, reference } = step;
      await create(shop, newIdempotencyKey(), {
        mode,
        expected_phone: phones[expected] ?? "",
        client_reference: reference,
      });
    } else if (step.kind === "replay" || step.kind === "change") {
      const known = pick(keys, step.which);
      if (!known) continue;
      const { key, request } = known;
      await create(shop, key, step.kind === "replay" ? request : changed(request, step.what));
    } else if (step.kind === "cancel") {
      const verification = pick(model.verifications, step.which);
      if (!verification) continue;
      const { status, body } = counted(await shop.cancel(verification.id));
      const succeeds = model.cancel(verification);
      expect(status).toBe(succeeds ? 200 : 409);
      if (succeeds) expectShown(body, verification);
      else expect(body.error.code).toBe("verification_not_cancellable");
    } else if (step.kind === "read") {
      const verification = pick(model.verifications, step.which);
      if (verification) expectShown(counted(await shop.read(verification.id)).body, verification);
    } else if (step.kind === "list") {
      model.call();
      const { verifications = [] } = (await rpcs[step.where]?.listVerifications({ pageSize: 1000 })) ?? {};
      const listed = verifications.map(({ id, status }) => [id, statusNames[status]]);
      const expected = model.verifications.map((verification) => [verification.id, model.look(verification)]);
      expect(listed).toEqual(expected.sort().reverse());
    } else if (step.kind === "message") {
      // Older codes may have been assigned again.
      const known = model.verifications.filter(({ createdAt }) => createdAt > model.now - 86_400_000);
      const codesOf = [...new Set(step.codes.flatMap((index) => pick(known, index) ?? []))];
      const words = [...codesOf.map(({ code }) => code), step.aside].join(", ");
      await send(step.where, {
        messageId: `history-${histories}-${messages.length}`,
        from: phones[step.phone] ?? "",
        to: liveNumber,
        text: step.webSent ? `[Web발신] ${words}` : `SMS: ${words}`,
        word: step.carrier[0] ?? "",
        carrier: step.carrier[1] ?? null,
        codesOf,
        webSent: step.webSent,
      });
    } else {
      const message = pick(messages, step.which);
      if (message?.codesOf.some(({ createdAt }) => createdAt <= model.now - 86_400_000)) continue;
      const messageId = `history-${histories}-${messages.length}`;
      if (message) await send(step.where, step.sameId ? message : { ...message, messageId });
    }
  }

  for (const [index, verification] of model.verifications.entries()) {
    const answer = await shops[index % 2]?.read(verification.id);
    if (answer) expectShown(counted(answer).body, verification);
    expect(await eventsOf(service.db, verification.id)).toEqual(
      verification.status === "pending" ? [] : [`verification.${verification.status}`],
    );
  }
}

const statusNames: Record<number, string> = {
  [VerificationStatus.PENDING]: "pending",
  [VerificationStatus.VERIFIED]: "verified",
  [VerificationStatus.EXPIRED]: "expired",
  [VerificationStatus.CANCELLED]: "cancelled",
};

test("any sequence of calls, messages and pauses on two processes gives the results that the model predicts", async () => {
  const steps = fc.array(step, { minLength: 20, maxLength: 70, size: "max" });
  await fc.assert(fc.asyncProperty(steps, withinLimit(timeLimitMs, live)), { numRuns: runs });
});
