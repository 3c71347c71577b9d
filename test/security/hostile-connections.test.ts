/** Hostile connections beside a well-behaved client, which is answered throughout while memory stays bounded. */

import { once } from "node:events";
import http2 from "node:http2";
import net from "node:net";
import { Readable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { Code } from "@connectrpc/connect";
import { afterAll, describe, expect, test } from "vitest";
import { type Answer, merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { connectPlain } from "../rpc/plain-calls.ts";
import { callHeaders, endHeaders, frame, headerBlock, preface } from "./http2-frames.ts";
import { startServiceProcess } from "./service-process.ts";

const service = await startTestService();
const { liveKey } = await service.createProject({ rateLimitPerMinute: 1_000_000 });
const attacked = await startServiceProcess(service, { TRUSTED_PROXIES: "127.0.0.1" });
const shop = merchant(attacked.httpUrl, liveKey);

const listProjects = "/phoneproof.v1.ProjectService/ListProjects";
const createVerification = "/phoneproof.v1.VerificationService/CreateVerification";

const sockets = new Set<net.Socket>();
afterAll(() => sockets.forEach((socket) => void socket.destroy()));

interface Hostile {
  readonly socket: net.Socket;
  /** What the service has sent. */
  received(): string;
  /** Resolves when the service has ended the connection. */
  readonly ended: Promise<void>;
  /** Sends the bytes repeatedly until the connection ends or `atMost` bytes have been sent. */
  flood(bytes: Uint8Array, atMost?: number): Promise<void>;
}

/** Connects, sends `first` and reads; if `silent`, it reads nothing. */
async function connect(
  address: string,
  first: Uint8Array | string,
  { silent = false } = {},
): Promise<Hostile> {
  const [host, port] = address.replace("http://", "").split(":");
  const socket = net.connect({ host: host ?? "", port: Number(port) });
  sockets.add(socket);
  let received = "";
  const ended = new Promise<void>((resolve) => {
    socket.once("end", resolve).once("close", () => resolve());
  });
  void ended.then(() => socket.destroy());
  socket.on("close", () => sockets.delete(socket));
  socket.on("error", () => {});
  await new Promise<void>((resolve) =>
    socket.once("connect", () => resolve()).once("close", () => resolve()),
  );
  if (!silent) {
    socket.on("data", (bytes: Buffer) => {
      received += bytes.toString("latin1");
    });
  }
  socket.write(first);
  return {
    socket,
    received: () => received,
    ended,
    async flood(bytes, atMost = Number.POSITIVE_INFINITY) {
      for (let sent = 0; sent < atMost && !socket.destroyed; sent += bytes.length) {
        if (socket.write(bytes)) continue;
        await Promise.race([ended, new Promise((resolve) => socket.once("drain", resolve))]);
      }
    },
  };
}

/** Opens connections in groups that fit into the kernel's queue of new connections. */
async function connectMany(
  count: number,
  ...[address, first]: Parameters<typeof connect>
): Promise<Hostile[]> {
  const all: Hostile[] = [];
  while (all.length < count) {
    const size = Math.min(200, count - all.length);
    all.push(...(await Promise.all(Array.from({ length: size }, () => connect(address, first)))));
  }
  return all;
}

/**
 * Runs the attack while a merchant makes calls over old and new connections, for at least ten rounds. Returns the highest
 * growth of the service's memory.
 */
async function besideAGoodClient(attack: () => Promise<unknown>): Promise<number> {
  const before = await attacked.memoryMiB();
  let most = before;
  let attacking = true;
  const attackOver = attack().finally(() => {
    attacking = false;
  });
  attackOver.catch(() => {});
  for (let rounds = 0; attacking || rounds < 10; rounds++) {
    const fresh: Record<string, string> = rounds % 2 === 0 ? { connection: "close" } : {};
    const { status, body } = await withRetries(() => shop.create({}, undefined, fresh));
    expect(status).toBe(201);
    expect((await withRetries(() => shop.read(body.id))).status).toBe(200);
    most = Math.max(most, await attacked.memoryMiB());
    // Some attacks last for twenty seconds.
    await delay(rounds < 10 ? 20 : 500);
  }
  await attackOver;
  return most - before;
}

/** Retries while the service answers service_unavailable, as the contract requires: on a slow machine it may. */
async function withRetries(call: () => Promise<Answer>): Promise<Answer> {
  let answer = await call();
  for (let left = 50; left > 0 && answer.body.error?.code === "service_unavailable"; left--) {
    await delay(200);
    answer = await call();
  }
  return answer;
}

const slowFrom = performance.now();
const slowTook = () => performance.now() - slowFrom;

/** Takes ten seconds, during which the other tests run. */
const slow = Promise.all([
  ...[
    "GET / HTTP/1.1\r\nHost: localhost\r\nName: ",
    `POST /v1/verifications HTTP/1.1\r\nHost: localhost\r\n`,
  ].map(async (head) => {
    const all = await connectMany(100, attacked.httpUrl, head);
    await Promise.all(all.map(drip));
    return all.map(({ received }) => received());
  }),
]);
const slowCall = connectHttp2();
const slowCalls = Array.from({ length: 100 }, () => {
  const stream = slowCall.request({ ...callTo(createVerification), authorization: `Bearer ${liveKey}` });
  // The prefix of a message that never comes.
  stream.write(Buffer.of(0, 0, 0, 0, 100));
  stream.on("error", () => {}).resume();
  return once(stream, "close").then(slowTook);
});

function connectHttp2(): http2.ClientHttp2Session {
  const session = http2.connect(`http://${attacked.grpcAddress}`);
  session.on("error", () => {});
  afterAll(() => session.destroy());
  return session;
}

function callTo(path: string) {
  return { ":method": "POST", ":path": path, "content-type": "application/grpc" };
}

/** The gRPC status of a call. */
async function statusOf(stream: http2.ClientHttp2Stream): Promise<string | undefined> {
  let status: string | undefined;
  const seen = (fields: http2.IncomingHttpHeaders) => {
    if (fields["grpc-status"] !== undefined) status = String(fields["grpc-status"]);
  };
  stream.on("response", seen).on("trailers", seen);
  stream.on("error", () => {}).resume();
  await once(stream, "close").catch(() => {});
  return status;
}

/** Sends a byte at a time until the service ends the connection. */
async function drip({ socket, ended }: Hostile): Promise<void> {
  let over = false;
  void ended.then(() => {
    over = true;
  });
  while (!over) {
    socket.write("a");
    await Promise.race([ended, delay(500)]);
  }
}

test("ten thousand idle connections cost a limited amount of memory, and others are still answered", async () => {
  const idle: Hostile[] = [];
  const growth = await besideAGoodClient(async () => {
    idle.push(...(await connectMany(7_000, attacked.httpUrl, "")));
    idle.push(...(await connectMany(3_000, attacked.grpcAddress, preface)));
  });
  for (const { socket } of idle) socket.destroy();
  expect(idle).toHaveLength(10_000);
  expect(growth).toBeLessThan(600);
});

test("endless headers are refused when they exceed the limit", async () => {
  const growth = await besideAGoodClient(async () => {
    const all = await connectMany(100, attacked.httpUrl, "GET / HTTP/1.1\r\nHost: localhost\r\n");
    const header = Buffer.from(`Name: ${"a".repeat(1_000)}\r\n`);
    await Promise.all(all.map(({ flood, ended }) => flood(header, 64_000).then(() => ended)));
    for (const { received } of all) expect(received()).toMatch(/^HTTP\/1\.1 400 .*"malformed_request"/s);
  });
  expect(growth).toBeLessThan(200);
});

test("a client that sends requests and never reads an answer is not read any further", async () => {
  const request = `GET /v1/verifications/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${liveKey}\r\n\r\n`;
  const atMost = 50_000_000;
  const growth = await besideAGoodClient(async () => {
    const silent = await connect(attacked.httpUrl, "", { silent: true });
    await Promise.race([silent.flood(Buffer.from(request.repeat(100)), atMost), delay(1_500)]);
    expect(silent.socket.bytesWritten).toBeLessThan(atMost);
    silent.socket.destroy();
  });
  expect(growth).toBeLessThan(300);
});

describe("on the ops port", () => {
  test("a client that requests the metrics repeatedly without reading an answer is disconnected", async () => {
    const requests = Buffer.from("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500));
    const growth = await besideAGoodClient(async () => {
      const silent = Array.from({ length: 4 }, () => connect(attacked.opsUrl, "", { silent: true }));
      for (const hostile of await Promise.all(silent)) {
        await hostile.flood(requests, 2_000_000);
        await drip(hostile);
      }
    });
    expect(growth).toBeLessThan(200);
  });

  test("unused connections are closed to make room for new ones", async () => {
    const kept = await connectMany(300, attacked.opsUrl, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    await Promise.race(kept.map(({ ended }) => ended));
    await expect
      .poll(async () => (await fetch(`${attacked.opsUrl}/healthz`).catch(() => undefined))?.status)
      .toBe(200);
    for (const { socket } of kept) socket.destroy();
  });
});

describe("on the gRPC port", () => {
  test("unauthenticated calls are refused before their messages are read, however large they are", async () => {
    const growth = await besideAGoodClient(async () => {
      const connection = connectHttp2();
      // From an address whose failed authentications are not limited, whatever other tests have sent.
      const call = { ...callTo(listProjects), "x-forwarded-for": "192.0.2.1" };
      const statuses = Array.from({ length: 50 }, () => {
        const stream = connection.request(call);
        // The prefix of a message of 8 MiB, and most of the message.
        const message = (function* () {
          yield Buffer.of(0, 0, 128, 0, 0);
          for (let piece = 0; piece < 7 * 64; piece++) yield Buffer.alloc(2 ** 14);
        })();
        Readable.from(message).pipe(stream);
        return statusOf(stream);
      });
      expect(new Set(await Promise.all(statuses))).toEqual(new Set([String(Code.Unauthenticated)]));
      connection.destroy();
    });
    expect(growth).toBeLessThan(200);
  });

  test("unread answers and unfinished calls take only the places of unauthenticated calls, and not for long", async () => {
    const calls = 1_000;
    await besideAGoodClient(async () => {
      const floods = await Promise.all(
        Array.from({ length: 4 }, () => connectPlain(attacked.grpcAddress, { windowBytes: 0 })),
      );
      const [unread, halfOpen, unknown, odd] = floods;
      unread?.call(calls, "grpc.health.v1.Health/Check", {}, { message: Buffer.of() });
      halfOpen?.call(calls, "grpc.health.v1.Health/Check", {}, { leaveOpen: true });
      const bogus = { authorization: "Bearer pp_live_nobodys" };
      unknown?.call(calls, listProjects.slice(1), bogus, { leaveOpen: true });
      odd?.call(calls, "%zz", {}, { leaveOpen: true });
      const ended = () => floods.reduce((sum, flood) => sum + flood.ended.size, 0);
      // One address has half of the places.
      await expect.poll(ended, { interval: 500 }).toBeGreaterThanOrEqual(4 * calls - 500);

      const connection = connectHttp2();
      const asAdmin = { ...callTo(listProjects), authorization: `Bearer ${service.adminToken}` };
      for (let call = 0; call < 10; call++) {
        const stream = connection.request(asAdmin);
        stream.end(Buffer.alloc(5));
        expect(await statusOf(stream)).toBe("0");
      }
      connection.destroy();

      // The service stops waiting for calls that were answered or begun.
      await expect.poll(ended, { interval: 500 }).toBe(4 * calls);
      for (const flood of floods) flood.destroy();
    });
    const later = connectHttp2().request(callTo("/grpc.health.v1.Health/Check"));
    later.end(Buffer.alloc(5));
    expect(await statusOf(later)).toBe("0");
  });

  const resetOf = (streamId: number) =>
    Buffer.concat([
      frame("headers", endHeaders, streamId, callHeaders(listProjects)),
      frame("rstStream", 0, streamId, Buffer.of(0, 0, 0, 8)),
    ]);
  const pings = Buffer.concat(Array.from({ length: 1_000 }, () => frame("ping", 0, 0, Buffer.alloc(8))));
  const settings = Buffer.concat(Array.from({ length: 1_000 }, () => frame("settings", 0, 0)));
  const opened = Buffer.concat([preface, frame("headers", 0, 1, callHeaders(listProjects))]);
  const continuation = frame("continuation", 0, 1, headerBlock({ name: "a".repeat(10_000) }));
  const windowUpdates = Buffer.concat(
    Array.from({ length: 1_000 }, () => frame("windowUpdate", 0, 0, Buffer.of(0, 0, 0, 1))),
  );
  const cancelled = Buffer.concat([
    preface,
    frame("headers", endHeaders, 1, callHeaders(listProjects)),
    frame("rstStream", 0, 1, Buffer.of(0, 0, 0, 8)),
  ]);
  const noData = Buffer.concat(Array.from({ length: 1_000 }, () => frame("data", 0, 1)));
  /** Streams with thousands of fields, each of which is a byte and stands for a header that every client knows. */
  const manyFields = Buffer.concat(
    Array.from({ length: 1_000 }, (_, index) =>
      frame(
        "headers",
        endHeaders,
        2 * index + 1,
        Buffer.concat([callHeaders("/"), Buffer.alloc(12_000, 0x90)]),
      ),
    ),
  );

  async function refusedForHttp2(): Promise<number> {
    const metrics = await (await fetch(`${attacked.opsUrl}/metrics`)).text();
    return Number(/^phoneproof_rpc_connections_refused_total\{reason="http2"\} (\S+)$/m.exec(metrics)?.[1]);
  }

  test.for<{ name: string; first: Uint8Array; flood: Uint8Array }>([
    {
      name: "calls that are cancelled at once",
      first: preface,
      flood: Buffer.concat(Array.from({ length: 3_000 }, (_, index) => resetOf(2 * index + 1))),
    },
    { name: "endless headers", first: opened, flood: continuation },
  ])("a flood of $name gets its connection closed", async ({ first, flood }) => {
    const refusedBefore = await refusedForHttp2();
    const growth = await besideAGoodClient(async () => {
      const hostile = await connect(attacked.grpcAddress, first);
      await hostile.flood(flood, 200_000_000);
      await hostile.ended;
    });
    // Not because it answers no ping, for which it would be a minute later.
    expect(await refusedForHttp2()).toBeGreaterThan(refusedBefore);
    expect(growth).toBeLessThan(200);
  });

  test.for<{ name: string; first: Uint8Array; flood: Uint8Array; silent?: true }>([
    { name: "pings", first: preface, flood: pings },
    { name: "pings that reads no answer", first: preface, flood: pings, silent: true },
    { name: "settings that reads no answer", first: preface, flood: settings, silent: true },
    { name: "window updates", first: preface, flood: windowUpdates },
    { name: "frames of no data", first: cancelled, flood: noData },
    { name: "headers of a byte each", first: preface, flood: manyFields },
  ])("nobody notices clients that send a flood of $name", async ({ first, flood, silent = false }) => {
    const atMost = 50_000_000;
    const growth = await besideAGoodClient(async () => {
      const all = await Promise.all(
        Array.from({ length: 20 }, () => connect(attacked.grpcAddress, first, { silent })),
      );
      await Promise.race([...all.map((hostile) => hostile.flood(flood, atMost)), delay(500)]);
      for (const { socket } of all) {
        if (silent) expect(socket.bytesWritten).toBeLessThan(atMost);
        socket.destroy();
      }
    });
    expect(growth).toBeLessThan(200);
  });

  test.for<[string, Uint8Array]>([
    [
      "bytes of another protocol",
      Buffer.from("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(10), "latin1"),
    ],
    ["HTTP/1.1", Buffer.from("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")],
    ["a frame of an unknown type", Buffer.concat([preface, Buffer.alloc(500, 0xaa)])],
    ["a frame over the limit", Buffer.concat([preface, frame("data", 0, 1, Buffer.alloc(20_000))])],
    ["data on no stream", Buffer.concat([preface, frame("data", 0, 0, Buffer.alloc(10))])],
    ["data on a stream that is not open", Buffer.concat([preface, frame("data", 0, 5, Buffer.alloc(10))])],
    [
      "a stream id reserved for the server",
      Buffer.concat([preface, frame("headers", endHeaders, 2, callHeaders("/"))]),
    ],
    ["invalid headers", Buffer.concat([preface, frame("headers", endHeaders, 1, Buffer.alloc(9, 0xff))])],
    ["a window update of zero", Buffer.concat([preface, frame("windowUpdate", 0, 0, Buffer.alloc(4))])],
    [
      "settings with an incomplete setting",
      Buffer.concat([preface, frame("settings", 0, 0, Buffer.alloc(5))]),
    ],
    ["a ping of three bytes", Buffer.concat([preface, frame("ping", 0, 0, Buffer.alloc(3))])],
  ])("%s gets its connection closed", async ([, bytes]) => {
    const hostile = await connect(attacked.grpcAddress, bytes);
    await hostile.ended;
  });

  const streamMessages = "phoneproof.v1.InboundMessageService/StreamInboundMessages";

  test("a request that arrives in frames of a byte each holds nobody up", async () => {
    const request = messageOf(400_000);
    const authorization = `Bearer ${await service.createToken({ scope: "ingest", source: "bytes" })}`;
    const growth = await besideAGoodClient(async () => {
      const connection = await connectPlain(attacked.grpcAddress);
      const calls = connection.call(
        1,
        streamMessages,
        { authorization },
        { message: request, frameBytes: 1 },
      );
      await connection.untilEnded(calls);
      // A refusal would have no message.
      expect([...connection.answered]).toEqual(calls);
      connection.destroy();
    });
    expect(growth).toBeLessThan(200);
  });

  /** A request of so many bytes: one message with one unknown field. */
  function messageOf(length: number): Buffer {
    const bytes = Buffer.alloc(length);
    const sizeOf = (size: number) =>
      [0, 7, 14, 21].map((shift) => ((size >> shift) & 127) | (shift < 21 ? 128 : 0));
    bytes.set([0x0a, ...sizeOf(length - 5), 0x7a, ...sizeOf(length - 10)]);
    return bytes;
  }

  const packed = (bytes: Uint8Array) => {
    const body = gzipSync(bytes);
    const head = Buffer.of(1, 0, 0, 0, 0);
    head.writeUInt32BE(body.length, 1);
    return Buffer.concat([head, body]);
  };

  test("compressed requests of the maximum size are held a few at a time, and not by streams that stay open", async () => {
    const request = packed(messageOf(8 * 2 ** 20));
    const growth = await besideAGoodClient(async () => {
      const connection = connectHttp2();
      const open = Array.from({ length: 40 }, () => {
        const stream = connection.request({
          ...callTo(`/${streamMessages}`),
          "grpc-encoding": "gzip",
          authorization: `Bearer ${service.adminToken}`,
        });
        stream.write(request);
        return stream;
      });
      const ended = async (stream: http2.ClientHttp2Stream) =>
        expect.fail(`a stream ended with status ${await statusOf(stream)}`);
      await Promise.all(open.map((stream) => Promise.race([once(stream, "data"), ended(stream)])));
      connection.destroy();
    });
    // All at once would be 320 MiB.
    expect(growth).toBeLessThan(200);
  });

  test("a message that decompresses to more than the limit is refused, with bounded memory", async () => {
    const bomb = packed(Buffer.alloc(100 * 2 ** 20));
    const growth = await besideAGoodClient(async () => {
      const connection = connectHttp2();
      for (const path of [createVerification, `/${streamMessages}`]) {
        const authorization = `Bearer ${service.adminToken}`;
        const stream = connection.request({ ...callTo(path), "grpc-encoding": "gzip", authorization });
        stream.end(bomb);
        expect(await statusOf(stream)).toBe(String(Code.InvalidArgument));
      }
      connection.destroy();
    });
    expect(growth).toBeLessThan(200);
  });
});

test("requests sent a byte at a time are refused after ten seconds, and unfinished calls are closed", async () => {
  const received = await slow;
  for (const answer of received.flat()) expect(answer).toMatch(/^HTTP\/1\.1 400 .*"malformed_request"/s);
  for (const tookMs of await Promise.all(slowCalls)) expect(tookMs).toBeGreaterThanOrEqual(9_900);
});

test("after all these attacks the service still answers, and has logged no error", async () => {
  expect((await shop.create()).status).toBe(201);
  expect(attacked.output()).not.toMatch(/"level":[56]0/);
});
