/** Large bodies take the process long: none has other calls wait for those of its project that arrived with it. */

import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { createLargeBodyTurns } from "../../src/gateway/large-bodies.ts";
import { startTestService } from "../harness/service.ts";
import { merchant } from "./merchant.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.testKey);

test("a large body that is not JSON is refused, and one that is valid is accepted", async () => {
  expect((await shop.create(`{${" ".repeat(5_000)}`)).body.error.code).toBe("invalid_json");
  expect((await shop.create(`{${" ".repeat(5_000)}}`)).status).toBe(201);
});

test("projects take turns, one body in each turn of the event loop", async () => {
  const turns = createLargeBodyTurns();
  const begun: string[] = [];
  for (const project of ["a", "a", "a", "b", "b", "c"]) {
    turns.turnOf(project).then(() => begun.push(project));
  }
  for (let turn = 1; turn <= 6; turn++) {
    await setImmediate();
    expect(begun).toHaveLength(turn);
  }
  expect(begun.join("")).toBe("abcaba");
});

test("of one project a limited number waits; the others are refused, and other projects are not", async () => {
  const turns = createLargeBodyTurns();
  const waiting = Array.from({ length: 256 }, () => turns.turnOf("a"));
  await expect(turns.turnOf("a")).rejects.toMatchObject({ code: "service_unavailable" });
  await turns.turnOf("b");
  await Promise.all(waiting);
  await turns.turnOf("a");
});
