/** What a server reads of connections that all send a lot, turn by turn of the event loop. */

import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import type { Server } from "node:http";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import { onTestFinished, vi } from "vitest";

/**
 * How many requests, or chunks of their bodies, are parsed in each turn when so many clients send these bytes at once, of which each
 * has `count`. Each sends `before` first, and waits for an answer. Ends early if the server closes all connections.
 */
export async function readInTurns(
  server: Server,
  what: "requests" | "chunks",
  bytes: string,
  count: number,
  { clients = 20, before = "" } = {},
): Promise<number[]> {
  countTime();
  const turns: number[] = [];
  const parsed = () => turns.push((turns.pop() ?? 0) + 1);
  // Tells of those, too, that Node answers by itself.
  const onStart = (message: unknown) => {
    if ((message as { server: Server }).server === server) parsed();
  };
  if (what === "requests") subscribe("http.server.request.start", onStart);
  onTestFinished(() => void unsubscribe("http.server.request.start", onStart));
  server.on("request", (request) => {
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
  for (const socket of sockets) socket.on("error", () => {});
  if (before !== "") {
    await Promise.all(
      sockets.map((socket) => {
        socket.write(before);
        return once(socket, "data");
      }),
    );
  }
  turns.length = 0;
  for (const socket of sockets) socket.resume().write(bytes);
  const sum = () => turns.reduce((sum, inTurn) => sum + inTurn, 0);
  while (sum() < clients * count && sockets.some(({ closed }) => !closed)) {
    turns.push(0);
    await setImmediate();
  }
  return turns;
}

/** What is parsed takes as long on each machine: so many milliseconds from one look at the time to the next. */
export function countTime(ms = 0.1): void {
  let now = performance.now();
  const clock = vi.spyOn(performance, "now").mockImplementation(() => {
    now += ms;
    return now;
  });
  onTestFinished(() => void clock.mockRestore());
}
