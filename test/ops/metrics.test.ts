import { once } from "node:events";
import http from "node:http";
import net from "node:net";
import type { EventLoopUtilization } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { pino } from "pino";
import { Registry } from "prom-client";
import { expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { decodeId, encodeId, newId } from "../../src/core/ids.ts";
import type { AttemptResult, DueAttempt } from "../../src/core/webhook.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { createDeliveryMetrics } from "../../src/ops/delivery-metrics.ts";
import { HistogramFamily } from "../../src/ops/histogram-family.ts";
import { createRetentionMetrics } from "../../src/ops/retention-metrics.ts";
import { createSilenceMetrics } from "../../src/ops/silence-metrics.ts";
import { createStorageMetrics } from "../../src/ops/storage-metrics.ts";
import { createVerificationMetrics } from "../../src/ops/verification-metrics.ts";
import { startService } from "../../src/service.ts";
import { hintChannel } from "../../src/storage/transition.ts";
import { version } from "../../src/version.ts";
import { merchant } from "../gateway/merchant.ts";
import { blockFor } from "../harness/blocking.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { shortenTimers, suppressTimers } from "../harness/timers.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { connectRaw } from "../rpc/raw-grpc.ts";
import { untilWaiting } from "../service/barrier.ts";
import { answerWith, refuseForLong, startReceiver } from "../webhooks/receiver.ts";
import { attempted, deliveryWhen, hasFailed, isDisabled, makeDue, openShop } from "../webhooks/shop.ts";
import { scrape } from "./scrape.ts";

const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
const project = await service.createProject({ usageLimit: 1_000n });
const shop = merchant(service.httpUrl, project.liveKey);
/** Each look costs milliseconds of the processor, and these wait for seconds. */
const rarely = { timeout: 45_000, interval: 250 };
const phone = "01098761234";
const receiver = await startReceiver((response, request) =>
  (request.path === "/refuse" ? refuseForLong(500) : answerWith(204))(response, request),
);
/** A service without workers, so that what is due stays due. */
const idle = await startTestService({ ROLES: "api" });

/** How much each metric has grown during `work`, once all of them have grown. */
async function growthOf<Names extends string>(
  measured: Readonly<Record<Names, readonly [string, Record<string, string>?]>>,
  work: () => Promise<unknown>,
): Promise<Record<Names, number>> {
  const entries = Object.entries(measured) as [Names, readonly [string, Record<string, string>?]][];
  const read = async () => {
    const { sum } = await scrape(service.opsUrl);
    return entries.map(([, [name, labels]]) => sum(name, labels));
  };
  const before = await read();
  await work();
  // A request is counted after its answer was sent, perhaps after its client has received it: waits until nothing changes.
  let last = "";
  return vi.waitUntil(async () => {
    const after = await read();
    const grown = after.map((value, index) => value - (before[index] ?? 0));
    const isOver = `${after}` === last;
    last = `${after}`;
    return isOver && grown.every((value) => value > 0)
      ? (Object.fromEntries(entries.map(([key], index) => [key, grown[index]])) as Record<Names, number>)
      : undefined;
  }, 45_000);
}

const duration = "phoneproof_http_request_duration_seconds_count";

test("the version of the process is a label", async () => {
  const { sum } = await scrape(service.opsUrl);
  expect(version).toMatch(/^\d+\.\d+\.\d+/);
  expect(sum("phoneproof_build_info", { version })).toBe(1);
});

test("no series occurs twice in a scrape, since Prometheus takes only one of the values", async () => {
  for (let call = 0; call < 2; call++) {
    await shop.read("vrf_none");
    await service
      .client(VerificationService)
      .getVerification({ verificationId: "vrf_none" })
      .catch(() => {});
  }
  const { samples } = await scrape(service.opsUrl);
  const series = samples.map(({ name, labels }) => JSON.stringify([name, Object.entries(labels).sort()]));
  expect(series.filter((one, index) => series.indexOf(one) !== index)).toEqual([]);
  expect(series.length).toBeGreaterThan(500);
});

test("HTTP requests are counted by method, route and status, and counted calls as usage", async () => {
  const route = "/v1/verifications/:verification_id";
  const grown = await growthOf(
    {
      created: [duration, { method: "POST", route: "/v1/verifications", status: "201" }],
      refused: [duration, { method: "POST", route: "/v1/verifications", status: "422" }],
      missed: [duration, { method: "GET", route, status: "404" }],
      violations: ["phoneproof_refusals_total", { face: "http", code: "validation_failed" }],
      usage: ["phoneproof_usage_calls_total"],
    },
    async () => {
      await shop.create();
      await shop.create({ mode: "match" });
      await shop.read("vrf_none");
      await shop.read("vrf_none");
    },
  );
  expect(grown).toEqual({ created: 1, refused: 1, missed: 2, violations: 1, usage: 4 });
});

test("unknown methods and paths share one label", async () => {
  const grown = await growthOf(
    { unknown: [duration, { method: "other", route: "none", status: "404" }] },
    async () => {
      for (const method of ["DELETE", "PUT", "PATCH"]) await shop.call(method, `/made-up-${method}`);
      // Node's parser does not know this method.
      const { hostname, port } = new URL(service.httpUrl);
      const socket = net.connect(Number(port), hostname).end("MADE-UP / HTTP/1.1\r\nhost: a\r\n\r\n");
      await new Promise((resolve) => socket.on("close", resolve).resume());
    },
  );
  expect(grown).toEqual({ unknown: 4 });
  const { text } = await scrape(service.opsUrl);
  expect(text).not.toMatch(/made-up|DELETE/i);
});

test("unknown gRPC methods and services share one label", async () => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  const grown = await growthOf(
    { unknown: ["phoneproof_rpc_duration_seconds_count", { method: "none", code: "unimplemented" }] },
    async () => {
      for (const path of ["phoneproof.v1.VerificationService/MadeUp", "made.up.Service/Made", "made-up"]) {
        expect((await connection.call(path).status).code).toBe(Code.Unimplemented);
      }
    },
  );
  expect(grown).toEqual({ unknown: 3 });
  const { text } = await scrape(service.opsUrl);
  expect(text).not.toMatch(/made.?up/i);
});

test("invalid HTTP is counted", async () => {
  const grown = await growthOf({ malformed: [duration, { route: "none", status: "400" }] }, async () => {
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname).end("nonsense\r\n\r\n");
    await new Promise((resolve) => socket.on("close", resolve).resume());
  });
  expect(grown).toEqual({ malformed: 1 });
});

test("gRPC calls are counted by method and code", async () => {
  const client = service.client(VerificationService, project.liveKey);
  const method = "phoneproof.v1.VerificationService/GetVerification";
  const grown = await growthOf(
    {
      calls: ["phoneproof_rpc_duration_seconds_count", { method, code: "verification_not_found" }],
      refusals: ["phoneproof_refusals_total", { face: "grpc", code: "verification_not_found" }],
      usage: ["phoneproof_usage_calls_total"],
    },
    () => client.getVerification({ verificationId: "vrf_none" }).catch(() => undefined),
  );
  expect(grown).toEqual({ calls: 1, refusals: 1, usage: 1 });
});

test("refusals to administrators are counted, with counters that exist before the first one", async () => {
  const fresh = await service.startAnother({ ROLES: "api" });
  const codes = ["not_found", "number_exists"];
  const counts = async (face: string) => {
    const { text } = await scrape(fresh.opsUrl);
    return codes.map((code) => {
      const line = text
        .split("\n")
        .find((each) => each.startsWith(`phoneproof_refusals_total{face="${face}",code="${code}"}`));
      return line?.split(" ").at(-1);
    });
  };
  expect(await counts("grpc")).toEqual(["0", "0"]);
  expect(await counts("http")).toEqual(["0", "0"]);
  const absent = "prj_00000000000000000000000000";
  const { projectId, liveNumber: number } = project;
  await expect(fresh.client(ProjectService).getProject({ projectId: absent })).rejects.toThrow();
  const taken = { number, environment: Environment.LIVE, projectId };
  await expect(fresh.client(DestinationNumberService).addDestinationNumber(taken)).rejects.toThrow();
  expect(await counts("grpc")).toEqual(["1", "1"]);
});

/** A counter that first appears as 1 has not increased, for an alert. */
test.for([
  { name: "phoneproof_rpc_streams_refused_total", reason: ["authenticating", "unauthenticated", "waiting"] },
  { name: "phoneproof_rpc_connections_refused_total", reason: ["http2", "tls"] },
  { name: "phoneproof_creations_unplaced_total", reason: ["no_number", "no_number", "no_room", "no_room"] },
  { name: "phoneproof_database_connections_lost_total", connection: ["notices", "pool"] },
])("$name exists before its first increase", async ({ name, ...labels }) => {
  const fresh = await service.startAnother({ ROLES: "api" });
  const { samples } = await scrape(fresh.opsUrl);
  const zeros = samples.filter((sample) => sample.name === name && sample.value === 0);
  for (const [label, values] of Object.entries(labels))
    expect(zeros.map((sample) => sample.labels[label]).sort()).toEqual(values);
});

test("refusals for limits are counted by their code", async () => {
  const small = await service.createProject({ usageLimit: 1n, rateLimitPerMinute: 2 });
  const merchantOfSmall = merchant(service.httpUrl, small.testKey);
  const grown = await growthOf(
    {
      usage: ["phoneproof_refusals_total", { code: "usage_limit_exceeded" }],
      rate: ["phoneproof_refusals_total", { code: "rate_limited" }],
    },
    async () => {
      for (const status of [404, 429, 429]) {
        expect(await merchantOfSmall.read("vrf_none")).toMatchObject({ status });
      }
    },
  );
  expect(grown).toEqual({ usage: 1, rate: 1 });
});

test("a project without a number counts as one, however often it calls", async () => {
  const bare = await service.createProject();
  await service.client(DestinationNumberService).removeDestinationNumber({ number: bare.liveNumber });
  const refusedBy = async (key: string) => {
    const { status, body } = await merchant(service.httpUrl, key).create();
    return [status, body.error?.code];
  };
  const withoutRoom = async () =>
    (await scrape(service.opsUrl)).sum("phoneproof_creations_unplaced_total", { reason: "no_room" });
  const before = await withoutRoom();
  const grown = await growthOf(
    {
      missing: ["phoneproof_creations_unplaced_total", { reason: "no_number", environment: "live" }],
      projects: ["phoneproof_projects_without_number", { environment: "live" }],
      refusals: ["phoneproof_refusals_total", { code: "no_receiving_number" }],
    },
    async () => {
      for (let call = 0; call < 3; call++) {
        expect(await refusedBy(bare.liveKey)).toEqual([503, "no_receiving_number"]);
      }
    },
  );
  expect(grown).toEqual({ missing: 3, projects: 1, refusals: 3 });
  expect(await withoutRoom()).toBe(before);
});

test.for([
  { name: "for ten minutes", later: 600_000, projects: 1 },
  { name: "not a millisecond longer than that", later: 600_001, projects: 0 },
])("a project that found no number is shown as such $name", async ({ later, projects }) => {
  const registry = new Registry();
  const { unplaced } = createVerificationMetrics(registry);
  const now = Math.ceil(performance.now());
  const clock = vi.spyOn(performance, "now").mockReturnValue(now);
  onTestFinished(() => clock.mockRestore());
  unplaced({ projectId: "one", environment: "live", reason: "no_number" });
  clock.mockReturnValue(now + later);
  const { values } = (await registry.getSingleMetric("phoneproof_projects_without_number")?.get()) ?? {};
  expect(values).toEqual([
    { labels: { environment: "live" }, value: projects },
    { labels: { environment: "test" }, value: 0 },
  ]);
});

test("a project that has been given a number is no longer shown as one without, once it has created", async () => {
  const bare = await service.createProject();
  const numbers = service.client(DestinationNumberService);
  await numbers.removeDestinationNumber({ number: bare.liveNumber });
  const withoutNumber = async () => (await scrape(service.opsUrl)).sum("phoneproof_projects_without_number");
  const before = await withoutNumber();
  const { create } = merchant(service.httpUrl, bare.liveKey);
  expect((await create()).body.error.code).toBe("no_receiving_number");
  expect(await withoutNumber()).toBe(before + 1);
  // The other environment says nothing about this one.
  expect((await merchant(service.httpUrl, bare.testKey).create()).status).toBe(201);
  expect(await withoutNumber()).toBe(before + 1);
  await numbers.addDestinationNumber({
    number: bare.liveNumber,
    projectId: bare.projectId,
    environment: Environment.LIVE,
  });
  expect((await create()).status).toBe(201);
  expect(await withoutNumber()).toBe(before);
});

test("numbers without a free code are counted separately from projects without a number", async () => {
  const full = await service.createProject();
  const missing = async () => {
    const { sum } = await scrape(service.opsUrl);
    return [
      sum("phoneproof_creations_unplaced_total", { reason: "no_number" }),
      sum("phoneproof_projects_without_number"),
    ];
  };
  const missingBefore = await missing();
  // Every code that is tried is the one that the first creation took.
  await service.db.query(`
    CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.code := 0; RETURN NEW; END';
    CREATE TRIGGER taken BEFORE INSERT ON live_code FOR EACH ROW WHEN (NEW.destination = '${full.liveNumber}')
    EXECUTE FUNCTION taken()`);
  const grown = await growthOf(
    { full: ["phoneproof_creations_unplaced_total", { reason: "no_room", environment: "live" }] },
    async () => {
      const merchantOfFull = merchant(service.httpUrl, full.liveKey);
      expect((await merchantOfFull.create()).status).toBe(201);
      expect((await merchantOfFull.create()).body.error.code).toBe("no_receiving_number");
    },
  );
  expect(grown).toEqual({ full: 1 });
  expect(await missing()).toEqual(missingBefore);
});

test("a database's clock that was set back before the message came takes nothing from the time to verify", async () => {
  const read = async () => (await scrape(service.opsUrl)).sum("phoneproof_time_to_verify_seconds_sum");
  const before = await read();
  const grown = await growthOf({ count: ["phoneproof_time_to_verify_seconds_count"] }, async () => {
    const { body } = await shop.create();
    await service.db.query(
      "UPDATE verification SET created_at = created_at + interval '5 minutes' WHERE sms_text = $1",
      [body.sms_text],
    );
    await service.sms({ to: body.destination, from: phone, text: body.sms_text });
  });
  expect(grown).toEqual({ count: 1 });
  expect(await read()).toBe(before);
});

test("verifications are counted once by transition, and messages once by outcome and carrier", async () => {
  const live = { environment: "live" };
  const transition = (name: string) =>
    ["phoneproof_verifications_total", { transition: name, ...live }] as const;
  const inbound = (labels: Record<string, string>) => ["phoneproof_inbound_messages_total", labels] as const;
  const grown = await growthOf(
    {
      created: transition("created"),
      verified: transition("verified"),
      cancelled: transition("cancelled"),
      expired: transition("expired"),
      timesToVerify: ["phoneproof_time_to_verify_seconds_count", live],
      secondsToVerify: ["phoneproof_time_to_verify_seconds_sum", live],
      matching: inbound({ outcome: "verified", carrier: "LGU+", duplicate: "false" }),
      repeated: inbound({ outcome: "verified", carrier: "LGU+", duplicate: "true" }),
      stray: inbound({ outcome: "no_match", carrier: "none" }),
      onLiveNumbers: inbound(live),
      elsewhere: inbound({ environment: "none" }),
      receipts: ["phoneproof_receipt_latency_seconds_count"],
    },
    async () => {
      const { body: verified } = await shop.create();
      const { body: cancelled } = await shop.create();
      const { body: late } = await shop.create();
      await Promise.all([shop.cancel(cancelled.id), shop.cancel(cancelled.id)]);
      await service.db.query(
        "UPDATE verification SET created_at = created_at - interval '40 seconds' WHERE sms_text = $1",
        [verified.sms_text],
      );
      const message = { to: verified.destination, from: phone, text: verified.sms_text, carrier: "LGT" };
      await service.sms(
        { ...message, messageId: "metrics-1" },
        { ...message, messageId: "metrics-1" },
        { ...message, text: "nothing in it", carrier: "nobody" },
        { ...message, to: "02999999", carrier: "KT" },
      );
      await moveExpiry(service.db, {
        expiresAt: "now() - interval '1 second'",
        where: "sms_text = $1",
        values: [late.sms_text],
      });
      await shop.read(late.id);
    },
  );
  const { secondsToVerify, ...counted } = grown;
  expect(counted).toEqual({
    created: 3,
    verified: 1,
    cancelled: 1,
    expired: 1,
    timesToVerify: 1,
    matching: 1,
    repeated: 1,
    stray: 1,
    onLiveNumbers: 3,
    elsewhere: 1,
    receipts: 4,
  });
  expect(secondsToVerify).toBeGreaterThan(39);
  expect(secondsToVerify).toBeLessThan(400);
});

test("a message that the database always refuses is INVALID and a fault; a disk error is neither", async () => {
  const { liveNumber: to } = await idle.createProject();
  await idle.db.query(
    `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE 'refused' USING ERRCODE = TG_ARGV[0]; END $$`,
  );
  for (const [text, state] of [
    ["never", "check_violation"],
    ["not now", "disk_full"],
  ]) {
    await idle.db.query(
      `CREATE TRIGGER "${text}" BEFORE INSERT ON inbound_message FOR EACH ROW
       WHEN (NEW.text = '${text}') EXECUTE FUNCTION refuse('${state}')`,
    );
  }
  const faults = async () => (await scrape(idle.opsUrl)).sum("phoneproof_inbound_faults_total");
  const receipts = await idle.sms(...["before", "never", "after"].map((text) => ({ to, text })));
  expect(receipts.map(({ outcome }) => outcome)).toEqual(["NO_MATCH", "INVALID", "NO_MATCH"]);
  expect(await faults()).toBe(1);
  const away = await answerOf(() => idle.sms({ to, text: "not now" }));
  expect(away.code).toBe("service_unavailable");
  expect(await faults()).toBe(1);
});

test("the log has the database's reason for messages that it does not take", async () => {
  const lines: string[] = [];
  const log = pino({ base: null, timestamp: false }, { write: (line) => lines.push(line) });
  const settings = { PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", ROLES: "api", DATABASE_URL: idle.databaseUrl };
  const logging = await startService(
    parseConfig({ ...settings, PHONEPROOF_ADMIN_TOKEN: idle.adminToken }),
    log,
  );
  onTestFinished(() => logging.close());
  const { liveNumber: to } = await idle.createProject();
  await idle.db.query(
    `CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
     CREATE TRIGGER fill_disk BEFORE INSERT ON inbound_message FOR EACH ROW
       WHEN (NEW.text = 'too much') EXECUTE FUNCTION fill_disk()`,
  );
  const transport = createGrpcTransport({ baseUrl: `http://${logging.addresses.grpc}` });
  const messages = (async function* () {
    yield { messages: [{ messageId: "1", from: phone, to, text: "too much" }] };
  })();
  const receipts = createClient(InboundMessageService, transport).streamInboundMessages(messages, {
    headers: { authorization: `Bearer ${idle.adminToken}` },
  });
  const away = await answerOf(() => Array.fromAsync(receipts));
  expect(away.code).toBe("service_unavailable");
  const errors = lines.flatMap((line) => JSON.parse(line).err ?? []);
  expect(errors).toMatchObject([{ code: "53100", message: "No space left on device" }]);
});

test("batches are counted by operation, with their sizes", async () => {
  const grown = await growthOf(
    {
      reads: ["phoneproof_batch_size_sum", { operation: "read" }],
      waits: ["phoneproof_batch_wait_seconds_count", { operation: "read" }],
      durations: ["phoneproof_batch_duration_seconds_sum", { operation: "read" }],
    },
    () => Promise.all(Array.from({ length: 20 }, () => shop.read("vrf_01m7yrddhzfyja3hhg9my162t1"))),
  );
  expect(grown.reads).toBe(20);
  expect(grown.waits).toBeLessThanOrEqual(20);
});

test("durations of calls, batches and receipts are in seconds: none is longer than what it is a part of", async () => {
  const method = "phoneproof.v1.VerificationService/GetVerification";
  const startedAt = performance.now();
  const grown = await growthOf(
    {
      http: ["phoneproof_http_request_duration_seconds_sum", { method: "POST", route: "/v1/verifications" }],
      rpc: ["phoneproof_rpc_duration_seconds_sum", { method }],
      batch: ["phoneproof_batch_duration_seconds_sum", { operation: "create" }],
      receipt: ["phoneproof_receipt_latency_seconds_sum"],
    },
    async () => {
      const { body } = await shop.create();
      await service.client(VerificationService).getVerification({ verificationId: body.id });
      await service.sms({ to: project.liveNumber, from: phone, text: "nothing in it" });
    },
  );
  const tookSeconds = (performance.now() - startedAt) / 1_000;
  for (const [name, seconds] of Object.entries(grown)) expect(seconds, name).toBeLessThan(tookSeconds);
});

test("milliseconds of batches and webhook attempts are shown as seconds, and only failures as given up", async () => {
  const registry = new Registry();
  createStorageMetrics(registry).batch("read")(3, 1_500, 2_500);
  const { counted } = createDeliveryMetrics(registry);
  const attempt = async (startedAt: number, result: Partial<AttemptResult>) => {
    const due = { number: 1, startedAt, event: { occurredAt: 10_000 } } as DueAttempt;
    const made = { durationMs: 1_250, retryInSeconds: null, ...result } as AttemptResult;
    await counted(async () => made)(due, new AbortController().signal);
  };
  await attempt(11_750, { error: null, status: 204 });
  await attempt(12_000, { error: "answered 500", status: 500, retryInSeconds: 5 });
  // The database's clock was set back meanwhile.
  await attempt(9_000, { error: "answered 500", status: 500 });
  const lines = (await registry.metrics()).split("\n");
  expect(lines).toEqual(
    expect.arrayContaining([
      'phoneproof_batch_wait_seconds_sum{operation="read"} 1.5',
      'phoneproof_batch_duration_seconds_sum{operation="read"} 2.5',
      'phoneproof_delivery_attempt_duration_seconds_sum{result="delivered"} 1.25',
      'phoneproof_delivery_attempt_duration_seconds_sum{result="refused"} 2.5',
      "phoneproof_delivery_first_attempt_delay_seconds_sum 3.75",
      "phoneproof_deliveries_given_up_total 1",
      "phoneproof_deliveries_under_way 0",
    ]),
  );
});

test("a histogram's bucket counts the observations up to its bound, and the last one all", async () => {
  const registry = new Registry();
  const observed = new HistogramFamily({ name: "sizes", help: "Sizes", buckets: [1, 2], registry }).of({});
  for (const value of [1, 2, 2, 3]) observed.observe(value);
  expect(await registry.metrics()).toBe(
    [
      "# HELP sizes Sizes",
      "# TYPE sizes histogram",
      'sizes_bucket{le="1"} 1',
      'sizes_bucket{le="2"} 3',
      'sizes_bucket{le="+Inf"} 4',
      "sizes_sum 8",
      "sizes_count 4",
      "",
    ].join("\n"),
  );
});

test("the pool's connections are shown as idle and busy, with the statements that wait for one", async () => {
  const small = await idle.startAnother({ ROLES: "api", DATABASE_POOL_SIZE: "4" });
  const look = async () => {
    const { sum } = await scrape(small.opsUrl);
    const name = "phoneproof_database_pool_connections";
    return {
      size: sum("phoneproof_database_pool_size"),
      busy: sum(name, { state: "busy" }),
      idle: sum(name, { state: "idle" }),
      waiting: sum("phoneproof_database_pool_waiting"),
    };
  };
  const { projectId } = await idle.createProject();
  const tokens = small.client(ServiceTokenService);
  const statistics = small.client(StatisticsService);
  const verifications = small.client(VerificationService);
  const holder = await idle.db.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("BEGIN; LOCK TABLE service_token, verification, number_statistics");
  // The limit on the wait for a connection.
  suppressTimers(5_000);
  // Of each kind of these, one runs at a time.
  const running = [
    tokens.createServiceToken({ scope: ServiceTokenScope.ADMIN }),
    tokens.listServiceTokens({}),
    verifications.listVerifications({ projectId }),
    statistics.getStatistics({ projectId }),
  ];
  await expect.poll(look).toMatchObject({ size: 4, busy: 4, idle: 0 });
  const unknown = { projectId, verificationId: encodeId("vrf_", newId()) };
  const waiting = [
    verifications.getVerification(unknown).catch(() => {}),
    verifications.cancelVerification(unknown).catch(() => {}),
  ];
  await expect.poll(look).toMatchObject({
    size: 4,
    busy: 4,
    idle: 0,
    waiting: expect.toSatisfy((n) => n >= waiting.length),
  });
  await holder.query("COMMIT");
  await Promise.all([...running, ...waiting]);
  await expect.poll(look).toMatchObject({ size: 4, busy: 0, idle: 4, waiting: 0 });
});

test("no certificate's expiry is shown without TLS: the alert for it would take 0 for the expiry", async () => {
  const { samples } = await scrape(service.opsUrl);
  expect(samples.filter(({ name }) => name.startsWith("phoneproof_grpc_certificate_"))).toEqual([]);
});

test("the event loop's share of busy time is that since the last scrape", async () => {
  const metric = "phoneproof_event_loop_utilization_ratio";
  /** The share that is shown, and what this process, which is the service's, has measured before and after. */
  async function look() {
    const before = performance.eventLoopUtilization();
    const share = (await scrape(idle.opsUrl)).sum(metric);
    return { before, share, after: performance.eventLoopUtilization() };
  }
  const msOf = ({ idle, active }: EventLoopUtilization) => idle + active;
  const first = await look();
  await delay(400);
  const rested = await look();
  const certainlyIdleMs = rested.before.idle - first.after.idle;
  expect(rested.share).toBeLessThanOrEqual(
    1 - certainlyIdleMs / (msOf(rested.after) - msOf(first.before)) + 0.001,
  );
  blockFor(400);
  const worked = await look();
  const certainlyBusyMs = worked.before.active - rested.after.active;
  expect(worked.share).toBeGreaterThanOrEqual(
    certainlyBusyMs / (msOf(worked.after) - msOf(rested.before)) - 0.001,
  );
});

test("attempts are shown as under way until they end", async () => {
  const merchantWithWebhook = await openShop(service);
  const waiting: (() => void)[] = [];
  const slow = await startReceiver((response) => waiting.push(() => response.writeHead(204).end()));
  await merchantWithWebhook.setWebhook(slow.url);
  const underWay = async () => (await scrape(service.opsUrl)).sum("phoneproof_deliveries_under_way");
  const ids = [await merchantWithWebhook.event(), await merchantWithWebhook.event()];
  await expect.poll(underWay).toBe(2);
  for (const answer of waiting) answer();
  for (const id of ids) await deliveryWhen(service, id, attempted(1));
  await expect.poll(underWay).toBe(0);
});

test("delivery attempts are counted by result", async () => {
  const merchantWithWebhook = await openShop(service);
  const attempts = "phoneproof_delivery_attempt_duration_seconds_count";
  const grown = await growthOf(
    {
      delivered: [attempts, { result: "delivered" }],
      refused: [attempts, { result: "refused" }],
      unanswered: [attempts, { result: "unanswered" }],
      first: ["phoneproof_delivery_first_attempt_delay_seconds_count"],
    },
    async () => {
      for (const url of [receiver.url, `${receiver.origin}/refuse`, "http://127.0.0.1:9/hook"]) {
        await merchantWithWebhook.setWebhook(url);
        await deliveryWhen(service, await merchantWithWebhook.event(), attempted(1));
        // Otherwise it would be retried in four seconds.
        await service.db.query(
          "UPDATE webhook_delivery SET next_attempt_at = now() + interval '1 hour' WHERE state = 'pending'",
        );
      }
    },
  );
  expect(grown).toEqual({ delivered: 1, refused: 1, unanswered: 1, first: 3 });
});

test("only first attempts count in the delay, and a delivery is counted as given up when its last attempt fails", async () => {
  const merchantWithWebhook = await openShop(service);
  await merchantWithWebhook.setWebhook(`${receiver.origin}/refuse`);
  const grown = await growthOf(
    {
      attempts: ["phoneproof_delivery_attempt_duration_seconds_count", { result: "refused" }],
      first: ["phoneproof_delivery_first_attempt_delay_seconds_count"],
      givenUp: ["phoneproof_deliveries_given_up_total"],
    },
    async () => {
      const id = await merchantWithWebhook.event();
      await deliveryWhen(service, id, attempted(1));
      await makeDue(service, id);
      await deliveryWhen(service, id, attempted(2));
      // As after nine failures.
      await service.db.query("UPDATE webhook_delivery SET failures = 9 WHERE verification_id = $1", [
        decodeId("vrf_", id),
      ]);
      await makeDue(service, id);
      await deliveryWhen(service, id, hasFailed);
    },
  );
  expect(grown).toEqual({ attempts: 3, first: 1, givenUp: 1 });
});

test("a webhook disabled by 410 is counted once, even if several events get that answer", async () => {
  const merchantWithWebhook = await openShop(service);
  const waiting: (() => void)[] = [];
  const gone = await startReceiver((response, request) => {
    waiting.push(() => answerWith(410)(response, request));
    // Both attempts are in progress before either is answered.
    if (waiting.length === 2) for (const answer of waiting) answer();
  });
  await merchantWithWebhook.setWebhook(gone.url);
  const grown = await growthOf(
    {
      attempts: ["phoneproof_delivery_attempt_duration_seconds_count", { result: "gone" }],
      disabled: ["phoneproof_webhooks_disabled_total"],
    },
    async () => {
      const ids = [await merchantWithWebhook.event(), await merchantWithWebhook.event()];
      for (const id of ids) await deliveryWhen(service, id, isDisabled);
    },
  );
  expect(grown).toEqual({ attempts: 2, disabled: 1 });
});

test("the age of due deliveries and expiries is shown, even by a process without workers", async () => {
  const { liveKey, projectId } = await idle.createProject();
  expect((await scrape(idle.opsUrl)).sum("phoneproof_database_up")).toBe(1);
  const due = async () => {
    const { sum } = await scrape(idle.opsUrl);
    return [
      sum("phoneproof_deliveries_due"),
      sum("phoneproof_deliveries_oldest_due_seconds"),
      sum("phoneproof_expiry_oldest_due_seconds"),
    ];
  };
  expect(await due()).toEqual([0, 0, 0]);
  await idle.client(WebhookService).setWebhook({
    projectId,
    environment: Environment.LIVE,
    url: "https://shop.example.com/hook",
  });
  const idleShop = merchant(idle.httpUrl, liveKey);
  for (let made = 0; made < 2; made++) await idleShop.cancel((await idleShop.create()).body.id);
  await idleShop.create();
  await idle.db.query("UPDATE webhook_delivery SET next_attempt_at = now() - interval '100 seconds'");
  await moveExpiry(idle.db, { expiresAt: "now() - interval '200 seconds'", where: "status = 'pending'" });
  await expect.poll(async () => (await due())[0], rarely).toBe(2);
  const [, delivery = 0, expiry = 0] = await due();
  expect(delivery).toBeGreaterThanOrEqual(100);
  expect(expiry).toBeGreaterThanOrEqual(200);
  expect(expiry).toBeLessThan(300);
});

test("the delay of the statistics is shown, even by a process without workers", async () => {
  const behind = async () => (await scrape(idle.opsUrl)).sum("phoneproof_statistics_behind_seconds");
  await idle.db.query(
    "UPDATE statistics_progress SET counted_until = now() - interval '1000 seconds' WHERE task = 'creations'",
  );
  await expect.poll(behind, rarely).toBeGreaterThanOrEqual(1_000);
  expect(await behind()).toBeLessThan(1_100);
});

test("however often it is scraped, a process asks the database for its figures at most every two seconds", async () => {
  const registry = new Registry();
  const figures = {
    oldestDeliverySeconds: null,
    deliveriesDue: 0,
    oldestExpirySeconds: null,
    statisticsBehindSeconds: 0,
  };
  const read = vi.fn(async () => figures);
  const clock = vi.spyOn(performance, "now").mockReturnValue(0);
  onTestFinished(() => clock.mockRestore());
  createStorageMetrics(registry).watchBacklog(read);
  for (const now of [0, 2_000]) {
    clock.mockReturnValue(now);
    await Promise.all([registry.metrics(), registry.metrics()]);
  }
  expect(read).toHaveBeenCalledTimes(1);
  clock.mockReturnValue(2_001);
  const late = Promise.withResolvers<typeof figures>();
  read.mockReturnValueOnce(late.promise);
  const scrapes = [registry.metrics()];
  expect(read).toHaveBeenCalledTimes(2);
  // Nor a second time while it has not answered.
  clock.mockReturnValue(9_000);
  scrapes.push(registry.metrics());
  late.resolve(figures);
  for (const text of await Promise.all(scrapes)) expect(text).toContain("phoneproof_deliveries_due 0");
  expect(read).toHaveBeenCalledTimes(2);
});

test("a database that answers counts as up, even if what its jobs need is locked", async () => {
  const holder = await idle.db.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("BEGIN; LOCK TABLE statistics_progress");
  const look = async () => {
    const { sum, samples } = await scrape(idle.opsUrl);
    return [sum("phoneproof_database_up"), samples.some(({ name }) => name === "phoneproof_deliveries_due")];
  };
  await expect.poll(look, rarely).toEqual([1, false]);
});

test("during a database outage a scrape says so, omits figures of the database and keeps earlier judgements", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.databaseUrl, ROLES: "worker" });
  // It would do work that other tests count.
  onTestFinished(() => distant.close());
  const judged = "phoneproof_statistics_counted_until_seconds";
  const ofDatabase = [
    "phoneproof_deliveries_due",
    "phoneproof_deliveries_oldest_due_seconds",
    "phoneproof_expiry_oldest_due_seconds",
    "phoneproof_statistics_behind_seconds",
  ];
  const look = async () => {
    const { samples, sum } = await scrape(distant.opsUrl);
    const shown = samples.map(({ name }) => name).filter((name) => ofDatabase.includes(name));
    return { up: sum("phoneproof_database_up"), shown: shown.sort(), judgedUntil: sum(judged) };
  };
  const lost = async () => {
    const { sum } = await scrape(distant.opsUrl);
    return ["pool", "notices"].map(
      (connection) => sum("phoneproof_database_connections_lost_total", { connection }) > 0,
    );
  };
  const there = { up: 1, shown: ofDatabase };
  await expect.poll(look, rarely).toMatchObject(there);
  await expect.poll(async () => (await look()).judgedUntil, rarely).toBeGreaterThan(0);
  const { judgedUntil } = await look();
  expect(await lost()).toEqual([false, false]);
  proxy.cut();
  await expect.poll(look, rarely).toMatchObject({ up: 0, shown: [] });
  expect((await look()).judgedUntil).toBeGreaterThanOrEqual(judgedUntil);
  await expect.poll(lost, rarely).toEqual([true, true]);
  proxy.restore();
  await expect.poll(look, rarely).toMatchObject(there);
});

test("before its first round, retention counts as caught up at the start, so that no alert fires at once", async () => {
  const registry = new Registry();
  const startedAt = Date.now() / 1_000;
  createRetentionMetrics(registry);
  const { values } = (await registry
    .getSingleMetric("phoneproof_retention_caught_up_timestamp_seconds")
    ?.get()) ?? { values: [] };
  expect(values[0]?.value).toBeGreaterThanOrEqual(startedAt);
});

test("workers show when retention last had nothing left to do; other processes do not", async () => {
  shortenTimers(60_000);
  const worker = await service.startAnother({ ROLES: "worker" });
  // It would do work that other tests count.
  onTestFinished(() => worker.close());
  const caughtUp = async ({ opsUrl }: TestService) =>
    (await scrape(opsUrl)).samples.find(({ name }) => name.startsWith("phoneproof_retention_"))?.value;
  const started = Date.now() / 1000;
  await expect.poll(() => caughtUp(worker), rarely).toBeGreaterThan(started);
  expect(await caughtUp(worker)).toBeLessThanOrEqual(Date.now() / 1000);
  expect(await caughtUp(idle)).toBeUndefined();
});

test("verifications ended by an erasure are counted as cancelled or expired", async () => {
  const { liveKey, testKey } = await idle.createProject();
  const expecting = { mode: "match", expected_phone: phone };
  await merchant(idle.httpUrl, testKey).create(expecting);
  for (let made = 0; made < 2; made++) await merchant(idle.httpUrl, liveKey).create(expecting);
  const { body: late } = await merchant(idle.httpUrl, testKey).create(expecting);
  await moveExpiry(idle.db, {
    expiresAt: "now() - interval '1 second'",
    where: "sms_text = $1",
    values: [late.sms_text],
  });
  const counted = async () => {
    const { sum } = await scrape(idle.opsUrl);
    const places = ["cancelled", "expired"].flatMap((transition) =>
      ["live", "test"].map((environment) => ({ transition, environment })),
    );
    return places.map((labels) => sum("phoneproof_verifications_total", labels));
  };
  const before = await counted();
  await Array.fromAsync(idle.client(ErasureService).erasePhone({ phone }));
  const grown = (await counted()).map((count, index) => count - (before[index] ?? 0));
  expect(grown).toEqual([2, 1, 0, 1]);
});

test("verifications that a late message finds expired are counted as expired once", async () => {
  const { liveKey, testKey } = await idle.createProject();
  const late = await Promise.all(
    [liveKey, testKey, testKey].map((key) => merchant(idle.httpUrl, key).create()),
  );
  const messages = late.map(({ body }) => ({ to: body.destination, text: body.sms_text }));
  await moveExpiry(idle.db, {
    expiresAt: "now() - interval '1 second'",
    where: "sms_text = ANY ($1)",
    values: [messages.map(({ text }) => text)],
  });
  const counted = async () => {
    const { sum } = await scrape(idle.opsUrl);
    return ["live", "test"].map((environment) =>
      sum("phoneproof_verifications_total", { transition: "expired", environment }),
    );
  };
  const [live = 0, test = 0] = await counted();
  const receipts = [...(await idle.sms(...messages)), ...(await idle.sms(...messages))];
  expect(receipts.map(({ outcome }) => outcome)).toEqual(Array(6).fill("LATE"));
  expect(await counted()).toEqual([live + 1, test + 2]);
});

test("up to twenty silent numbers are named, and the others are shown as a count", async () => {
  const registry = new Registry();
  const { show } = createSilenceMetrics(registry);
  const silence = (environment: "live" | "test", kind: "number" | "carrier", count: number) =>
    Array.from({ length: count }, (_, index) => ({ environment, kind, name: `${kind} ${index}` }));
  show({
    countedUntil: 1_500,
    silent: [
      ...silence("live", "carrier", 3),
      ...silence("live", "number", 500),
      ...silence("test", "number", 20),
    ],
  });
  expect(await registry.metrics()).toContain("phoneproof_statistics_counted_until_seconds 1.5\n");
  const { values } = (await registry.getSingleMetric("phoneproof_silent")?.get()) ?? { values: [] };
  expect(values).toHaveLength(3 + 21 + 20);
  expect(values.find(({ labels }) => labels.name === "others")).toMatchObject({
    labels: { environment: "live", kind: "number" },
    value: 480,
  });
  show({ countedUntil: 0, silent: [] });
  expect((await registry.getSingleMetric("phoneproof_silent")?.get())?.values).toEqual([]);
});

/** A source that sends one message and stays open. */
async function* oneThenNone(signal: AbortSignal) {
  yield { messages: [{ messageId: "metrics-open", from: phone, to: project.liveNumber, text: "hello" }] };
  await new Promise((resolve) => signal.addEventListener("abort", resolve));
}

test.for([
  {
    name: "a request over REST",
    face: "http",
    calls: "phoneproof_http_request_duration_seconds_count",
    begin: (id: string, key: string) => {
      const { hostname, port } = new URL(idle.httpUrl);
      const socket = net.connect(Number(port), hostname);
      const head = `Host: x\r\nAuthorization: Bearer ${key}\r\n`;
      socket.write(`GET /v1/verifications/${id} HTTP/1.1\r\n${head}\r\n`);
      return () => socket.resetAndDestroy();
    },
  },
  {
    name: "a gRPC call",
    face: "grpc",
    calls: "phoneproof_rpc_duration_seconds_count",
    begin: (verificationId: string, key: string) => {
      const leaving = new AbortController();
      const { signal } = leaving;
      idle
        .client(VerificationService, key)
        .getVerification({ verificationId }, { signal })
        .catch(() => {});
      return () => leaving.abort();
    },
  },
])("$name that meets an internal error after its client has left counts as one call and one error", async ({
  face,
  calls,
  begin,
}) => {
  const { liveKey } = await idle.createProject();
  // Over gRPC, it is counted before it is answered.
  const { verification } = await idle
    .client(VerificationService, liveKey)
    .createVerification({ idempotencyKey: "fault-after-leaving" });
  const counted = async () => {
    const { sum } = await scrape(idle.opsUrl);
    return [sum(calls), sum("phoneproof_refusals_total", { face, code: "internal_error" })];
  };
  const [callsBefore = 0, faultsBefore = 0] = await counted();
  const holder = await idle.db.connect();
  try {
    await holder.query("BEGIN; ALTER TABLE verification RENAME TO away");
    const leave = begin(verification?.id ?? "", liveKey);
    await untilWaiting(idle.db, 1);
    leave();
    await expect.poll(counted).toEqual([callsBefore + 1, faultsBefore]);
    await holder.query("COMMIT");
    await expect.poll(counted).toEqual([callsBefore + 1, faultsBefore + 1]);
  } finally {
    await holder.query("ROLLBACK; ALTER TABLE IF EXISTS away RENAME TO verification");
    holder.release();
  }
});

test("an internal error that ends a window's stream is counted", async () => {
  const { liveKey } = await idle.createProject();
  const { body } = await merchant(idle.httpUrl, liveKey).create();
  const faults = async () =>
    (await scrape(idle.opsUrl)).sum("phoneproof_refusals_total", { face: "http", code: "internal_error" });
  const before = await faults();
  const url = body.verification_url.replace(/^http:\/\/localhost:\d+/, idle.httpUrl);
  const events = await fetch(`${url}/events`);
  await idle.db.query("ALTER TABLE verification RENAME TO away");
  try {
    await idle.db.query("SELECT pg_notify($1, $2)", [hintChannel, decodeId("vrf_", body.id)]);
    // The stream ends.
    await events.text();
  } finally {
    await idle.db.query("ALTER TABLE away RENAME TO verification");
  }
  expect(await faults()).toBe(before + 1);
});

test("a stream that is refused for its media type is counted among the streams", async () => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  const method = "phoneproof.v1.InboundMessageService/StreamInboundMessages";
  const grown = await growthOf(
    { ended: ["phoneproof_rpc_streams_ended_total", { method, code: "unimplemented" }] },
    async () => {
      const { status } = connection.call(method, { "content-type": "application/grpc+json" });
      expect((await status).code).toBe(Code.Unimplemented);
    },
  );
  expect(grown).toEqual({ ended: 1 });
  const { sum } = await scrape(service.opsUrl);
  expect(sum("phoneproof_rpc_duration_seconds_count", { method })).toBe(0);
  expect(sum("phoneproof_rpc_streams_open", { method })).toBe(0);
});

test("streams and windows are counted while they are open", async () => {
  const open = async () => {
    const { sum } = await scrape(service.opsUrl);
    return {
      watches: sum("phoneproof_rpc_streams_open", {
        method: "phoneproof.v1.VerificationService/WatchVerification",
      }),
      inbound: sum("phoneproof_rpc_streams_open", {
        method: "phoneproof.v1.InboundMessageService/StreamInboundMessages",
      }),
      windows: sum("phoneproof_windows_open"),
    };
  };
  const { body } = await shop.create();
  const leave = new AbortController();
  const { signal } = leave;
  const watch = service
    .client(VerificationService)
    .watchVerification({ verificationId: body.id }, { signal });
  await watch[Symbol.asyncIterator]().next();
  const inbound = service
    .client(InboundMessageService)
    .streamInboundMessages(oneThenNone(signal), { signal });
  await inbound[Symbol.asyncIterator]().next();
  const events = await fetch(
    `${body.verification_url.replace(/^http:\/\/localhost:\d+/, service.httpUrl)}/events`,
    { signal },
  );
  expect(events.status).toBe(200);
  await expect.poll(open).toEqual({ watches: 1, inbound: 1, windows: 1 });
  leave.abort();
  await expect.poll(open).toEqual({ watches: 0, inbound: 0, windows: 0 });
});

test("no label contains a phone, a credential or an id", async () => {
  const { samples } = await scrape(service.opsUrl);
  const labels = samples.map((sample) => JSON.stringify(sample.labels)).join("\n");
  expect(labels).toContain("no_match");
  expect(labels).not.toMatch(/\d{7}|pp_(test|live|svc)_|vrf_|prj_/);
});

test("a scraper can reuse its connection", async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const reused: boolean[] = [];
  for (let scrapes = 0; scrapes < 5; scrapes++) {
    const request = http.get(`${service.opsUrl}/metrics`, { agent });
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    expect(response.statusCode).toBe(200);
    // Prometheus refuses a scrape without a type that it knows.
    expect(response.headers["content-type"]).toBe("text/plain; version=0.0.4; charset=utf-8");
    await once(response.resume(), "end");
    reused.push(request.reusedSocket);
  }
  agent.destroy();
  expect(reused).toEqual([false, true, true, true, true]);
});
