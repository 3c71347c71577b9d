import { describe, expect, test } from "vitest";
import type { Call } from "../../src/core/call.ts";
import { createVerification } from "../../src/core/create-verification.ts";
import type { DestinationNumber } from "../../src/core/directory.ts";
import { newId, newIdAt } from "../../src/core/ids.ts";
import type { Project } from "../../src/core/project.ts";
import type { NewVerification, RepeatableOutcome } from "../../src/core/verification.ts";

const project: Project = {
  id: newId(),
  name: "Shop",
  codeFormat: "numeric",
  codeLength: 8,
  validitySeconds: 300,
  smsTemplate: null,
  parentOrigin: null,
  returnUrl: null,
  usageLimit: null,
  rateLimitPerMinute: 600,
  suspended: false,
  createdAt: new Date(),
};

const numberOf = (number: string): DestinationNumber => ({
  number,
  environment: "live",
  projectId: null,
  createdAt: new Date(),
  removed: false,
});

/** One creation whose first statement has this outcome. The directory remembers one number, and a fresh look-up finds another. */
async function createAfter(first: RepeatableOutcome) {
  const tried: { readonly verification: NewVerification; readonly chargeTo: string | null }[] = [];
  const learnt: number[] = [];
  const create = createVerification({
    verifications: {
      async create(verification, chargeTo) {
        const isFirst = tried.push({ verification, chargeTo }) === 1;
        const usage = chargeTo === null ? undefined : { calls: 7, limit: null };
        if (isFirst) return { usage, value: first };
        const { id, smsText, verificationUrl, destination, ...rest } = verification;
        const times = { createdAt: 5_000, expiresAt: 305_000, verifiedAt: null, serverTime: 5_000 };
        const stored = { ...rest, ...times, id, status: "pending" as const, phone: null, carrier: null };
        return {
          usage,
          value: {
            kind: "created",
            created: { verification: stored, verificationUrl, destination, smsText },
          },
        };
      },
      peekCreation: unexpected,
      find: unexpected,
      cancel: unexpected,
      list: unexpected,
      isOverloaded: unexpected,
    },
    directory: {
      revision: unexpected,
      onRevision: unexpected,
      remembered: unexpected,
      caller: unexpected,
      project: unexpected,
      numbersFor: () => [numberOf("0200000001")],
      numbersNow: async () => [numberOf("0200000002")],
      number: unexpected,
      codeLengths: unexpected,
      addCodeLength: unexpected,
    },
    occupancy: { pending: () => 0, barred: () => 0, reserve: () => () => {}, add() {} },
    clock: { now: () => 1_000, learn: (ms) => learnt.push(ms) },
    publicBase: { url: "https://verify.example" },
    onCreated() {},
    onUnplaced: unexpected,
  });
  const call: Call = {
    requestId: "req_1",
    address: "127.0.0.1",
    caller: { kind: "merchant", apiKeyId: newId(), environment: "live", project },
    usage: undefined,
    verificationId: undefined,
    projectId: undefined,
    violations: [],
  };
  const request = {
    projectId: null,
    environment: null,
    mode: "discover" as const,
    expectedPhone: null,
    clientReference: "",
    state: "",
    parentOrigin: null,
    returnUrl: null,
    idempotencyKey: "creation-1",
  };
  const { created } = await create(request, call);
  return { tried, learnt, created, usage: call.usage };
}

function unexpected(): never {
  throw new Error("a creation does not need this");
}

describe("a creation that has to be tried again", () => {
  test.for<RepeatableOutcome>([
    { kind: "number_removed" },
    { kind: "code_taken" },
    { kind: "id_outdated", now: 90_000 },
  ])("is charged once: $kind", async (first) => {
    const { tried, usage } = await createAfter(first);
    expect(tried.map(({ chargeTo }) => chargeTo)).toEqual([project.id, null]);
    expect(usage).toEqual({ calls: 7, limit: null });
  });

  test("looks up the numbers again if its own was removed, whatever is remembered", async () => {
    const { tried, created } = await createAfter({ kind: "number_removed" });
    expect(tried.map(({ verification }) => verification.destination)).toEqual(["0200000001", "0200000002"]);
    expect(created.destination).toBe("0200000002");
  });

  test("takes its id from the database's time if the clock was set", async () => {
    const { tried, learnt } = await createAfter({ kind: "id_outdated", now: 90_000 });
    const millisecondsOf = (id: string) => id.slice(0, 13);
    expect(tried.map(({ verification }) => millisecondsOf(verification.id))).toEqual(
      [1_000, 90_000].map((ms) => millisecondsOf(newIdAt(ms))),
    );
    // So that the creations after it do not have to be tried again, too.
    expect(learnt).toEqual([90_000, 5_000]);
  });

  test("keeps its id and its numbers if only its code was taken", async () => {
    const { tried, learnt } = await createAfter({ kind: "code_taken" });
    const [one, another] = tried.map(({ verification }) => verification);
    expect(another).toMatchObject({ id: one?.id, destination: "0200000001" });
    expect(learnt).toEqual([5_000]);
  });
});
