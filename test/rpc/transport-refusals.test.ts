/** Refusals of streams and connections of which no call tells: an operator finds them in the metrics and in the log. */

import { once } from "node:events";
import { readFile } from "node:fs/promises";
import net from "node:net";
import tls from "node:tls";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { createLog } from "../../src/log/log.ts";
import { startService } from "../../src/service.ts";
import { startTestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { frame, preface } from "../security/http2-frames.ts";
import { certificates } from "./certificates.ts";
import { connectPlain, leaveOutStackTraces } from "./plain-calls.ts";

const { authority, server, strangersClient } = certificates;

const database = await startTestService();

/** A service on the same database, whose log the tests read. */
async function startLogging(environment: Record<string, string> = {}) {
  const written: string[] = [];
  const output = { waitingBytes: 0, droppedLines: 0, end: async () => {} };
  const log = createLog("warn", { ...output, write: (lines) => void written.push(lines) });
  const service = await startService(
    parseConfig({
      PORT: "0",
      GRPC_PORT: "0",
      OPS_PORT: "0",
      ROLES: "api",
      DATABASE_URL: database.databaseUrl,
      PHONEPROOF_ADMIN_TOKEN: database.adminToken,
      ...environment,
    }),
    log,
  );
  afterAll(() => service.close());
  const { addresses } = service;
  const refused = async (what: "streams" | "connections", reason: string) =>
    (await scrape(`http://${addresses.ops}`)).sum(`phoneproof_rpc_${what}_refused_total`, { reason });
  return {
    grpcAddress: addresses.grpc,
    refusedStreams: (reason: string) => refused("streams", reason),
    refusedConnections: (reason: string) => refused("connections", reason),
    /** Message and error of the lines about refusals since the last call. On a busy machine, there may be warnings of other things. */
    lines() {
      log.flush();
      const texts = written.splice(0).join("").split("\n");
      return texts.flatMap((text) => {
        if (text === "") return [];
        const { msg, err } = JSON.parse(text);
        const isRefusal = err !== undefined && [streamsLine, connectionLine].includes(msg);
        return isRefusal ? [[msg, err.message]] : [];
      });
    },
  };
}

const plain = await startLogging();
const ofServer = { GRPC_TLS_CERT: server.cert, GRPC_TLS_KEY: server.key };
const oneSided = await startLogging(ofServer);
const mutual = await startLogging({ ...ofServer, GRPC_TLS_CA: authority });

const empty = { message: Buffer.of() };
const streamsLine = "gRPC streams are refused";
const connectionLine = "a connection to the gRPC port was refused";

test("unauthenticated streams beyond the limit are counted, and logged in one line however many they are", async () => {
  // The line's repetition, and the time for responses.
  suppressTimers(10_000);
  leaveOutStackTraces();
  const connection = await connectPlain(plain.grpcAddress);
  connection.call(900, "grpc.health.v1.Health/Watch", {}, empty);
  await vi.waitUntil(() => connection.answered.size + connection.ended.size === 900, { timeout: 45_000 });
  expect(connection.ended.size).toBe(400);
  expect(await plain.refusedStreams("unauthenticated")).toBe(400);
  expect(plain.lines()).toEqual([
    [streamsLine, "one network has as many unauthenticated streams open as it may"],
  ]);
});

/** Sends the bytes, if there are any, and waits until the service has closed the connection. */
async function useUp(socket: net.Socket, bytes = "") {
  onTestFinished(() => void socket.destroy());
  // Not by `once`, which rejects on an error.
  const closed = new Promise((resolve) => socket.on("close", resolve));
  socket.on("error", () => {}).resume();
  if (bytes === "") socket.end();
  else socket.write(bytes, "latin1");
  await closed;
}

interface Addressed {
  readonly grpcAddress: string;
}

const portOf = ({ grpcAddress }: Addressed) => Number(grpcAddress.split(":")[1]);
const connect = (to: Addressed) => net.connect(portOf(to), "127.0.0.1");
const connectTls = (to: Addressed, options: tls.ConnectionOptions) =>
  tls.connect({ port: portOf(to), host: "127.0.0.1", rejectUnauthorized: false, ...options });

const request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/** As load balancers do once they have seen that the port is open. */
async function reset(socket: net.Socket) {
  await once(socket, "connect");
  // The service has accepted the connection once it has sent its settings.
  await once(socket, "data");
  socket.resetAndDestroy();
}

test("a connection that does not speak HTTP/2 is counted and logged; one that is closed or reset without a byte is not", async () => {
  const before = await plain.refusedConnections("http2");
  await useUp(connect(plain));
  await reset(connect(plain));
  await useUp(connect(plain), request);
  await expect.poll(() => plain.refusedConnections("http2")).toBe(before + 1);
  expect(plain.lines()).toEqual([[connectionLine, "Received bad client magic byte string"]]);
});

test("a connection that breaks the rules of HTTP/2 is counted and logged; one whose client reports an error and leaves is not", async () => {
  const before = await plain.refusedConnections("http2");
  plain.lines();
  // The last stream, and the client's error: INTERNAL_ERROR.
  const leaving = frame("goAway", 0, 0, Buffer.of(0, 0, 0, 0, 0, 0, 0, 2));
  const dataOfNoStream = frame("data", 0, 0, Buffer.of(1));
  for (const bytes of [leaving, dataOfNoStream]) {
    await useUp(connect(plain), Buffer.concat([preface, bytes]).toString("latin1"));
  }
  await expect.poll(() => plain.refusedConnections("http2")).toBe(before + 1);
  expect(plain.lines()).toEqual([[connectionLine, expect.any(String)]]);
});

const [cert, key] = await Promise.all([readFile(strangersClient.cert), readFile(strangersClient.key)]);

test("a client that does not ask for HTTP/2 is counted and logged; a health check that only does the TLS handshake is not", async () => {
  const before = await oneSided.refusedConnections("tls");
  oneSided.lines();
  const checking = connectTls(oneSided, {});
  await once(checking, "secureConnect");
  await useUp(checking);
  await useUp(connectTls(oneSided, {}), request);
  await expect.poll(() => oneSided.refusedConnections("tls")).toBe(before + 1);
  expect(oneSided.lines()).toEqual([[connectionLine, "the client does not ask for HTTP/2 (ALPN h2)"]]);
});

test.for([
  {
    name: "without a certificate",
    open: () => connectTls(mutual, { ALPNProtocols: ["h2"] }),
    error: "peer did not return a certificate",
  },
  {
    name: "with a certificate of another authority",
    open: () => connectTls(mutual, { ALPNProtocols: ["h2"], cert, key }),
    error: "the client's certificate: UNABLE_TO_VERIFY_LEAF_SIGNATURE",
  },
  { name: "without TLS", open: () => connect(mutual), error: "http request" },
])("a client $name is counted and logged; a connection that is closed without a byte is not", async ({
  open,
  error,
}) => {
  const before = await mutual.refusedConnections("tls");
  mutual.lines();
  await useUp(connect(mutual));
  await useUp(open(), request);
  await expect.poll(() => mutual.refusedConnections("tls")).toBe(before + 1);
  expect(mutual.lines()).toEqual([[connectionLine, expect.stringContaining(error)]]);
});
