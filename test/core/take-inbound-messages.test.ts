import { expect, test, vi } from "vitest";
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

test("a failure to count one message's receipt does not affect another message", () => {
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
  take([message, { ...message, messageId: "2" }], call, receivers);
  const settled = receivers.map(({ resolve, reject }) => [
    resolve.mock.calls.length,
    reject.mock.calls.length,
  ]);
  expect(settled).toEqual([
    [0, 1],
    [1, 0],
  ]);
});
