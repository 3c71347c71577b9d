/** `verification watch` when the service becomes unreachable. */

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
import { deadAddress } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { startGrpcPeer } from "./grpc-peer.ts";
import { startSilentServer } from "./silent-server.ts";

const service = await startTestService();
const { testKey } = await service.createProject();
const shop = merchant(service.httpUrl, testKey);

/** So short that every failed attempt is reported. */
const timeoutMs = 1;

async function startWatch(id: string) {
  let target = service.grpcAddress;
  const proxy = await startCuttingProxy(() => target);
  onTestFinished(() => proxy.close());
  const watch = watchAt(proxy.address, { id, timeoutMs });
  await vi.waitUntil(() => watch.statuses.length === 1, { timeout: 45_000 });
  return {
    ...watch,
    /** New connections go to this address. */
    leadTo(address: string) {
      target = address;
    },
    breakAll: () => proxy.breakAll(),
    /** Bytes that the service has sent. */
    heard: () => proxy.passed.server,
  };
}

test.for([
  { name: "accepts connections but never answers", away: () => startSilentServer() },
  { name: "refuses connections", away: async () => ({ address: await deadAddress(), close: () => {} }) },
])("a service that $name is retried until it is back, and the wait is reported", async ({ away }) => {
  const gone = await away();
  onTestFinished(() => gone.close());
  const { body: created } = await shop.create();
  const watch = await startWatch(created.id);
  watch.leadTo(gone.address);
  watch.breakAll();
  await vi.waitUntil(() => watch.losses.length === 2, { timeout: 45_000 });
  await service.sms({ to: created.destination, text: created.sms_text, from: "01012345678" });
  // Pending connections stay open: the watch gets no hint that a new connection would succeed.
  watch.leadTo(service.grpcAddress);
  await watch.ended;
  expect(watch.statuses).toEqual([VerificationStatus.PENDING, VerificationStatus.VERIFIED]);
  expect(watch.losses.slice(0, 2).map(({ isStill }) => isStill)).toEqual([false, true]);
});

test("losing a connection that had lasted is reported as a new loss, not as a continued one", async () => {
  const { body: created } = await shop.create();
  const watch = await startWatch(created.id);
  let before = 0;
  for (const losses of [1, 2]) {
    // Longer than a connection must last, after the service has answered, to count as restored.
    let [since, heard] = [0, before];
    const lasts = () => {
      if (watch.heard() > heard) [since, heard] = [performance.now(), watch.heard()];
      return heard > before && performance.now() - since > 1_500;
    };
    await vi.waitUntil(lasts, { timeout: 45_000 });
    before = heard;
    watch.breakAll();
    await vi.waitUntil(() => watch.losses.length >= losses, { timeout: 45_000 });
  }
  await service.sms({ to: created.destination, text: created.sms_text, from: "01012345678" });
  await watch.ended;
  expect(watch.losses.map(({ isStill }) => isStill)).toEqual([false, false]);
});

test("the watch gives up if the service is still unreachable when the verification must have expired", async () => {
  const { body: created } = await shop.create({ client_reference: "soon over" });
  await moveExpiry(service.db, {
    expiresAt: "now() + interval '10 seconds'",
    where: "client_reference = $1",
    values: ["soon over"],
  });
  const watch = await startWatch(created.id);
  watch.leadTo(await deadAddress());
  watch.breakAll();
  await expect(watch.ended).rejects.toMatchObject({ exitCode: 3, code: "service_unreachable" });
  expect(watch.statuses).toEqual([VerificationStatus.PENDING]);
  expect(watch.losses.map(({ isStill }) => isStill)).toContain(true);
});

test("a connection that breaks after the final status does not affect the result", async () => {
  const peer = await startPeerThatBreaks(VerificationStatus.VERIFIED);
  const watch = watchAt(peer.address);
  await watch.ended;
  expect([watch.statuses, watch.losses]).toEqual([[VerificationStatus.VERIFIED], []]);
});

test("connections that break right after their first status do not count as restored: one loss is reported", async () => {
  const peer = await startPeerThatBreaks(VerificationStatus.PENDING);
  const watch = watchAt(peer.address);
  await vi.waitUntil(() => peer.calls() === 5, { timeout: 45_000 });
  expect(watch.statuses).toEqual([VerificationStatus.PENDING]);
  expect(watch.losses.map(({ isStill }) => isStill)).toEqual([false]);
});

/** Sends one status on each call and then breaks it. */
function startPeerThatBreaks(status: VerificationStatus) {
  const expiresAt = timestampFromMs(Date.now() + 600_000);
  const look = create(WatchVerificationResponseSchema, {
    verification: { id: "vrf_1", status, expiresAt, serverTime: timestampNow() },
  });
  const message = framed(toBinary(WatchVerificationResponseSchema, look));
  return startGrpcPeer((call) => {
    // Without trailers, which would mark a regular end of the stream.
    call.write(message, () => call.close(http2.constants.NGHTTP2_CANCEL));
  });
}

function watchAt(
  address: string,
  { id = "vrf_1", timeoutMs = 60_000 }: { id?: string; timeoutMs?: number } = {},
) {
  const [host = "", port = ""] = address.split(":");
  const client = new ServiceClient(
    { shown: address, host, port: Number(port), tls: false },
    { secret: service.adminToken, source: "the test" },
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
    timeoutMs: timeoutMs,
  });
  ended.catch(() => {});
  onTestFinished(() => {
    aborted.abort();
    client.close();
  });
  return { statuses, losses, ended };
}
