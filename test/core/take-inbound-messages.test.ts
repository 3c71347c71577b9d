import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import type { Call } from "../../src/core/call.ts";
import type { Directory } from "../../src/core/directory.ts";
import { takeInboundMessages } from "../../src/core/take-inbound-messages.ts";

const call = {
  caller: { kind: "service", scope: "ingest", source: "gateway", environment: null, numbers: [] },
} as unknown as Call;
const message = { messageId: "1", from: "01012345678", to: "16661234", text: "12345678", carrier: "" };

/** An unhandled rejection ends the process; here it fails the run. */
test.for([
  "codeLengths",
  "number",
] as const)("if %s cannot be looked up, the call fails and nothing is judged", async (failing) => {
  const away = () => Promise.reject(new Error("away")).then(() => undefined);
  const directory = {
    codeLengths: () => ({ numeric: [8], alphanumeric: [] }),
    number: () => undefined,
    [failing]: away,
  };
  const judgeMessage = vi.fn();
  const take = takeInboundMessages({
    directory: directory as unknown as Directory,
    judgeMessage,
    onReceipt: () => {},
    writeDown: async () => {},
  });
  const receiver = { resolve: vi.fn(), reject: vi.fn() };
  await expect(take([message], call, [receiver])).rejects.toThrow("away");
  expect(judgeMessage).not.toHaveBeenCalled();
  expect(receiver.resolve).not.toHaveBeenCalled();
});

test("a failure to count one message's receipt does not affect another message", async () => {
  const take = takeInboundMessages({
    directory: {
      codeLengths: () => ({ numeric: [8], alphanumeric: [] }),
      number: () => undefined,
    } as unknown as Directory,
    judgeMessage: (_, settle) =>
      settle.resolve({ outcome: "no_match", verificationId: null, duplicate: false }),
    onReceipt({ messageId }) {
      if (messageId === "1") throw new Error("cannot count");
    },
    writeDown: async () => {},
  });
  const receivers = [1, 2].map(() => ({ resolve: vi.fn(), reject: vi.fn() }));
  await take([message, { ...message, messageId: "2" }], call, receivers);
  const settled = receivers.map(({ resolve, reject }) => [
    resolve.mock.calls.length,
    reject.mock.calls.length,
  ]);
  expect(settled).toEqual([
    [0, 1],
    [1, 0],
  ]);
});

test.for([
  { what: "", number: () => undefined, passes: 1 },
  // Before the look-up of all numbers, and after it.
  { what: ", also if their numbers are looked up", number: async () => undefined, passes: 2 },
])("messages that take long give all other work its turn, and are judged in order$what", async ({
  number,
  passes,
}) => {
  // The slice that an earlier test has begun is over.
  await nextTurn();
  await nextTurn();
  let time = performance.now();
  // Whatever is done takes a millisecond, of which a slice has five.
  const clock = vi.spyOn(performance, "now").mockImplementation(() => (time += 1));
  onTestFinished(() => clock.mockRestore());
  const judged: string[] = [];
  const take = takeInboundMessages({
    directory: {
      codeLengths: () => ({ numeric: [8], alphanumeric: [] }),
      number,
    } as unknown as Directory,
    judgeMessage: ({ messageId }) => void judged.push(messageId),
    onReceipt: () => {},
    writeDown: async () => {},
  });
  const ids = Array.from({ length: 100 }, (_, index) => `id-${index}`);
  const receivers = ids.map(() => ({ resolve: vi.fn(), reject: vi.fn() }));
  const taking = { isOver: false };
  const taken = Promise.resolve(
    take(
      ids.map((messageId) => ({ ...message, messageId })),
      call,
      receivers,
    ),
  ).then(() => {
    taking.isOver = true;
  });
  let turns = 0;
  while (!taking.isOver) {
    await nextTurn();
    turns += 1;
  }
  await taken;
  expect(judged).toEqual(ids);
  expect(turns).toBeGreaterThanOrEqual((passes * 100) / 5);
});
