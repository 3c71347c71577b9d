import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { MemoryBudget } from "../../src/rpc/memory-budget.ts";

test("a large request that has waited longest is not overtaken by a smaller one", async () => {
  const room = new MemoryBudget({ inAll: 10, each: 10 });
  const entered: string[] = [];
  const enter = (key: string, bytes: number) =>
    room.enter(key, bytes).then((leave) => {
      entered.push(key);
      return leave;
    });
  const leave = await enter("first", 5);
  const much = enter("much", 10);
  const little = enter("little", 5);
  await setImmediate();
  expect(entered).toEqual(["first"]);
  leave();
  (await much)();
  await little;
  expect(entered).toEqual(["first", "much", "little"]);
});

test("a caller that waits for its own share does not hold up others", async () => {
  const room = new MemoryBudget({ inAll: 10, each: 5 });
  await room.enter("one", 5);
  let isIn = false;
  void room.enter("one", 1).then(() => {
    isIn = true;
  });
  const leave = await room.enter("other", 5);
  leave();
  await setImmediate();
  expect(isIn).toBe(false);
});
