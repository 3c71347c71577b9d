/** What happens while commits wait for a synchronous standby: no repeat is answered earlier than the first call, and the rest goes on. */

import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, createClient } from "@connectrpc/connect";
import pg from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { newCredential } from "../../src/core/credential.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import {
  type InboundMessageSchema,
  InboundMessageService,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";
import { startService } from "../../src/service.ts";
import { startEmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../../src/storage/migrations.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { retryWhileUnavailable } from "../harness/service.ts";

const prefix = path.join(os.tmpdir(), "phoneproof-test-standby-");
/** The data directory of a stopped server with a migrated database, which each test copies. */
let migrated: string;

beforeAll(async () => {
  migrated = await mkdtemp(prefix);
  const server = await startEmbeddedPostgres({ dataDir: migrated });
  const folder = path.join(import.meta.dirname, "../../prisma/migrations");
  await applyMigrations(server.connection, { folder }).finally(server.stop);
});

afterAll(() => rm(migrated, { recursive: true, force: true }));

const environment = Environment.LIVE;
const unavailable = { status: "rejected", reason: expect.objectContaining({ code: Code.Unavailable }) };

test("without its synchronous standby no message gets its receipt again, and no uncharged creation and cancel its response", async () => {
  const { transport, transportWith, project, loseStandby } = await startWithOwnServer({ isPooled: false });
  const verifications = createClient(VerificationService, transport);
  // A stream of the installation's token would wait for its audit entry.
  const { secret } = await createClient(ServiceTokenService, transport).createServiceToken({
    scope: ServiceTokenScope.INGEST,
    source: "carrier",
  });
  const inbound = createClient(InboundMessageService, transportWith(secret));
  const projectId = await project();
  const number = { number: "0212345678", environment, projectId };
  await createClient(DestinationNumberService, transport).addDestinationNumber(number);

  const create = () =>
    verifications.createVerification({ projectId, environment, idempotencyKey: "repeated" });
  const first = await create();
  const second = await verifications.createVerification({
    projectId,
    environment,
    idempotencyKey: "cancelled",
  });
  const verifying = { messageId: "m", from: "01012345678", to: first.destination, text: first.smsText };
  const withoutCode = { ...verifying, messageId: "n", text: "without a code" };
  const send = async (message: MessageInitShape<typeof InboundMessageSchema>) => {
    for await (const { receipts } of inbound.streamInboundMessages(oneOf({ messages: [message] })))
      return receipts[0];
    return undefined;
  };
  const cancel = () => verifications.cancelVerification({ verificationId: second.verification?.id ?? "" });
  const repeated = [create, () => send(withoutCode), cancel, () => send(verifying)];
  for (const call of repeated.slice(1)) await call();
  const before = await Promise.all(repeated.map((call) => call()));

  const standbyIsBack = await loseStandby();
  const meanwhile = await Promise.allSettled(repeated.slice(0, 3).map((call) => call()));
  // Behind the other message it would wait because of that one.
  meanwhile.push(...(await Promise.allSettled([send(verifying)])));
  await standbyIsBack();

  expect(meanwhile).toEqual(repeated.map(() => unavailable));
  const after = await Promise.all(repeated.map((call) => retryWhileUnavailable<unknown>(call)));
  expect(after).toMatchObject(before.map(withoutServerTime));
});

test.for([
  { name: "on the server's own connections", isPooled: false },
  { name: "behind a pooler", isPooled: true },
])("commits that wait for minutes leave connections to what does not wait: $name", async ({ isPooled }) => {
  const { addresses, transport, project, superuser, loseStandby, forgetUnanswered } =
    await startWithOwnServer({ isPooled });
  const verifications = createClient(VerificationService, transport);
  const number = { number: "0212345678", environment };
  await createClient(DestinationNumberService, transport).addDestinationNumber(number);
  const projectIds = [await project(), await project(), await project(), await project()];
  const createFor = (projectId: string) =>
    verifications.createVerification({ projectId, environment, idempotencyKey: "repeated" });
  const waiting = async (statement: string) => {
    const { rowCount } = await superuser.query(
      "SELECT FROM pg_stat_activity WHERE application_name = 'phoneproof' AND wait_event = 'SyncRep' AND query ~ $1",
      [statement],
    );
    return rowCount ?? 0;
  };

  const standbyIsBack = await loseStandby();
  for (const projectId of projectIds) {
    const results = await Promise.allSettled([createFor(projectId), project()]);
    expect(results).toEqual([unavailable, unavailable]);
  }
  for (const statement of ["INTO verification ", "^COMMIT"]) {
    const count = await waiting(statement);
    expect(count).toBeGreaterThan(0);
    expect(count).toBeLessThan(projectIds.length);
  }
  expect((await fetch(`http://${addresses.ops}/readyz`)).status).toBe(200);
  // Behind a pooler nothing else shows that no answer will come on them.
  forgetUnanswered();
  await standbyIsBack();

  for (const projectId of projectIds) {
    const { verification } = await retryWhileUnavailable(() => createFor(projectId));
    expect(verification?.projectId).toBe(projectId);
  }
  await retryWhileUnavailable(project);
});

test("behind a pooler, lost connections are replaced, though commits wait for the standby: others' for long, own for moments", async () => {
  const { transport, project, superuser, connection, loseStandby, forgetPooled } = await startWithOwnServer({
    isPooled: true,
  });
  const verifications = createClient(VerificationService, transport);
  const number = { number: "0212345678", environment };
  await createClient(DestinationNumberService, transport).addDestinationNumber(number);
  const projectId = await project();
  const create = () =>
    verifications.createVerification({ projectId, environment, idempotencyKey: "repeated" });
  await superuser.query("ALTER DATABASE phoneproof SET synchronous_commit = 'local'");
  await superuser.query(`CREATE ROLE another SUPERUSER LOGIN PASSWORD '${connection.password}'`);

  // It is lost with an answer that it owes, and before the standby: what older sessions commit would rightly be waited for.
  const holder = new pg.Client(connection);
  await holder.connect();
  onTestFinished(() => holder.end());
  await holder.query("BEGIN");
  await holder.query("LOCK TABLE verification");
  const unanswered = expect(create()).rejects.toMatchObject({ code: Code.Unavailable });
  const working = async (which: string) => {
    const { rowCount } = await superuser.query(
      `SELECT FROM pg_stat_activity
       WHERE application_name = 'phoneproof' AND state = 'active' AND pid <> pg_backend_pid() AND ${which}`,
    );
    return rowCount;
  };
  await expect.poll(() => working("wait_event_type = 'Lock' AND query LIKE '%INTO verification %'")).toBe(1);
  forgetPooled();
  await holder.query("ROLLBACK");
  await expect.poll(() => working("wait_event_type IS DISTINCT FROM 'Client'")).toBe(0);
  const standbyIsBack = await loseStandby({ ...connection, user: "another" });
  const end = await startBriefCommits(connection, superuser);
  await unanswered;
  const { verification } = await retryWhileUnavailable(create);
  expect(verification?.projectId).toBe(projectId);
  await end();
  await standbyIsBack();
});

test("a first start without the synchronous standby ends with a line that says so, and one with it goes on from there", async () => {
  const { superuser, startOn, loseStandby } = await startWithOwnServer({ isPooled: false });
  await superuser.query("CREATE DATABASE another");
  const standbyIsBack = await loseStandby();
  await expect(startOn("another")).rejects.toThrow(
    /^DATABASE_URL: .+ the commit of migration \w+ was not answered within 10 s: if it waits for a synchronous standby/,
  );
  await standbyIsBack();
  await startOn("another");
});

/** A service, and a database server of its own, whose commits can be made to wait for a standby that is not there. */
async function startWithOwnServer({ isPooled }: { readonly isPooled: boolean }) {
  const dataDir = await mkdtemp(prefix);
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  await promisify(execFile)("cp", ["-a", `${migrated}/.`, dataDir]);
  const server = await startEmbeddedPostgres({ dataDir, transport: "tcp" });
  onTestFinished(() => server.stop());
  const { host, port, user, password, database } = server.connection;
  const adminToken = newCredential("svc");
  const urlAt = (port: number, name = database) => `postgres://${user}:${password}@${host}:${port}/${name}`;
  const pooler = await startStandInPooler(server.connection);
  const start = async (settings: Record<string, string>) => {
    const config = parseConfig({
      PORT: "0",
      GRPC_PORT: "0",
      OPS_PORT: "0",
      PHONEPROOF_ADMIN_TOKEN: adminToken,
      ...settings,
    });
    const service = await startService(config, createLog("silent", openLogOutput()));
    onTestFinished(() => service.close());
    return service;
  };
  const service = await start({
    DATABASE_URL: urlAt(port),
    ...(isPooled && {
      DATABASE_URL: urlAt(pooler.port),
      DATABASE_NOTICES_URL: urlAt(port),
      DATABASE_PREPARED_STATEMENTS: "false",
    }),
  });
  const transportWith = (token: string) => transportTo(service.addresses.grpc, `Bearer ${token}`);
  const transport = transportWith(adminToken);
  const project = async () => {
    const { project } = await createClient(ProjectService, transport).createProject({ name: "Shop" });
    return project?.id ?? "";
  };
  const superuser = new pg.Client(server.connection);
  await superuser.connect();
  onTestFinished(() => superuser.end());
  return {
    addresses: service.addresses,
    transport,
    transportWith,
    project,
    superuser,
    startOn: (database: string) => start({ DATABASE_URL: urlAt(port, database) }),
    connection: server.connection,
    forgetPooled: () => pooler.forget(() => true),
    forgetUnanswered: () => pooler.forget(({ isOwed }) => isOwed),
    async loseStandby(waitingAs: pg.ClientConfig = server.connection) {
      await superuser.query("ALTER SYSTEM SET synchronous_standby_names = 'lost'");
      await superuser.query("SELECT pg_reload_conf()");
      const waiting = await waitingCommit(waitingAs, superuser);
      return async () => {
        await superuser.query("ALTER SYSTEM RESET synchronous_standby_names");
        await superuser.query("SELECT pg_reload_conf()");
        await waiting.released();
      };
    },
  };
}

/**
 * Like a pooler, it gives its clients process ids that are not those of backends. `forget`: nothing more comes over those of the
 * open connections.
 */
async function startStandInPooler({ host, port }: { readonly host: string; readonly port: number }) {
  const keyData = Buffer.from("K\0\0\0\x0c", "latin1");
  const connections = new Set<{ isOwed: boolean; forget(): void }>();
  const pooler = net.createServer((near) => {
    const far = net.connect(port, host);
    let isForgotten = false;
    const one = {
      isOwed: false,
      forget() {
        isForgotten = true;
        near.unpipe(far).pause();
      },
    };
    connections.add(one);
    near.on("data", () => {
      one.isOwed = true;
    });
    far.on("data", (bytes) => {
      if (isForgotten) return;
      one.isOwed = false;
      const at = bytes.indexOf(keyData);
      if (at !== -1) bytes.writeUInt32BE(1, at + keyData.length);
      near.write(bytes);
    });
    near.pipe(far);
    for (const [end, other] of [[near, far] as const, [far, near] as const]) {
      end.on("error", () => {});
      end.on("close", () => other.destroy());
    }
  });
  onTestFinished(() => void pooler.close());
  pooler.listen(0, "127.0.0.1");
  await once(pooler, "listening");
  return {
    port: (pooler.address() as net.AddressInfo).port,
    forget(which: (connection: { readonly isOwed: boolean }) => boolean) {
      for (const one of connections) if (which(one)) one.forget();
    },
  };
}

/** The times at which the responses were sent differ. */
function withoutServerTime(response: object | undefined) {
  if (!(response && "verification" in response)) return response;
  const { serverTime: _, ...verification } = response.verification as { serverTime?: unknown };
  return { ...response, verification };
}

async function* oneOf<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Commits on a connection of its own until the server lets a commit wait for a standby. */
async function waitingCommit(connection: pg.ClientConfig, superuser: pg.Client) {
  const client = new pg.Client(connection);
  // If an assertion fails, the server stops before the commit is released.
  client.on("error", () => {});
  await client.connect();
  await client.query("SET synchronous_commit = 'on'");
  const { rows } = await client.query("SELECT pg_backend_pid() AS pid");
  for (;;) {
    let isCommitted = false;
    const commit = client.query("SELECT pg_logical_emit_message(true, 'test', ''::text)").then(() => {
      isCommitted = true;
    });
    commit.catch(() => {});
    while (!isCommitted) {
      const waiting = await superuser.query(
        "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'",
        [rows[0].pid],
      );
      if (waiting.rowCount === 1)
        return {
          async released() {
            await commit;
            await client.end();
          },
        };
      await delay(10);
    }
  }
}

/** Commits that always wait for the standby, each for a moment, as with one that is there. Returns a function that ends them. */
async function startBriefCommits(connection: pg.ClientConfig, superuser: pg.Client) {
  let isOver = false;
  const commit = async () => {
    const client = new pg.Client({ ...connection, application_name: "brief" });
    // If an assertion fails, the server stops before the commits end.
    client.on("error", () => {
      isOver = true;
    });
    await client.connect();
    await client.query("SET synchronous_commit = 'on'");
    while (!isOver)
      await client.query("SELECT pg_logical_emit_message(true, 'test', ''::text)").catch(() => {});
    await client.end();
  };
  const answer = async () => {
    const { rowCount } = await superuser.query(
      "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'brief' AND wait_event = 'SyncRep' AND state_change < clock_timestamp() - interval '100 milliseconds'",
    );
    return rowCount ?? 0;
  };
  const all = Promise.all([commit(), commit(), commit()]);
  const answering = (async () => {
    while (!isOver) {
      await answer();
      await delay(20);
    }
  })();
  answering.catch(() => {
    isOver = true;
  });
  all.catch(() => {});
  return async () => {
    isOver = true;
    await answering;
    const timer = setInterval(() => void answer(), 100);
    await all;
    clearInterval(timer);
  };
}
