/** Guessing at the highest possible rate: the limits, and the odds that docs/security.md derives from them. */

import { readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, test } from "vitest";
import { requestsPerAddress } from "../../src/admission/window-limits.ts";
import { codeSpace, defaultCodeFormat, defaultCodeLength } from "../../src/core/code.ts";
import { crowdedShare } from "../../src/core/code-allocation.ts";
import { newCredential } from "../../src/core/credential.ts";
import { missesUntilMuted, missWindowMs, muteMs } from "../../src/core/inbound-judgement.ts";
import { candidateLimit } from "../../src/core/message-text.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { createPending, letExpire, type Pending, uuidOf } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);
const source = smsSource(service);
const to = project.liveNumber;

let guessed = 10_000_000;

/** A text with `count` codes of eight digits that are not in use. */
function wrongCodes(count: number): string {
  return Array.from({ length: count }, () => `${guessed++}`).join(", ");
}

test("a sender is muted after its misses, each with as many codes as a message may contain", async () => {
  const from = newPhone();
  const { id, code } = await createPending(shop);
  const outcomes: string[] = [];
  for (let miss = 0; miss < missesUntilMuted; miss++) {
    outcomes.push((await source.send({ to, from, text: wrongCodes(candidateLimit) })).outcome);
  }
  outcomes.push((await source.send({ to, from, text: code })).outcome);
  expect(outcomes).toEqual([...Array.from({ length: missesUntilMuted }, () => "NO_MATCH"), "MUTED"]);
  expect((await shop.read(id)).body.status).toBe("pending");
});

test.for([
  { name: "expired", outcome: "LATE", end: ({ id }: Pending) => letExpire(service.db, id) },
  { name: "cancelled", outcome: "NOT_PENDING", end: ({ id }: Pending) => shop.cancel(id) },
])("guesses in a message that also contains an ended code ($name) count as misses", async ({
  outcome,
  end,
}) => {
  const from = newPhone();
  const [own, other] = [await createPending(shop), await createPending(shop)];
  await end(own);
  const outcomes: string[] = [];
  for (let miss = 0; miss < missesUntilMuted; miss++) {
    const text = `${own.code}, ${wrongCodes(candidateLimit - 1)}`;
    outcomes.push((await source.send({ to, from, text })).outcome);
  }
  outcomes.push((await source.send({ to, from, text: `${own.code}, ${other.code}` })).outcome);
  expect(outcomes).toEqual([...Array.from({ length: missesUntilMuted }, () => outcome), "MUTED"]);
  expect((await shop.read(other.id)).body.status).toBe("pending");
});

const hotline = await service.createProject({ smsTemplate: "{code} 문의 1588-1234" });
const asking = merchant(service.httpUrl, hotline.liveKey);

test.for([
  { name: "expired", outcome: "LATE", end: ({ id }: Pending) => letExpire(service.db, id) },
  { name: "cancelled", outcome: "NOT_PENDING", end: ({ id }: Pending) => asking.cancel(id) },
])("other digits of the requested text do not count as guesses when its verification has ended ($name)", async ({
  outcome,
  end,
}) => {
  const from = newPhone();
  const [own, other] = [await createPending(asking), await createPending(asking)];
  expect(own.text).toMatch(/^\d{8} 문의 1588-1234$/);
  await end(own);
  const sent = async ({ to, text }: Pending, end = "") =>
    (await source.send({ to, from, text: text + end })).outcome;
  const outcomes: string[] = [];
  for (let again = 0; again <= missesUntilMuted; again++) outcomes.push(await sent(own, "!".repeat(again)));
  outcomes.push(await sent(other));
  expect(outcomes).toEqual([...Array.from({ length: missesUntilMuted + 1 }, () => outcome), "VERIFIED"]);
});

const brief = merchant(service.httpUrl, (await service.createProject({ codeLength: 6 })).liveKey);

test.for([
  { name: "expired", outcome: "LATE", end: ({ id }: Pending) => letExpire(service.db, id) },
  { name: "cancelled", outcome: "NOT_PENDING", end: ({ id }: Pending) => shop.cancel(id) },
])("the pieces of an ended code that was typed with spaces neither count as guesses nor match ($name)", async ({
  outcome,
  end,
}) => {
  const from = newPhone();
  const [own, other, short] = [
    await createPending(shop),
    await createPending(shop),
    await createPending(brief),
  ];
  await service.db.query("UPDATE live_code SET destination = $1, code = $2 WHERE verification_id = $3", [
    to,
    own.code.slice(0, 6),
    uuidOf(short.id),
  ]);
  await end(own);
  const outcomes: string[] = [];
  for (let again = 0; again <= missesUntilMuted; again++) {
    const text = [...own.code].join(" ") + "!".repeat(again);
    outcomes.push((await source.send({ to, from, text })).outcome);
  }
  outcomes.push((await source.send({ to, from, text: other.code })).outcome);
  expect(outcomes).toEqual([...Array.from({ length: missesUntilMuted + 1 }, () => outcome), "VERIFIED"]);
  expect((await brief.read(short.id)).body.status).toBe("pending");
  expect(await source.send({ to, from, text: own.code.slice(0, 6) })).toMatchObject({
    outcome: "VERIFIED",
    verificationId: short.id,
  });
});

test("a message with more codes than allowed verifies nothing, even if the right one is among them", async () => {
  const { id, code } = await createPending(shop);
  const text = `${code}, ${wrongCodes(candidateLimit)}`;
  expect(await source.send({ to, text })).toMatchObject({ outcome: "AMBIGUOUS" });
  expect((await shop.read(id)).body.status).toBe("pending");
});

describe("the odds in docs/security.md", () => {
  const day = 24 * 60;
  const space = codeSpace(defaultCodeFormat, defaultCodeLength);
  /** The misses in the day's first minutes, and again after each mute. */
  const messagesADay = missesUntilMuted * ((day * 60_000) / muteMs + 1);
  const guessesADay = messagesADay * candidateLimit;
  /** With the default validity, guesses fit before and after one mute at most. */
  const guessesWhilePending = 2 * missesUntilMuted * candidateLimit;
  const networks = 1_000_000;
  const secretsThereAre = 1_000_000;
  const keySpace = 62 ** 32;
  const tokenSpace = 2 ** 128;

  const table = [
    ["One verification that is pending for ten minutes, by one phone", guessesWhilePending / space],
    ["Any of 100 that are pending on a number, by one phone in a day", (guessesADay * 100) / space],
    ["Any of 1,000 that are pending on a number, by one phone in a day", (guessesADay * 1_000) / space],
    // The limits on failed authentications do not stop the right guess: only limits on all requests count.
    [
      "One of a million keys, by a million guesses a second for a day",
      (1_000_000 * 60 * day * secretsThereAre) / keySpace,
    ],
    [
      "One of a million windows, from a million networks in a day",
      (requestsPerAddress * day * networks * secretsThereAre) / tokenSpace,
    ],
  ] as const;
  const docs = readFileSync(path.join(import.meta.dirname, "../../docs/security.md"), "utf8");

  test.for(table)("%s", ([what, expected]) => {
    expect(docs).toContain(
      `| ${what} | ${expected.toExponential(1).replace("e", " × 10^").replace("^+", "^")} |`,
    );
  });

  test("a number counts as crowded before one guess on it has better odds than one in a thousand", () => {
    expect(crowdedShare).toBeLessThanOrEqual(1 / 1_000);
    expect(docs).toContain(`${guessesADay.toLocaleString("en")} guesses a day`);
  });

  test("assume misses that are remembered for at least a mute, and secrets of the documented length", async () => {
    expect(missWindowMs).toBeGreaterThanOrEqual(muteMs);
    expect(newCredential("live")).toMatch(/^pp_live_[0-9A-Za-z]{32}[0-9A-Za-z]{6}$/);
    // Of a hundred tokens, each of the 128 bits is set in some and not in others.
    const created = await Promise.all(Array.from({ length: 100 }, () => shop.create()));
    const tokens = created.map(({ body }) => body.verification_url.split("/").at(-1) ?? "");
    const numbers = tokens.map((token) => BigInt(`0x${Buffer.from(token, "base64url").toString("hex")}`));
    expect(numbers.reduce((one, other) => one | other)).toBe(2n ** 128n - 1n);
    expect(numbers.reduce((one, other) => one & other)).toBe(0n);
  });
});
