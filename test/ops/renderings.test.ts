import { setImmediate } from "node:timers/promises";
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

test("there is one rendering at a time, and the newest is shared, though an earlier one has ended meanwhile", async () => {
  let count = 0;
  let isRendering = false;
  const render = shareRenderings(async () => {
    expect(isRendering).toBe(false);
    isRendering = true;
    await setImmediate();
    isRendering = false;
    return `${++count}`;
  });
  const asked = Array.from({ length: 33 }, render);
  expect(await asked[0]).toBe("1");
  expect(await Promise.all([render(), asked[16], asked[32]])).toEqual(["3", "2", "3"]);
});

test("a rendering begins 50 ms after the end of the last one, or later", async () => {
  const render = shareRenderings(async () => "all");
  await render();
  const endedAt = performance.now();
  await render();
  expect(performance.now() - endedAt).toBeGreaterThan(40);
});

test("a rendering that fails is not kept, and fails none that waited for its end", async () => {
  let fails = true;
  const render = shareRenderings(async () => {
    if (!fails) return "all";
    fails = false;
    throw new Error("not this time");
  });
  const [first, ...others] = Array.from({ length: 17 }, render);
  const waiting = others.pop();
  for (const failed of [first, ...others]) await expect(failed).rejects.toThrow("not this time");
  expect(await waiting).toBe("all");
  fails = true;
  await expect(render()).rejects.toThrow("not this time");
  expect(await render()).toBe("all");
});
