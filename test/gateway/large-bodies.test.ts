/** Large bodies take the process long: none has other calls wait for those of its project that arrived with it. */

import { once } from "node:events";
import net from "node:net";
import { text } from "node:stream/consumers";
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { createLargeBodyTurns } from "../../src/gateway/large-bodies.ts";
import { startTestService } from "../harness/service.ts";
import { merchant, newIdempotencyKey } from "./merchant.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.testKey);

test("a large body that is not JSON is refused, and one that is valid is accepted", async () => {
  expect((await shop.create(`{${" ".repeat(5_000)}`)).body.error.code).toBe("invalid_json");
  expect((await shop.create(`{${" ".repeat(5_000)}}`)).status).toBe(201);
});

test("of those that arrive at once, as many of a project as may wait are answered, and the rest are refused", async () => {
  const { hostname, port } = new URL(service.httpUrl);
  const body = `{${Array.from({ length: 400 }, (_, index) => `"field_${index}":1`).join()}}`;
  const send = async (key: string) => {
    const socket = net.connect(Number(port), hostname);
    await once(socket, "connect");
    socket.write(
      `POST /v1/verifications HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer ${key}\r\n` +
        `content-type: application/json\r\nidempotency-key: ${newIdempotencyKey()}\r\ncontent-length: ${body.length}\r\n\r\n` +
        body.slice(0, -1),
    );
    return { socket, answer: text(socket) };
  };
  const sent = await Promise.all(Array.from({ length: 700 }, () => send(project.testKey)));
  const quiet = await send((await service.createProject()).testKey);
  for (const { socket } of [...sent, quiet]) socket.write("}");
  const statuses = (await Promise.all(sent.map(({ answer }) => answer))).map((answer) => {
    const [, status = ""] = answer.split(" ");
    expect(answer).toContain(status === "503" ? '"code":"service_unavailable"' : '"field":"field_399"');
    return status;
  });
  expect(new Set(statuses)).toEqual(new Set(["422", "503"]));
  expect(statuses.filter((status) => status === "422").length).toBeGreaterThanOrEqual(256);
  expect(await quiet.answer).toMatch(/^HTTP\/1.1 422 /);
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
