import { expect, test } from "vitest";
import { shareRenderings } from "../../src/ops/renderings.ts";

test("concurrent requests share a rendering, sixteen each, and later ones get a new one", async () => {
  let count = 0;
  const render = shareRenderings(async () => `${++count}`);
  const ask = (times: number) => Promise.all(Array.from({ length: times }, render));
  const sixteenTimes = (text: string) => Array.from({ length: 16 }, () => text);
  expect(await ask(40)).toEqual([...sixteenTimes("1"), ...sixteenTimes("2"), ...sixteenTimes("3").slice(8)]);
  expect(await ask(16)).toEqual(sixteenTimes("4"));
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
