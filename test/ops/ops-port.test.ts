import { once } from "node:events";
import http, { type RequestListener } from "node:http";
import net, { type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { setImmediate as nextTurn } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { createOpsHttpServer } from "../../src/ops/ops-http-server.ts";
import { blockFor } from "../harness/blocking.ts";
import { createDatabase, type TestDatabase } from "../harness/database.ts";
import { readInTurns } from "../harness/reading.ts";
import { startProcess } from "./service-process.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createDatabase();
});
afterAll(() => database.drop());

test("the ops port answers an unknown path with 404 and the paths that exist", async () => {
  const { opsUrl } = await startProcess({ DATABASE_URL: database.url });
  const answer = await fetch(`${opsUrl}/nope`);
  expect(answer.status).toBe(404);
  expect(await answer.text()).toBe("not found: there are /healthz, /readyz and /metrics\n");
});

test("half a request at the ops port does not keep the service from ending", async () => {
  const service = await startProcess({ DATABASE_URL: database.url });
  const socket = net.connect(Number(new URL(service.opsUrl).port), "127.0.0.1");
  onTestFinished(() => void socket.destroy());
  socket.on("error", () => {});
  await once(socket, "connect");
  // A whole request first, whose answer shows that the connection is being read.
  socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
  await once(socket, "data");
  socket.write("GET /healthz HTTP/1.1\r\nHost: ");
  expect((await fetch(`${service.opsUrl}/healthz`)).status).toBe(200);
  service.child.kill("SIGTERM");
  expect(await service.ended()).toBe(0);
});

describe("a server of the ops port", () => {
  /** A server that leaves requests for `/hang` without an answer. */
  async function startServer() {
    const server = createOpsHttpServer((request, response) => {
      if (request.url !== "/hang") response.end("alive");
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    onTestFinished(() => {
      server.closeAllConnections();
      server.close();
    });
    const { port } = server.address() as net.AddressInfo;
    const connect = async () => {
      const accepted = once(server, "connection") as Promise<[Socket]>;
      const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
      onTestFinished(() => agent.destroy());
      const request = http.get({ port, host: "127.0.0.1", agent, path: "/hang" });
      request.on("error", () => {});
      return { agent, socket: (await accepted)[0] };
    };
    const get = async () => {
      const [answer] = await once(http.get({ port, host: "127.0.0.1", agent: false }), "response");
      return answer.resume().statusCode as number;
    };
    return { server, port, connect, get };
  }

  test("without room for a new connection closes idle ones, and leaves requests in progress alone", async () => {
    const { server, port, connect, get } = await startServer();
    server.maxConnections = 2;
    const { socket: busy } = await connect();
    const idle = net.connect(port, "127.0.0.1");
    onTestFinished(() => void idle.destroy());
    idle.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    await once(idle, "data");
    const closed = once(idle, "close");
    await expect(get()).rejects.toThrow();
    await closed;
    expect(await get()).toBe(200);
    expect(busy.destroyed).toBe(false);
  });

  test("closes a connection on which a request comes before the last one is answered", async () => {
    const { port } = await startServer();
    const socket = net.connect(port, "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    const closed = once(socket.resume(), "close");
    socket.write("GET /hang HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2));
    await closed;
  });

  test("is done with one such connection in a turn of the event loop, if that takes long, though many are closed at once", async () => {
    const { server, port } = await startServer();
    let accepted = 0;
    let closed = 0;
    server.on("connection", (socket) => {
      accepted += 1;
      socket.on("close", () => {
        closed += 1;
        // Longer than there is time for in a turn.
        blockFor(10);
      });
    });
    const clients = 10;
    const sockets = Array.from({ length: clients }, () => net.connect(port, "127.0.0.1"));
    onTestFinished(() => {
      for (const socket of sockets) socket.destroy();
    });
    while (accepted < clients) await nextTurn();
    for (const socket of sockets)
      socket.on("error", () => {}).write("GET /hang HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2));
    const inTurns: number[] = [];
    for (let before = 0; closed < clients; before = closed) {
      await nextTurn();
      if (closed > before) inTurns.push(closed - before);
    }
    expect(inTurns).toEqual(Array.from({ length: clients }, () => 1));
  });

  test("refuses a request without a Host, which HTTP/1.1 demands, and closes the connection", async () => {
    const { port } = await startServer();
    const socket = net.connect(port, "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    socket.write("GET /healthz HTTP/1.1\r\n\r\n");
    expect(await text(socket)).toMatch(/^HTTP\/1\.1 400 /);
  });

  test("keeps an idle connection for longer than the minute between two scrapes", async () => {
    const { port } = await startServer();
    const agent = new http.Agent({ keepAlive: true });
    onTestFinished(() => agent.destroy());
    const [answer] = await once(http.get({ port, host: "127.0.0.1", agent }), "response");
    expect(answer.resume().headers["keep-alive"]).toBe("timeout=75");
  });

  test("gives a client half a minute to read its response", async () => {
    const { connect } = await startServer();
    const { socket } = await connect();
    const closed = once(socket, "close");
    expect(socket.timeout).toBe(30_000);
    // As Node does after that time without a byte from or to the client.
    socket.emit("timeout");
    await closed;
  });

  const answering: RequestListener = (_request, response) => void response.end("alive");

  test.for([
    { name: "requests", headers: "Host: a\r\n" },
    { name: "requests without a Host", headers: "" },
    { name: "requests with an unknown expectation", headers: "Host: a\r\nExpect: a\r\n" },
  ])("parses, in a turn of the event loop, a few connections' $name of all that come at once", async ({
    headers,
  }) => {
    const count = 1_000;
    const bytes = `GET / HTTP/1.1\r\n${headers}\r\n`.repeat(count);
    const turns = await readInTurns(createOpsHttpServer(answering), "requests", bytes, count);
    expect(Math.max(...turns)).toBeLessThan(3 * count);
  });

  test("and a few connections' chunks of a byte of all that follow their answers", async () => {
    const count = 8_000;
    const head = "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    const bytes = head + "1\r\na\r\n".repeat(count);
    const turns = await readInTurns(createOpsHttpServer(answering), "chunks", bytes, count);
    expect(turns.reduce((sum, inTurn) => sum + inTurn)).toBe(20 * count);
    expect(Math.max(...turns)).toBeLessThan(7 * count);
  });
});
