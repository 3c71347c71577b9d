import { once } from "node:events";
import http2 from "node:http2";
import { expect, onTestFinished, test, vi } from "vitest";
import { messageTimeoutSignal, startMessageTimeout } from "../../src/rpc/message-timeout.ts";
import { shortenTimers } from "../harness/timers.ts";
import { plainClient } from "./plain-client.ts";

const half = Buffer.of(0, 0, 0, 0, 100);
const calls = 100;

test("if a hundred calls of a connection time out at once, each gets its refusal though the client ends none", async () => {
  const server = http2.createServer();
  server.on("request", (request, response) => {
    startMessageTimeout(request, 100);
    messageTimeoutSignal(request)?.addEventListener("abort", () => {
      response.writeHead(200);
      response.addTrailers({ "grpc-status": "4" });
      response.end();
    });
    request.resume();
  });
  const client = await plainClient(server);
  const ends = Array.from({ length: calls }, async () => {
    const call = client.request({ ":method": "POST" });
    call.write(half);
    call.resume();
    let status: unknown;
    call.on("trailers", (trailers) => {
      status = trailers["grpc-status"];
    });
    await once(call, "close");
    return status;
  });
  expect(await Promise.all(ends)).toEqual(Array.from({ length: calls }, () => "4"));
});

test("a message that has arrived is not timed any longer", async () => {
  const server = http2.createServer();
  const timers = vi.spyOn(globalThis, "setTimeout");
  const ended = vi.spyOn(globalThis, "clearTimeout");
  onTestFinished(() => {
    vi.restoreAllMocks();
  });
  let untilThen: unknown[] = [];
  server.on("request", async (request, response) => {
    startMessageTimeout(request, undefined);
    await once(request.resume(), "end");
    untilThen = ended.mock.calls.flat();
    response.end();
  });
  const client = await plainClient(server);
  const call = client.request({ ":method": "POST" });
  call.end(half);
  await once(call.resume(), "close");
  const at = timers.mock.calls.findIndex(([, delay]) => delay === 10_000);
  const timer = timers.mock.results[at]?.value;
  expect(timer).toBeDefined();
  expect(untilThen).toContain(timer);
});

test("a stream whose message nobody reads is closed once its time is up", async () => {
  shortenTimers(10_000);
  const server = http2.createServer();
  server.on("request", (request) => startMessageTimeout(request, undefined));
  const client = await plainClient(server);
  const call = client.request({ ":method": "POST" });
  call.write(half);
  await once(call, "close");
  expect(call.rstCode).toBe(http2.constants.NGHTTP2_CANCEL);
});
