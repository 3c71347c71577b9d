/** A watch whose service goes away. */

import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { create, toBinary } from "@bufbuild/protobuf";
import { expect, onTestFinished, test, vi } from "vitest";
import { ServiceClient } from "../../src/cli/client.ts";
import type { Loss } from "../../src/cli/reconnect.ts";
import { followVerification } from "../../src/cli/verification-watch.ts";
import {
  VerificationStatus,
  WatchVerificationResponseSchema,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService } from "../harness/service.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { startSilentServer } from "./silent-server.ts";

const service = await startTestService();
const { testKey } = await service.createProject();
const shop = merchant(service.httpUrl, testKey);

/** Told of as often as it can be. */
const patienceMs = 1;

async function startWatch(id: string) {
  let target = service.grpcAddress;
  const proxy = await startCuttingProxy(() => target);
  const [host = "", port = ""] = proxy.address.split(":");
  const client = new ServiceClient(
    { shown: proxy.address, host, port: Number(port), tls: false },
    service.adminToken,
  );
  const statuses: VerificationStatus[] = [];
  const losses: Loss[] = [];
  const aborted = new AbortController();
  const ended = followVerification({
    client,
    verificationId: id,
    onStatus: ({ status }) => statuses.push(status),
    onLost: (loss) => losses.push(loss),
    signal: aborted.signal,
    patienceMs,
  });
  ended.catch(() => {});
  onTestFinished(async () => {
    aborted.abort();
    client.close();
    await proxy.close();
  });
  await vi.waitUntil(() => statuses.length === 1, { timeout: 45_000 });
  return {
    statuses,
    losses,
    ended,
    /** Whoever connects from now on comes there. */
    leadTo(address: string) {
      target = address;
    },
    breakAll: () => proxy.breakAll(),
  };
}

test.for([
  { name: "takes connections and answers none", away: () => startSilentServer() },
  { name: "is not there", away: () => ({ address: "127.0.0.1:1", close: () => {} }) },
])("a service that $name is waited for until it is back, and that is told", async ({ away }) => {
  const gone = await away();
  onTestFinished(() => gone.close());
  const { body: created } = await shop.create();
  const watch = await startWatch(created.id);
  watch.leadTo(gone.address);
  watch.breakAll();
  await vi.waitUntil(() => watch.losses.length === 2, { timeout: 45_000 });
  await service.sms({ to: created.destination, text: created.sms_text, from: "01012345678" });
  // What waits for an answer is left waiting: no end of a connection tells that another would be good.
  watch.leadTo(service.grpcAddress);
  await watch.ended;
  expect(watch.statuses).toEqual([VerificationStatus.PENDING, VerificationStatus.VERIFIED]);
  expect(watch.losses.slice(0, 2).map(({ isStill }) => isStill)).toEqual([false, true]);
});

test("a service that is away when the verification must be over is given up", async () => {
  const { body: created } = await shop.create({ client_reference: "soon over" });
  await moveExpiry(service.db, {
    expiresAt: "now() + interval '10 seconds'",
    where: "client_reference = $1",
    values: ["soon over"],
  });
  const watch = await startWatch(created.id);
  watch.leadTo("127.0.0.1:1");
  watch.breakAll();
  await expect(watch.ended).rejects.toMatchObject({ exitCode: 3, code: "service_unreachable" });
  expect(watch.statuses).toEqual([VerificationStatus.PENDING]);
  expect(watch.losses.map(({ isStill }) => isStill)).toContain(true);
});

test("a connection that breaks behind the last status takes nothing from it", async () => {
  const look = create(WatchVerificationResponseSchema, {
    verification: { id: "vrf_1", status: VerificationStatus.VERIFIED },
  });
  const message = toBinary(WatchVerificationResponseSchema, look);
  const frame = Buffer.alloc(5 + message.length);
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, 5);
  const server = http2.createServer();
  server.on("stream", (stream) => {
    stream.on("error", () => {});
    stream.respond({ ":status": 200, "content-type": "application/grpc" });
    // Without trailers, which would say that this is all.
    stream.write(frame, () => stream.close(http2.constants.NGHTTP2_CANCEL));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const shown = `127.0.0.1:${port}`;
  const client = new ServiceClient({ shown, host: "127.0.0.1", port, tls: false }, service.adminToken);
  onTestFinished(() => {
    client.close();
    server.close();
  });
  const statuses: VerificationStatus[] = [];
  const losses: Loss[] = [];
  await followVerification({
    client,
    verificationId: "vrf_1",
    onStatus: ({ status }) => statuses.push(status),
    onLost: (loss) => losses.push(loss),
    signal: new AbortController().signal,
  });
  expect([statuses, losses]).toEqual([[VerificationStatus.VERIFIED], []]);
});
