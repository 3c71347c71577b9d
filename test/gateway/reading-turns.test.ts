/** How much of what clients send is parsed in a turn of the event loop. */

import { once } from "node:events";
import type { RequestListener } from "node:http";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import { pino } from "pino";
import { expect, onTestFinished, test } from "vitest";
import { createHttpServer } from "../../src/gateway/http-server.ts";

const clients = 20;

/** What is parsed in each turn when so many clients send these bytes at once: requests, or chunks of their bodies. */
async function turnsOf(what: "requests" | "chunks", bytes: string, count: number, listener: RequestListener) {
  const turns: number[] = [];
  const parsed = () => turns.push((turns.pop() ?? 0) + 1);
  const unused = () => {};
  const stopping = new AbortController().signal;
  const log = pino({ level: "silent" });
  const server = createHttpServer({ log, onAnswered: unused, breakOff: unused, stopping }, listener);
  server.on("request", (request) => {
    if (what === "requests") parsed();
    const push = request.push.bind(request);
    request.push = (chunk: unknown) => {
      if (what === "chunks" && chunk !== null) parsed();
      return push(chunk);
    };
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const sockets = Array.from({ length: clients }, () => net.connect({ port, host: "127.0.0.1" }));
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  let accepted = 0;
  server.on("connection", () => {
    accepted += 1;
  });
  while (accepted < clients) await setImmediate();
  for (const socket of sockets) socket.on("error", unused).resume().write(bytes);
  while (turns.reduce((sum, inTurn) => sum + inTurn, 0) < clients * count) {
    turns.push(0);
    await setImmediate();
  }
  return turns;
}

const answering: RequestListener = (_request, response) => void response.end();
const reading: RequestListener = (request) => void request.resume();

test("of requests that many connections pipeline at once, those of a few are parsed in a turn", async () => {
  const count = 2_000;
  const turns = await turnsOf(
    "requests",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(count),
    count,
    answering,
  );
  expect(Math.max(...turns)).toBeLessThan(3 * count);
});

test.for([
  { name: "is read", listener: reading },
  { name: "was refused before it was read", listener: answering },
])("of chunks of a byte of a body that $name, those of a few are parsed in a turn", async ({ listener }) => {
  const count = 8_000;
  const head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const turns = await turnsOf("chunks", head + "1\r\na\r\n".repeat(count), count, listener);
  expect(Math.max(...turns)).toBeLessThan(7 * count);
});
