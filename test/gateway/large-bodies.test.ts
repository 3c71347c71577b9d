/** Large bodies take the process long: none has other calls wait for those of its project that arrived with it. */

import { once } from "node:events";
import net from "node:net";
import { text } from "node:stream/consumers";
import { setImmediate } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { createLargeBodyTurns } from "../../src/gateway/large-bodies.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { merchant, newIdempotencyKey } from "./merchant.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.testKey);

test("a large body that is not JSON is refused, and one that is valid is accepted", async () => {
  expect((await shop.create(`{${" ".repeat(5_000)}`)).body.error.code).toBe("invalid_json");
  expect((await shop.create(`{${" ".repeat(5_000)}}`)).status).toBe(201);
});

const bodyOf = (fields: number) =>
  `{${Array.from({ length: fields }, (_, index) => `"f${index}":1`).join()}}`;
const [large, veryLarge] = [bodyOf(700), bodyOf(6_400)];

/** Sends a creation but for its last byte. Its head has been read then. */
async function begin(httpUrl: string, key: string, body: string) {
  const { hostname, port } = new URL(httpUrl);
  const socket = net.connect(Number(port), hostname);
  await once(socket, "connect");
  socket.write(
    `POST /v1/verifications HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer ${key}\r\n` +
      `content-type: application/json\r\nidempotency-key: ${newIdempotencyKey()}\r\ncontent-length: ${body.length}\r\n` +
      "expect: 100-continue\r\n\r\n",
  );
  await once(socket, "data");
  socket.write(body.slice(0, -1));
  return { socket, answer: text(socket).catch(String) };
}

test("of those that arrive at once, as many of a project as may wait are answered, and the rest are refused", async () => {
  // They may wait for four seconds, which are not enough for 256 on a slow machine.
  const begun = performance.now();
  const elapsed = performance.now.bind(performance);
  const clock = vi.spyOn(performance, "now").mockImplementation(() => begun + (elapsed() - begun) / 20);
  onTestFinished(() => clock.mockRestore());
  const send = (key: string) => begin(service.httpUrl, key, large);
  const sent = await Promise.all(Array.from({ length: 700 }, () => send(project.testKey)));
  const quiet = await send((await service.createProject()).testKey);
  for (const { socket } of [...sent, quiet]) socket.write("}");
  const statuses = (await Promise.all(sent.map(({ answer }) => answer))).map((answer) => {
    const [, status = ""] = answer.split(" ");
    expect(answer).toContain(status === "503" ? '"code":"service_unavailable"' : '"field":"f699"');
    return status;
  });
  expect(new Set(statuses)).toEqual(new Set(["422", "503"]));
  expect(statuses.filter((status) => status === "422").length).toBeGreaterThanOrEqual(256);
  expect(await quiet.answer).toMatch(/^HTTP\/1.1 422 /);
});

test("those whose clients have left take no time and are not charged", async () => {
  const key = (await service.createProject()).testKey;
  const { create } = merchant(service.httpUrl, key);
  const sent = await Promise.all(Array.from({ length: 200 }, () => begin(service.httpUrl, key, veryLarge)));
  for (const { socket } of sent) socket.write("}");
  // Once some have been answered, all have arrived.
  await Promise.all(sent.slice(0, 20).map(({ answer }) => answer));
  for (const { socket } of sent) socket.resetAndDestroy();
  expect((await create(veryLarge)).status).toBe(422);
  expect(Number((await create()).headers.get("x-usage-calls"))).toBeLessThan(100);
});

test("a process that is stopping answers all, of however many projects they are", async () => {
  const { child, httpUrl, ended } = await startProcess({ DATABASE_URL: service.databaseUrl });
  const projects = await Promise.all(Array.from({ length: 4 }, () => service.createProject()));
  const sent: Awaited<ReturnType<typeof begin>>[] = [];
  // More than can be answered before they are refused, and few enough to begin all in less than the ten seconds that one may take.
  for (const { testKey } of projects) {
    sent.push(...(await Promise.all(Array.from({ length: 150 }, () => begin(httpUrl, testKey, veryLarge)))));
  }
  for (const { socket } of sent) socket.write("}");
  await Promise.race(sent.map(({ answer }) => answer));
  child.kill("SIGTERM");
  const answers = await Promise.all(sent.map(({ answer }) => answer));
  for (const answer of answers) expect(answer.slice(0, 40)).toMatch(/^HTTP\/1.1 (422|503) /);
  expect(await ended()).toBe(0);
});

const stays = () => false;

test("projects take turns, one body in each turn of the event loop", async () => {
  const turns = createLargeBodyTurns();
  const begun: string[] = [];
  for (const project of ["a", "a", "a", "b", "b", "c"]) {
    turns.turnOf(project, stays).then(() => begun.push(project));
  }
  for (let turn = 1; turn <= 6; turn++) {
    await setImmediate();
    expect(begun).toHaveLength(turn);
  }
  expect(begun.join("")).toBe("abcaba");
});

test("of one project a limited number waits; the others are refused, and other projects are not", async () => {
  const turns = createLargeBodyTurns();
  const waiting = Array.from({ length: 256 }, () => turns.turnOf("a", stays));
  await expect(turns.turnOf("a", stays)).rejects.toMatchObject({ code: "service_unavailable" });
  await turns.turnOf("b", stays);
  await Promise.all(waiting);
  await turns.turnOf("a", stays);
});

test("what has waited for more than four seconds when its turn comes is refused, and takes no turn", async () => {
  let now = 0;
  const turns = createLargeBodyTurns(() => now);
  const settled: string[] = [];
  const wait = (name: string) =>
    turns.turnOf("a", stays).then(
      () => settled.push(name),
      ({ code }) => settled.push(`${name} ${code}`),
    );
  wait("first");
  wait("second");
  now = 4_001;
  wait("third");
  await setImmediate();
  expect(settled).toEqual(["first service_unavailable", "second service_unavailable", "third"]);
});

test("those whose clients have left take neither a turn nor a place", async () => {
  const turns = createLargeBodyTurns();
  let left = false;
  for (let index = 0; index < 256; index++) turns.turnOf("a", () => left).then(() => expect.fail());
  left = true;
  const other = turns.turnOf("a", stays);
  await setImmediate();
  await other;
});
