import { once } from "node:events";
import http2, { type ServerHttp2Session } from "node:http2";
import net from "node:net";
import { afterAll, afterEach, test, vi } from "vitest";
import { keepSessions } from "../../src/rpc/sessions.ts";
import { frame, preface } from "../security/http2-frames.ts";

afterEach(() => {
  vi.useRealTimers();
});

test("a client that says it is leaving and does not go is cut off, and ends nothing else", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const server = http2.createServer();
  keepSessions().watch(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const [[socket], [session]] = (await Promise.all([
    once(server, "connection"),
    once(server, "session"),
    openAndLeave(port),
  ])) as unknown as [[net.Socket], [ServerHttp2Session]];
  const closed = once(socket, "close");
  await vi.waitUntil(() => session.destroyed, { timeout: 45_000 });
  vi.advanceTimersByTime(30_000);
  await closed;
  server.close();
});

/** Its side of the connection stays open. */
async function openAndLeave(port: number): Promise<void> {
  const client = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true });
  client.on("error", () => {}).resume();
  afterAll(() => client.destroy());
  await once(client, "connect");
  client.write(Buffer.concat([preface, frame("goAway", 0, 0, Buffer.alloc(8))]));
}
