import { expect, onTestFinished, test, vi } from "vitest";
import { createReadiness } from "../../src/ops/readiness.ts";

test("any number who ask share one look at the database, and who asks later has another", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  let looks = 0;
  let answers = true;
  const readiness = createReadiness({
    phase: () => "serving",
    reachesDatabase: async () => {
      looks++;
      return answers;
    },
  });
  expect(await Promise.all(Array.from({ length: 1_000 }, readiness))).toEqual(
    Array.from({ length: 1_000 }, () => "ready"),
  );
  answers = false;
  expect([await readiness(), looks]).toEqual(["ready", 1]);
  vi.advanceTimersByTime(250);
  expect([await readiness(), looks]).toEqual(["database_away", 2]);
});

test("a process that starts or stops says so, and looks at nothing", async () => {
  for (const phase of ["starting", "stopping"] as const) {
    const readiness = createReadiness({
      phase: () => phase,
      reachesDatabase: () => Promise.reject(new Error("nobody is to look")),
    });
    expect(await readiness()).toBe(phase);
  }
});
