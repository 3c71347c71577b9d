import net from "node:net";
import { setImmediate } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { blockFor } from "../harness/blocking.ts";
import { startTestService } from "../harness/service.ts";
import { preface } from "../security/http2-frames.ts";

const { grpcAddress } = await startTestService();

test("of connections to the gRPC port that wait to be accepted, several are in each round of the event loop", async () => {
  const { hostname: host, port } = new URL(`http://${grpcAddress}`);
  const count = 96;
  let answered = 0;
  for (let begun = 0; begun < count; begun++) {
    const socket = net.connect({ host, port: Number(port) }, () => socket.write(preface));
    socket.once("data", () => answered++).on("error", () => {});
    onTestFinished(() => void socket.destroy());
  }
  // The kernel completes the handshakes meanwhile.
  blockFor(200);
  let rounds = 0;
  for (; answered < count; rounds++) await setImmediate();
  expect(rounds).toBeLessThan(count / 2);
});
