import { onTestFinished, test, vi } from "vitest";
import { limitAnswerTime } from "../../src/answer-time.ts";
import { runningTime } from "../../src/running-time.ts";

test("late calls are refused, also after a test that began a call without a real timer", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  limitAnswerTime(() => {})();
  vi.useRealTimers();
  const refuse = vi.fn();
  onTestFinished(limitAnswerTime(refuse, runningTime.now() - 13_500));
  await vi.waitUntil(() => refuse.mock.calls.length > 0, { timeout: 45_000 });
});
