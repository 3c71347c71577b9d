import { expect, test } from "vitest";
import { shareRenderings } from "../../src/ops/renderings.ts";

test("concurrent requests share one rendering, and later ones get a new one", async () => {
  let count = 0;
  const render = shareRenderings(async () => `${++count}`);
  const ask = (times: number) => Promise.all(Array.from({ length: times }, render));
  expect(new Set(await ask(1_000))).toEqual(new Set(["1"]));
  expect(new Set(await ask(1_000))).toEqual(new Set(["2"]));
});

test("a rendering begins 50 ms after the end of the last one, or later", async () => {
  const render = shareRenderings(async () => "all");
  await render();
  const endedAt = performance.now();
  await render();
  expect(performance.now() - endedAt).toBeGreaterThan(40);
});

test("a rendering that fails is not kept", async () => {
  let fails = true;
  const render = shareRenderings(async () => {
    if (fails) throw new Error("not this time");
    return "all";
  });
  await expect(render()).rejects.toThrow("not this time");
  fails = false;
  expect(await render()).toBe("all");
});
