/** Deadlines as the server enforces them: this client does not enforce its own. */
import { constants } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import {
  CreateVerificationRequestSchema,
  GetVerificationRequestSchema,
  GetVerificationResponseSchema,
  VerificationService,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { runningTime } from "../../src/running-time.ts";
import { merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { createPending } from "../service/pending.ts";
import { connectPlain } from "./plain-calls.ts";
import { connectRaw, type RawCall } from "./raw-grpc.ts";

const service = await startTestService({ ROLES: "api" });
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);
const connection = connectRaw(service.grpcAddress);
afterAll(() => connection.destroy());
const { method } = VerificationService;

function call(name: string, request: Uint8Array, timeout: string, key = project.liveKey): RawCall {
  const made = connection.call(`${VerificationService.typeName}/${name}`, {
    authorization: `Bearer ${key}`,
    "grpc-timeout": timeout,
  });
  void made.send(request);
  made.halfClose();
  return made;
}

const get = (verificationId: string, timeout: string) =>
  call(
    method.getVerification.name,
    toBinary(GetVerificationRequestSchema, create(GetVerificationRequestSchema, { verificationId })),
    timeout,
  );

const creation = (request: MessageInitShape<typeof CreateVerificationRequestSchema>, timeout: string) =>
  call(
    method.createVerification.name,
    toBinary(CreateVerificationRequestSchema, create(CreateVerificationRequestSchema, request)),
    timeout,
  );

/** Locks the project's usage row, which every counted call needs, while `work` runs. */
async function whileUsageIsHeld(work: () => Promise<void>): Promise<void> {
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    const { rowCount } = await holder.query("SELECT FROM usage WHERE project_id = $1 FOR UPDATE", [
      decodeId("prj_", project.projectId),
    ]);
    expect(rowCount).toBe(1);
    await work();
  } finally {
    await holder.query("COMMIT");
    holder.release();
  }
}

/** Makes a call that waits for the database when its deadline passes. If it did not get that far, tries a longer deadline. */
async function callTooLate(make: (timeout: string) => RawCall): Promise<void> {
  for (const timeout of ["100m", "1S", "5S"]) {
    const { status } = make(timeout);
    const waits = untilWaiting(service.db, 1).then(() => true);
    waits.catch(() => {});
    const isWaiting = await Promise.race([waits, status.then(() => false)]);
    expect((await status).code).toBe(Code.DeadlineExceeded);
    if (isWaiting) return;
  }
  throw new Error("no call got as far as the database");
}

test("a call whose deadline passes gets DEADLINE_EXCEEDED at once, and later calls are answered", async () => {
  const { id } = await createPending(shop);
  await whileUsageIsHeld(async () => {
    await callTooLate((timeout) => get(id, timeout));
    // The row is still locked: it was the deadline that ended the call.
    await untilWaiting(service.db, 1);
  });
  const inTime = get(id, "60S");
  const message = await inTime.next();
  expect((await inTime.status).code).toBe(0);
  expect(fromBinary(GetVerificationResponseSchema, message ?? new Uint8Array()).verification?.id).toBe(id);
});

test.for([
  // The longest that Node's timers can wait, and the next longer one, in each unit.
  ...["596H", "597H", "35791M", "35792M", "2147483S", "2147484S"],
  ...["99999999H", "99999999m", "99999999u"],
])("a call with the deadline %s is answered", async (timeout) => {
  const { id } = await createPending(shop);
  const call = get(id, timeout);
  expect(await call.next()).toBeDefined();
  expect((await call.status).code).toBe(0);
});

test("a creation whose deadline passed creates one verification when it is retried with its key", async () => {
  await createPending(shop);
  const idempotencyKey = newIdempotencyKey();
  await whileUsageIsHeld(async () => {
    await callTooLate((timeout) => creation({ idempotencyKey, clientReference: "late" }, timeout));
  });
  const answers = [
    await shop.create({ client_reference: "late" }, idempotencyKey),
    await shop.create({ client_reference: "late" }, idempotencyKey),
  ];
  expect(answers[1]?.status).toBe(200);
  expect(answers[1]?.text).toBe(answers[0]?.text);
  const { rows } = await service.db.query("SELECT FROM verification WHERE client_reference = 'late'");
  expect(rows).toHaveLength(1);
});

test("a client that disconnects in the middle of a call does not affect later calls", async () => {
  const { id } = await createPending(shop);
  await whileUsageIsHeld(async () => {
    const left = get(id, "60S");
    await untilWaiting(service.db, 1);
    left.cut();
    await left.status;
  });
  expect((await get(id, "60S").status).code).toBe(0);
  expect((await shop.read(id)).status).toBe(200);
});

test("the metric of counted calls also has those whose deadline passed or whose client left", async () => {
  const { id } = await createPending(shop);
  await whileUsageIsHeld(async () => {
    await callTooLate((timeout) => get(id, timeout));
    const left = get(id, "60S");
    await untilWaiting(service.db, 1);
    left.cut();
    await left.status;
  });
  const { headers } = await shop.read(id);
  const counted = (await scrape(service.opsUrl)).sum("phoneproof_usage_calls_total");
  expect(String(counted)).toBe(headers.get("x-usage-calls"));
});

test("a call whose client resets it with an error of its own is counted as canceled", async () => {
  const { id } = await createPending(shop);
  const counted = async (code: string) => {
    const { sum } = await scrape(service.opsUrl);
    const method = `${VerificationService.typeName}/GetVerification`;
    return sum("phoneproof_rpc_duration_seconds_count", { method, code });
  };
  const before = await counted("canceled");
  await whileUsageIsHeld(async () => {
    const resetting = await connectPlain(service.grpcAddress);
    const [left = 0] = resetting.call(
      1,
      `${VerificationService.typeName}/GetVerification`,
      { authorization: `Bearer ${project.liveKey}` },
      {
        message: toBinary(
          GetVerificationRequestSchema,
          create(GetVerificationRequestSchema, { verificationId: id }),
        ),
      },
    );
    await untilWaiting(service.db, 1);
    resetting.cut(left, constants.NGHTTP2_INTERNAL_ERROR);
    await expect.poll(async () => (await counted("canceled")) + (await counted("internal"))).toBe(before + 1);
  });
  expect(await counted("internal")).toBe(0);
});

test("a fault that a call meets after its client has left is counted as one", async () => {
  const { id } = await createPending(shop);
  const faults = async () =>
    (await scrape(service.opsUrl)).sum("phoneproof_refusals_total", { face: "grpc", code: "internal_error" });
  const before = await faults();
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN; ALTER TABLE verification RENAME TO away");
    const left = get(id, "60S");
    await untilWaiting(service.db, 1);
    left.cut();
    // Answered behind the cut, which has been noticed by then.
    expect((await call("NoSuchMethod", Buffer.of(), "60S").status).code).toBe(Code.Unimplemented);
    await holder.query("COMMIT");
    await expect.poll(faults).toBe(before + 1);
  } finally {
    await holder.query("ROLLBACK; ALTER TABLE IF EXISTS away RENAME TO verification");
    holder.release();
  }
  expect((await shop.read(id)).status).toBe(200);
});

const invalid = create(CreateVerificationRequestSchema, { idempotencyKey: "late", expectedPhone: "none" });

test.for([
  {
    name: "over REST",
    face: "http",
    table: "verification",
    isRefused: async (key: string, id: string) =>
      (await merchant(service.httpUrl, key).read(id)).status === 503,
  },
  {
    name: "over gRPC",
    face: "grpc",
    table: "verification",
    isRefused: async (key: string, id: string) => {
      const message = toBinary(
        GetVerificationRequestSchema,
        create(GetVerificationRequestSchema, { verificationId: id }),
      );
      return (await call(method.getVerification.name, message, "60S", key).status).code === Code.Unavailable;
    },
  },
  {
    name: "over REST that is being charged for a failure",
    face: "http",
    table: "usage",
    isRefused: async (key: string) => (await merchant(service.httpUrl, key).create("{")).status === 503,
  },
  {
    name: "over gRPC that is being charged for a failure",
    face: "grpc",
    table: "usage",
    isRefused: async (key: string) => {
      const message = toBinary(CreateVerificationRequestSchema, invalid);
      const { status } = call(method.createVerification.name, message, "60S", key);
      return (await status).code === Code.Unavailable;
    },
  },
  {
    name: "over REST whose key is looked up a second time",
    face: "http",
    table: "api_key",
    isRefused: async (key: string) => (await merchant(service.httpUrl, key).create()).status === 503,
  },
])("a fault that a call $name meets after it has been refused for taking too long is counted as one, too", async ({
  face,
  table,
  isRefused,
}) => {
  const { id } = await createPending(shop);
  const { liveKey } = await service.createProject();
  const counted = async (code: string) =>
    (await scrape(service.opsUrl)).sum("phoneproof_refusals_total", { face, code });
  const before = { faults: await counted("internal_error"), refused: await counted("service_unavailable") };
  const { now } = runningTime;
  const since = now();
  let aheadMs = 0;
  const clock = vi.spyOn(runningTime, "now").mockImplementation(() => since + aheadMs);
  onTestFinished(() => clock.mockRestore());
  const [keys, holder] = [await service.db.connect(), await service.db.connect()];
  const isWaitingFor =
    (relation: string, count = 1) =>
    async () => {
      const { rowCount } = await service.db.query(
        "SELECT FROM pg_locks WHERE relation = $1::regclass AND NOT granted",
        [relation],
      );
      return (rowCount ?? 0) >= count;
    };
  try {
    // Each of its two statements may take nine and a half seconds, and all of it 13.5.
    await keys.query("BEGIN; LOCK TABLE api_key");
    const late = isRefused(liveKey, id);
    await vi.waitUntil(isWaitingFor("api_key"), { timeout: 45_000 });
    const locked = holder.query(`BEGIN; LOCK TABLE ${table}`);
    if (table === "api_key") {
      await vi.waitUntil(isWaitingFor("api_key", 2), { timeout: 45_000 });
      // The first look-up is remembered for a second after its begin.
      await delay(1_100);
    } else await locked;
    aheadMs = 6_000;
    await keys.query("COMMIT");
    await locked;
    await vi.waitUntil(isWaitingFor(table), { timeout: 45_000 });
    await holder.query(`ALTER TABLE ${table} RENAME TO away`);
    aheadMs = 13_600;
    expect(await late).toBe(true);
    await holder.query("COMMIT");
    await expect.poll(() => counted("internal_error")).toBe(before.faults + 1);
    expect(await counted("service_unavailable")).toBe(before.refused + 1);
  } finally {
    keys.release(true);
    await holder.query(`ROLLBACK; ALTER TABLE IF EXISTS away RENAME TO ${table}`);
    holder.release();
  }
});
