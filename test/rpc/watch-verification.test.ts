import { setImmediate as nextTurn } from "node:timers/promises";
import { Code, createClient } from "@connectrpc/connect";
import { Http2SessionManager } from "@connectrpc/connect-node";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { newId } from "../../src/core/ids.ts";
import { followChanges } from "../../src/core/watch-verification.ts";
import {
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { transitionChannel } from "../../src/storage/transition.ts";
import { merchant } from "../gateway/merchant.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { shortenTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { createPending, eventsOf, letExpire, type Pending, uuidOf } from "../service/pending.ts";
import { newPhone, smsSource } from "../service/sms-source.ts";
import { createWindow, openStream } from "../window/open-window.ts";
import { answerOf, refusalOf } from "./grpc-answer.ts";

// Without the expiry job: an expiry is sent because somebody watches.
const here = await startTestService({ ROLES: "api" });
const there = await here.startAnother();
const project = await here.createProject();
const shop = merchant(here.httpUrl, project.liveKey);
const { send } = smsSource(here);
const { PENDING, VERIFIED, CANCELLED, EXPIRED } = VerificationStatus;

/** Watches a verification on one process. */
function watch(verificationId: string, process = there) {
  const left = new AbortController();
  const rpc = process.client(VerificationService, project.liveKey);
  const seen = rpc.watchVerification({ verificationId }, { signal: left.signal })[Symbol.asyncIterator]();
  return {
    /** The next status; undefined at the end. */
    async next(): Promise<VerificationStatus | undefined> {
      const { value, done } = await seen.next();
      return done ? undefined : value.verification?.status;
    },
    leave: () => left.abort(),
  };
}

/** Makes the verification expire this many milliseconds from now. */
async function expireIn(milliseconds: number, id: string): Promise<void> {
  await moveExpiry(here.db, {
    expiresAt: "now() + make_interval(secs => $2)",
    where: "id = $1",
    values: [uuidOf(id), milliseconds / 1000],
  });
}

/** How many verifications a process has read, or tried to. */
async function looksOf({ opsUrl }: TestService): Promise<number> {
  return (await scrape(opsUrl)).sum("phoneproof_batch_size_sum", { operation: "read" });
}

async function isBeforeExpiry(id: string): Promise<boolean> {
  const { rowCount } = await here.db.query("SELECT FROM verification WHERE id = $1 AND expires_at > now()", [
    uuidOf(id),
  ]);
  return rowCount === 1;
}

describe("a watch of a verification gets its current state, then its terminal state, and ends", () => {
  test.for<[string, VerificationStatus, (pending: Pending) => Promise<unknown>]>([
    ["verified by an SMS", VERIFIED, ({ to, text }) => send({ to, text })],
    ["cancelled", CANCELLED, ({ id }) => shop.cancel(id)],
    [
      "found expired by a read",
      EXPIRED,
      async ({ id }) => {
        await letExpire(here.db, id);
        await shop.read(id);
      },
    ],
  ])("when it is %s", async ([, status, change]) => {
    for (const process of [here, there]) {
      const pending = await createPending(shop);
      const watching = watch(pending.id, process);
      expect(await watching.next()).toBe(PENDING);
      await change(pending);
      expect(await watching.next()).toBe(status);
      expect(await watching.next()).toBeUndefined();
    }
  });

  test("when it is verified while the first answer is still on its way", async () => {
    const verification = await createWindow(here, project, {}, "live");
    const somebody = await here.db.connect();
    onTestFinished(() => somebody.release(true));
    // The call is counted in the statement that reads, which has seen the row by now and waits for the lock.
    await somebody.query("BEGIN; SELECT FROM usage FOR UPDATE");
    const watching = watch(verification.id);
    const first = watching.next();
    await untilWaiting(here.db, 1);
    const window = await openStream(`${there.httpUrl}/v/${verification.token}`);
    expect((await window.next())?.state.status).toBe("pending");
    await send(verification);
    expect((await window.next())?.state.status).toBe("verified");
    await somebody.query("COMMIT");
    expect([await first, await watching.next(), await watching.next()]).toEqual([
      PENDING,
      VERIFIED,
      undefined,
    ]);
  });

  test("when it expires without any other event", async () => {
    // If it expires before the first read, another attempt has more time.
    let seen: VerificationStatus | undefined;
    for (let milliseconds = 250; seen !== PENDING; milliseconds *= 3) {
      const pending = await createPending(shop);
      await expireIn(milliseconds, pending.id);
      const watching = watch(pending.id);
      seen = await watching.next();
      if (seen === PENDING) expect(await watching.next()).toBe(EXPIRED);
      else expect(seen).toBe(EXPIRED);
      expect(await watching.next()).toBeUndefined();
      expect(await eventsOf(here.db, pending.id)).toEqual(["verification.expired"]);
    }
  });

  test("for sixty watches at once", async () => {
    const pending = await createPending(shop);
    const watching = Array.from({ length: 60 }, (_, index) =>
      watch(pending.id, index % 2 === 0 ? here : there),
    );
    expect(new Set(await Promise.all(watching.map((watcher) => watcher.next())))).toEqual(new Set([PENDING]));
    await send(pending);
    expect(new Set(await Promise.all(watching.map((watcher) => watcher.next())))).toEqual(
      new Set([VERIFIED]),
    );
    expect(new Set(await Promise.all(watching.map((watcher) => watcher.next())))).toEqual(
      new Set([undefined]),
    );
  });

  test("even if the notification was lost with the connection that listens for it", async () => {
    const pending = await createPending(shop);
    const watching = watch(pending.id);
    expect(await watching.next()).toBe(PENDING);
    // A connection may be missing until it is replaced: waits until both are there.
    await vi.waitUntil(
      async () => {
        const { rowCount } = await here.db.query(
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'phoneproof-notices'`,
        );
        return (rowCount ?? 0) >= 2;
      },
      { timeout: 45_000, interval: 20 },
    );
    await send(pending);
    expect(await watching.next()).toBe(VERIFIED);
    expect(await watching.next()).toBeUndefined();
  });
});

test("an event that leaves a verification pending is not sent to its watches", async () => {
  const expected = newPhone();
  const pending = await createPending(shop, { mode: "match", expected_phone: expected });
  const watching = watch(pending.id);
  expect(await watching.next()).toBe(PENDING);
  const before = await looksOf(there);
  expect((await send({ ...pending, from: newPhone() })).outcome).toBe("SENDER_MISMATCH");
  // The watch has read again after that.
  await expect.poll(() => looksOf(there), { timeout: 45_000 }).toBeGreaterThan(before);
  await send({ ...pending, from: expected });
  expect([await watching.next(), await watching.next()]).toEqual([VERIFIED, undefined]);
});

test("a database outage ends no watch: watches continue afterwards, even if the verification has expired meanwhile", async () => {
  const proxy = await startCuttableProxy(here.databaseUrl);
  const far = await here.startAnother({ DATABASE_URL: proxy.databaseUrl });
  // If it expires before the first read, another attempt has more time.
  for (let milliseconds = 2_000; ; milliseconds *= 3) {
    const { id, token } = await createWindow(here, project, {}, "live");
    await expireIn(milliseconds, id);
    const watching = watch(id, far);
    const window = await openStream(`${far.httpUrl}/v/${token}`);
    const seen = [await watching.next(), (await window.next())?.state.status];
    if (seen.some((status) => status !== PENDING && status !== "pending")) continue;
    proxy.cut();
    // What its service has not sent by now, it cannot know before the proxy is restored.
    if (!(await isBeforeExpiry(id))) {
      proxy.restore();
      continue;
    }
    const next = watching.next();
    const shown = window.next();
    const ended = vi.fn();
    Promise.race([next, shown]).then(ended, ended);
    await here.db.query("SELECT pg_sleep($1)", [milliseconds / 1000]);
    // Each of them reads again every one to two seconds, in vain.
    const before = await looksOf(far);
    await expect.poll(() => looksOf(far), { timeout: 45_000 }).toBeGreaterThanOrEqual(before + 3);
    expect(ended).not.toHaveBeenCalled();
    proxy.restore();
    expect(await next).toBe(EXPIRED);
    expect((await shown)?.state.status).toBe("expired");
    expect([await watching.next(), await window.next()]).toEqual([undefined, null]);
    return;
  }
});

test("a watch's terminal state waits for its credential to be looked up again while the database does not answer that", async () => {
  const pending = await createPending(shop);
  const watching = watch(pending.id);
  expect(await watching.next()).toBe(PENDING);
  const end = watching.next();
  const administrator = await here.db.connect();
  onTestFinished(() => administrator.release(true));
  await administrator.query("BEGIN; LOCK TABLE api_key");
  /** Ends the look-ups of credentials that wait by now; each of them then has no answer. */
  const refuseOne = () =>
    vi.waitUntil(
      async () => {
        const { rowCount } = await here.db.query(
          `WITH waiting AS MATERIALIZED (
             SELECT pid FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM api_key k%'
           )
           SELECT pg_cancel_backend(pid) FROM waiting`,
        );
        return (rowCount ?? 0) > 0;
      },
      { timeout: 45_000, interval: 20 },
    );
  // From now on no credential is remembered.
  await refuseOne();
  const before = await looksOf(there);
  await send(pending);
  await expect.poll(() => looksOf(there), { timeout: 45_000 }).toBeGreaterThan(before);
  for (let refused = 0; refused < 3; refused++) await Promise.race([refuseOne(), end]);
  await administrator.query("ROLLBACK");
  expect([await end, await watching.next()]).toEqual([VERIFIED, undefined]);
});

test("while only the LISTEN connection cannot be opened, watches and windows still learn of what happens", async () => {
  const proxy = await startCuttableProxy(here.databaseUrl);
  const far = await here.startAnother({ DATABASE_NOTICES_URL: proxy.databaseUrl });
  const pending = await createPending(shop);
  const { id, token } = await createWindow(here, project, {}, "live");
  const watching = watch(pending.id, far);
  const window = await openStream(`${far.httpUrl}/v/${token}`);
  expect([await watching.next(), (await window.next())?.state.status]).toEqual([PENDING, "pending"]);
  // It was lost before, for a moment: it is there again once it is probed.
  const probes = () => proxy.timesSent("SELECT 1\0");
  const before = probes();
  proxy.cut();
  proxy.restore();
  await vi.waitUntil(() => probes() > before, { timeout: 45_000 });
  proxy.cut();
  await send(pending);
  expect(await watching.next()).toBe(VERIFIED);
  await shop.cancel(id);
  expect((await window.next())?.state.status).toBe("cancelled");
});

test("while the LISTEN connection cannot be opened, watches read only if the database is usable", async () => {
  const [statements, notices] = await Promise.all(
    Array.from({ length: 2 }, () => startCuttableProxy(here.databaseUrl)),
  );
  const far = await here.startAnother({
    DATABASE_URL: statements?.databaseUrl ?? "",
    DATABASE_NOTICES_URL: notices?.databaseUrl ?? "",
  });
  const sent = (text: string) => statements?.timesSent(text) ?? 0;
  const reads = () => sent("\0find\0");
  const checks = () => sent("FROM _prisma_migrations WHERE migration_name = ");
  const watching = watch((await createPending(shop)).id, far);
  expect(await watching.next()).toBe(PENDING);
  const before = { reads: reads(), checks: checks() };
  await here.db.query("ALTER TABLE _prisma_migrations RENAME TO out_of_reach");
  try {
    shortenTimers(3_000);
    notices?.cut();
    // When it is checked again, what the first check led to has happened.
    await vi.waitUntil(() => checks() >= before.checks + 2, { timeout: 45_000 });
    expect(reads()).toBe(before.reads);
  } finally {
    await here.db.query("ALTER TABLE out_of_reach RENAME TO _prisma_migrations");
  }
  await vi.waitUntil(() => reads() > before.reads, { timeout: 45_000 });
  watching.leave();
});

test.for<[string, VerificationStatus, (pending: Pending) => Promise<unknown>]>([
  ["verified", VERIFIED, ({ to, text }) => send({ to, text, from: newPhone() })],
  ["cancelled", CANCELLED, ({ id }) => shop.cancel(id)],
  ["expired", EXPIRED, ({ id }) => letExpire(here.db, id)],
])("a watch of a verification that is already %s gets it once and ends", async ([, status, end]) => {
  const pending = await createPending(shop);
  await end(pending);
  const watching = watch(pending.id);
  expect(await watching.next()).toBe(status);
  expect(await watching.next()).toBeUndefined();
});

test("a change wakes a watch once, which then waits for another one", async () => {
  let announce = () => {};
  const follow = (_id: string, onChange: () => void) => {
    announce = onChange;
    return { stop: () => {} };
  };
  const changes = followChanges({ follow }, newId(), new AbortController().signal);
  announce();
  await changes.next(60_000);
  const waited = vi.fn();
  const waiting = changes.next(60_000).then(waited);
  await nextTurn();
  expect(waited).not.toHaveBeenCalled();
  announce();
  await waiting;
});

test("a watch gets the terminal state with all its fields", async () => {
  const pending = await createPending(shop, { client_reference: "r" });
  const rpc = there.client(VerificationService, project.liveKey);
  const seen = rpc.watchVerification({ verificationId: pending.id })[Symbol.asyncIterator]();
  await seen.next();
  await send({ to: pending.to, text: pending.text, from: "01012349301", carrier: "KT" });
  const { verification: final } = (await seen.next()).value ?? {};
  const { verification: read } = await rpc.getVerification({ verificationId: pending.id });
  expect({ ...final, serverTime: undefined }).toEqual({ ...read, serverTime: undefined });
  expect(final?.phone).toBe("01012349301");
  expect((await seen.next()).done).toBe(true);
});

test("a transition between the opening of a watch and its first read is not missed", async () => {
  for (let round = 0; round < 20; round++) {
    const pending = await createPending(shop);
    const watching = watch(pending.id);
    const [first] = await Promise.all([watching.next(), send(pending)]);
    expect([PENDING, VERIFIED]).toContain(first);
    expect(first === PENDING ? await watching.next() : first).toBe(VERIFIED);
    expect(await watching.next()).toBeUndefined();
  }
});

test("a watch of a verification that does not exist is refused as not found", async () => {
  const rpc = there.client(VerificationService, project.liveKey);
  for (const verificationId of ["vrf_00000000000000000000000000", "vrf_none", ""]) {
    const answer = await answerOf(() => Array.fromAsync(rpc.watchVerification({ verificationId })));
    expect(answer).toMatchObject({ code: "verification_not_found", status: Code.NotFound });
  }
});

test("a watch of a verification that a takeover by a standby has lost ends as not found", async () => {
  const { id } = await createPending(shop);
  const watching = watch(id);
  expect(await watching.next()).toBe(PENDING);
  const uuid = uuidOf(id);
  // The lookup that the standby's takeover causes, by a notification that names the verification.
  await here.db.query("DELETE FROM verification WHERE id = $1", [uuid]);
  await here.db.query("SELECT pg_notify($1, $2)", [transitionChannel, `${uuid}:`]);
  const answer = await watching.next().catch(refusalOf);
  expect(answer).toMatchObject({ code: "verification_not_found", status: Code.NotFound });
});

test("watches that are cancelled and unwatched verifications do not affect other watches", async () => {
  const pending = await createPending(shop);
  const [leaving, staying] = [watch(pending.id), watch(pending.id)];
  expect([await leaving.next(), await staying.next()]).toEqual([PENDING, PENDING]);
  leaving.leave();
  await send(pending);
  await send(await createPending(shop));
  expect(await staying.next()).toBe(VERIFIED);
  expect(await staying.next()).toBeUndefined();
});

test("a client may leave hundreds of watches on a connection, and again: those that it keeps go on", async () => {
  const pending = await createPending(shop);
  const sessionManager = new Http2SessionManager(`http://${there.grpcAddress}`);
  onTestFinished(() => sessionManager.abort());
  const transport = transportTo(there.grpcAddress, `Bearer ${project.liveKey}`, sessionManager);
  const rpc = createClient(VerificationService, transport);
  const open = async (signal?: AbortSignal) => {
    const seen = rpc.watchVerification({ verificationId: pending.id }, { ...(signal && { signal }) });
    const watch = seen[Symbol.asyncIterator]();
    await watch.next();
    return watch;
  };
  const openWatches = async () =>
    (await scrape(there.opsUrl)).sum("phoneproof_rpc_streams_open", {
      method: "phoneproof.v1.VerificationService/WatchVerification",
    });
  const others = await openWatches();
  const kept = await open();
  for (const _ of ["once", "again"]) {
    const left = new AbortController();
    await Promise.all(Array.from({ length: 900 }, () => open(left.signal)));
    left.abort();
    await vi.waitUntil(async () => (await openWatches()) === others + 1, { timeout: 45_000 });
  }
  await send(pending);
  expect((await kept.next()).value?.verification?.status).toBe(VERIFIED);
});

test("when the service stops, a watch ends with service_unavailable: only a terminal state is a normal end", async () => {
  const stopping = await startTestService();
  const { liveKey } = await stopping.createProject();
  const { id } = await createPending(merchant(stopping.httpUrl, liveKey));
  const seen = stopping.client(VerificationService, liveKey).watchVerification({ verificationId: id });
  const iterator = seen[Symbol.asyncIterator]();
  expect((await iterator.next()).value?.verification?.status).toBe(PENDING);
  const [end] = await Promise.all([iterator.next().catch(refusalOf), stopping.close()]);
  expect(end).toMatchObject({ code: "service_unavailable", status: Code.Unavailable });
});
