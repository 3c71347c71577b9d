/** A watch whose service goes away. */

import http2 from "node:http2";
import { create, toBinary } from "@bufbuild/protobuf";
import { timestampFromMs, timestampNow } from "@bufbuild/protobuf/wkt";
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
import { framed } from "../rpc/raw-grpc.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { startGrpcPeer } from "./grpc-peer.ts";
import { startSilentServer } from "./silent-server.ts";

const service = await startTestService();
const { testKey } = await service.createProject();
const shop = merchant(service.httpUrl, testKey);

/** Told of as often as it can be. */
const patienceMs = 1;

async function startWatch(id: string) {
  let target = service.grpcAddress;
  const proxy = await startCuttingProxy(() => target);
  onTestFinished(() => proxy.close());
  const watch = watchAt(proxy.address, { id, patienceMs });
  await vi.waitUntil(() => watch.statuses.length === 1, { timeout: 45_000 });
  return {
    ...watch,
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

test("a connection that has lasted is told when it is lost, as the one before it was", async () => {
  const { body: created } = await shop.create();
  const watch = await startWatch(created.id);
  for (const losses of [1, 2]) {
    // As long as one must last to have been good.
    const since = performance.now();
    await vi.waitUntil(() => performance.now() - since > 1_500, { timeout: 45_000 });
    watch.breakAll();
    await vi.waitUntil(() => watch.losses.length >= losses, { timeout: 45_000 });
  }
  await service.sms({ to: created.destination, text: created.sms_text, from: "01012345678" });
  await watch.ended;
  expect(watch.losses.map(({ isStill }) => isStill)).toEqual([false, false]);
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
  const peer = await startPeerThatBreaks(VerificationStatus.VERIFIED);
  const watch = watchAt(peer.address);
  await watch.ended;
  expect([watch.statuses, watch.losses]).toEqual([[VerificationStatus.VERIFIED], []]);
});

test("one that breaks behind each first look is no connection that is back, and is told once", async () => {
  const peer = await startPeerThatBreaks(VerificationStatus.PENDING);
  const watch = watchAt(peer.address);
  await vi.waitUntil(() => peer.calls() === 5, { timeout: 45_000 });
  expect(watch.statuses).toEqual([VerificationStatus.PENDING]);
  expect(watch.losses.map(({ isStill }) => isStill)).toEqual([false]);
});

/** Shows one status to each call and breaks it. */
function startPeerThatBreaks(status: VerificationStatus) {
  const expiresAt = timestampFromMs(Date.now() + 600_000);
  const look = create(WatchVerificationResponseSchema, {
    verification: { id: "vrf_1", status, expiresAt, serverTime: timestampNow() },
  });
  const message = framed(toBinary(WatchVerificationResponseSchema, look));
  return startGrpcPeer((call) => {
    // Without trailers, which would say that this is all.
    call.write(message, () => call.close(http2.constants.NGHTTP2_CANCEL));
  });
}

function watchAt(
  address: string,
  { id = "vrf_1", patienceMs = 60_000 }: { id?: string; patienceMs?: number } = {},
) {
  const [host = "", port = ""] = address.split(":");
  const client = new ServiceClient(
    { shown: address, host, port: Number(port), tls: false },
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
  onTestFinished(() => {
    aborted.abort();
    client.close();
  });
  return { statuses, losses, ended };
}
