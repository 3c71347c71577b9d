/**
 * More load than the service can handle, simulated by a database that does nothing for a while, so that nothing
 * depends on speed.
 */

import { randomUUID } from "node:crypto";
import { once } from "node:events";
import net from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { afterAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { Health } from "../../src/gen/proto/health/v1/health_pb.ts";
import {
  InboundMessageService,
  StreamInboundMessagesRequestSchema,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { runningTime } from "../../src/running-time.ts";
import { type Answer, merchant } from "../gateway/merchant.ts";
import { exchange } from "../gateway/raw-http.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { atFileEnd } from "../harness/endings.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { connectRaw, type RawConnection } from "../rpc/raw-grpc.ts";
import { createPending } from "./pending.ts";
import { inboundMessage } from "./sms-source.ts";

const { now } = runningTime;
let aheadMs = 0;
let stoppedAt: number | undefined;
const clock = vi.spyOn(runningTime, "now").mockImplementation(() => (stoppedAt ?? now()) + aheadMs);
atFileEnd(() => clock.mockRestore());

/** Until the end of the test, except for `aheadMs`. */
function stopClock(): void {
  stoppedAt = now();
  onTestFinished(() => {
    stoppedAt = undefined;
  });
}

const service = await startTestService();
const project = await service.createProject({ rateLimitPerMinute: 1_000_000 });
const shop = merchant(service.httpUrl, project.liveKey);

const connections: RawConnection[] = [];
afterAll(() => connections.forEach((connection) => void connection.destroy()));

/** Blocks all statements on a table until `unlock`. */
async function holdTable(table: string): Promise<{ unlock(): Promise<void> }> {
  const lock = await service.db.connect();
  await lock.query(`BEGIN; LOCK TABLE ${table}`);
  return {
    async unlock() {
      await lock.query("ROLLBACK");
      lock.release();
    },
  };
}

/**
 * Calls repeatedly, without waiting for answers, until there is one: a refusal, also of a call that was not the last, if the machine
 * is slow. Resolves to the answers of the other calls. A second passes with each of the first six by the clock of the services in
 * this process: those of a slow machine, too, refuse one before the server ends the statement that waits, but none that waits.
 */
async function callUntilShed(call: () => Promise<Answer>): Promise<Promise<Answer>[]> {
  const calls: Promise<Answer>[] = [];
  let answered: Promise<Answer> | undefined;
  const until = aheadMs + 6_000;
  while (answered === undefined) {
    const answer = call();
    calls.push(answer);
    const note = () => {
      answered ??= answer;
    };
    await Promise.race([answer.then(note, note), delay(250)]);
    aheadMs = Math.min(aheadMs + 1_000, until);
  }
  const shed = await answered;
  expect([shed.status, shed.body.error.code]).toEqual([503, "service_unavailable"]);
  expect(Number(shed.headers.get("retry-after"))).toBeGreaterThanOrEqual(1);
  expect(shed.headers.has("x-usage-calls")).toBe(false);
  return calls.filter((answer) => answer !== answered);
}

/** A connection that got a Retry-After of one second: its next request is not even read before that. */
async function expectUnreadFor(milliseconds: number, httpUrl: string): Promise<void> {
  const head = `Host: localhost\r\nAuthorization: Bearer ${project.liveKey}\r\n`;
  const create = `POST /v1/verifications HTTP/1.1\r\n${head}Idempotency-Key: overloaded\r\nContent-Length: 2\r\n\r\n{}`;
  const startedAt = performance.now();
  const [refused, next] = await exchange(httpUrl, create, {
    answers: 2,
    afterwards: "GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
  });
  expect([refused?.status, refused?.headers.get("retry-after"), next?.status]).toEqual([503, "1", 404]);
  expect(performance.now() - startedAt).toBeGreaterThan(milliseconds);
}

/** Over gRPC a call is refused before its credential or message is looked at. */
async function expectShedOverGrpc(grpcAddress: string): Promise<void> {
  const connection = connectRaw(grpcAddress);
  connections.push(connection);
  const { parent, name } = VerificationService.method.createVerification;
  const { code, detail } = await connection.call(`${parent.typeName}/${name}`, {
    authorization: "Bearer nobody",
  }).status;
  expect([code, detail?.code]).toEqual([Code.Unavailable, "service_unavailable"]);
}

test("when the wait gets too long, new calls are refused at once, and waiting calls are served", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const { httpUrl, grpcAddress } = await service.startAnother({
    DATABASE_URL: proxy.patientUrl,
    ROLES: "api",
  });
  const here = merchant(httpUrl, project.liveKey);
  const made = async () => (await service.db.query("SELECT FROM verification")).rowCount ?? 0;
  const before = await made();
  void proxy.holdAnswerTo("\0create_new\0");
  // However long the calls take on a slow machine: those that wait are refused after thirteen seconds.
  stopClock();
  let waiting: Promise<Answer>[];
  try {
    waiting = await callUntilShed(() => here.create());
    await expectUnreadFor(990, httpUrl);
    await expectShedOverGrpc(grpcAddress);
  } finally {
    proxy.restore();
  }
  const statuses = (await Promise.all(waiting)).map(({ status }) => status);
  // The last of them may also have been refused, only reported later, but none that came before one that was served.
  const served = statuses.filter((status) => status === 201).length;
  expect(served).toBeGreaterThan(0);
  expect(statuses).toEqual(statuses.map((_, position) => (position < served ? 201 : 503)));
  expect((await here.create()).status).toBe(201);
  expect(await made()).toBe(before + served + 1);
});

test("a creation does not wait for all those that another project has sent before", async () => {
  const other = await service.createProject();
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.patientUrl, ROLES: "api" });
  const bursting = distant.client(VerificationService, project.liveKey);
  const quiet = distant.client(VerificationService, other.liveKey);
  const create = (client: typeof quiet) => client.createVerification({ idempotencyKey: randomUUID() });
  // A refusal needs no verification: it is answered once everything before it on the connection has arrived.
  const allArrived = async (client: typeof quiet) => {
    const refused = client.createVerification({ idempotencyKey: randomUUID(), state: "s".repeat(257) });
    await expect(refused).rejects.toMatchObject({ code: Code.InvalidArgument });
  };
  // Both keys and the numbers are known before, and stay so: looking one up takes time.
  await Promise.all([create(bursting), create(quiet)]);
  vi.useFakeTimers({ toFake: ["performance", "Date"] });
  onTestFinished(() => void vi.useRealTimers());
  const burst = 950;
  const isHeld = proxy.holdAnswerTo("\0create_new\0");
  // However long it takes to send them all, and to answer them.
  stopClock();
  const answers: Promise<unknown>[] = [];
  try {
    answers.push(create(bursting));
    await isHeld;
    for (let sent = 1; sent < burst; sent++) answers.push(create(bursting));
    await allArrived(bursting);
    answers.push(create(quiet));
    await allArrived(quiet);
  } finally {
    proxy.restore();
  }
  await Promise.all(answers);
  const { rows } = await service.db.query(
    `WITH made AS (
       SELECT project_id = (SELECT project_id FROM api_key WHERE ending = $1) AS quiet, xmin::text::bigint AS transaction
       FROM verification
     )
     SELECT count(*)::int AS after FROM made
     WHERE NOT quiet AND transaction > (SELECT max(transaction) FROM made WHERE quiet)`,
    [other.liveKey.slice(-4)],
  );
  // Two batches may have been sent before, and it is in the next, with others. A batch has 256.
  expect(rows[0]?.after).toBeGreaterThanOrEqual(burst - 2 * 256 - 255);
});

test("a request that ignores Retry-After is still answered by a process that is stopping", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const { child, httpUrl, ended } = await startProcess({ DATABASE_URL: proxy.patientUrl });
  const { hostname, port } = new URL(httpUrl);
  const head = `HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${project.liveKey}\r\n`;
  // Not with a lock: the server would end the statement that waits for it, after eight seconds, be they those of a suspension.
  void proxy.holdAnswerTo("\0create_new\0");
  try {
    await callUntilShed(() => merchant(httpUrl, project.liveKey).create());
    // Not before: a connection that has sent nothing is closed after ten seconds, and the refusals may come later than that.
    const socket = net.connect({ host: hostname, port: Number(port) });
    onTestFinished(() => void socket.destroy());
    socket.write(`POST /v1/verifications ${head}Idempotency-Key: too-soon\r\nContent-Length: 2\r\n\r\n{}`);
    expect(String(await once(socket, "data"))).toMatch(/^HTTP\/1.1 503 .*\r\nretry-after: 1\r\n/s);
    socket.write(`GET /v1/nothing ${head}\r\n`, () => child.kill("SIGTERM"));
    expect(String(await once(socket, "data"))).toMatch(/^HTTP\/1.1 404 .*\r\nconnection: close\r\n/is);
  } finally {
    proxy.restore();
  }
  expect(await ended()).toBe(0);
});

test("each of twelve thousand concurrent calls is answered, or refused with Retry-After", async () => {
  const { id } = await createPending(shop);
  const head = `Host: localhost\r\nAuthorization: Bearer ${project.liveKey}\r\n\r\n`;
  const each = 600;
  // However long the calls take on a slow machine: those that wait are refused after thirteen seconds.
  stopClock();
  const { unlock } = await holdTable("verification");
  const answers = Array.from({ length: 20 }, () =>
    exchange(service.httpUrl, `GET /v1/verifications/${id} HTTP/1.1\r\n${head}`.repeat(each), {
      answers: each,
    }),
  );
  await Promise.all(await callUntilShed(() => shop.read(id)).finally(unlock));
  const all = (await Promise.all(answers)).flat();
  const refused = all.filter(({ status }) => status === 503);
  for (const { headers } of refused) expect(Number(headers.get("retry-after"))).toBeGreaterThanOrEqual(1);
  const served = all.filter(({ status }) => status === 200);
  expect(served.length).toBeGreaterThan(0);
  expect(served.length + refused.length).toBe(20 * each);
  expect((await shop.read(id)).status).toBe(200);
});

describe("connections that send a request as soon as the previous one is answered", () => {
  /**
   * Sends the request, and again after each answer as long as `goesOn` returns true and the answer does not close the
   * connection. Resolves to the statuses, and to whether the last request was answered. An answer of a few hundred
   * bytes arrives in one piece.
   */
  const askAgain = (httpUrl: string, request: string, goesOn: () => boolean) =>
    new Promise<{ statuses: string[]; isAnswered: boolean }>((resolve, reject) => {
      const { hostname, port } = new URL(httpUrl);
      const statuses: string[] = [];
      let isAnswered = false;
      const ask = () => {
        isAnswered = false;
        socket.write(request);
      };
      const socket = net.connect({ host: hostname, port: Number(port) }, ask);
      socket.on("error", reject);
      socket.on("close", () => resolve({ statuses, isAnswered }));
      socket.on("data", (piece) => {
        const answer = piece.toString("latin1");
        statuses.push(answer.slice("HTTP/1.1 ".length, "HTTP/1.1 200".length));
        isAnswered = true;
        if (!goesOn()) socket.end();
        else if (!/^connection: close\r$/im.test(answer)) ask();
      });
    });

  const crowd = async (httpUrl: string, goesOn: () => boolean, connections = 400) => {
    const { id } = await createPending(shop);
    const request = `GET /v1/verifications/${id} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${project.liveKey}\r\n\r\n`;
    const all = await Promise.all(
      Array.from({ length: connections }, () => askAgain(httpUrl, request, goesOn)),
    );
    expect(all.flatMap(({ statuses }) => statuses).filter((status) => status !== "200")).toEqual([]);
    expect(all.filter(({ isAnswered }) => !isAnswered)).toEqual([]);
  };

  // A process of its own: in the test's process, the clients would leave the service no time to be overloaded.
  const start = () => startProcess({ DATABASE_URL: service.databaseUrl, DRAIN_SECONDS: "2" });

  /** How long the next connection has been waiting to be read, in seconds. */
  async function waited(opsUrl: string): Promise<number> {
    const metrics = await (await fetch(`${opsUrl}/metrics`)).text();
    return Number(/^phoneproof_http_turn_seconds (\S+)$/m.exec(metrics)?.[1]);
  }

  test("do not wait because of unauthenticated requests whose bodies never arrive", async () => {
    const { httpUrl, opsUrl } = await start();
    const { hostname, port } = new URL(httpUrl);
    const half =
      "POST /v/nobody/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 10\r\n\r\nfrom=";
    const halves: net.Socket[] = [];
    let goesOn = true;
    const crowded = crowd(httpUrl, () => goesOn, 60);
    try {
      // More in a second than keep the process busy, if they counted.
      while (halves.length < 600) {
        for (let count = 0; count < 200; count++) {
          const socket: net.Socket = net.connect({ host: hostname, port: Number(port) }, () =>
            socket.write(half),
          );
          halves.push(socket.on("error", () => {}));
        }
        for (let look = 0; look < 5; look++) expect(await waited(opsUrl)).toBe(0);
      }
    } finally {
      goesOn = false;
      for (const socket of halves) socket.destroy();
    }
    await crowded;
  });

  test("are all answered, even though they wait to be read", async () => {
    const { httpUrl, opsUrl } = await start();
    expect(await waited(opsUrl)).toBe(0);
    let goesOn = true;
    const crowded = crowd(httpUrl, () => goesOn);
    while ((await waited(opsUrl)) === 0);
    goesOn = false;
    await crowded;
    expect(await waited(opsUrl)).toBe(0);
  });

  test("are all answered, with Connection: close, by a process that is stopping", async () => {
    const { child, httpUrl, opsUrl, ended } = await start();
    const crowded = crowd(httpUrl, () => true);
    while ((await waited(opsUrl)) === 0);
    child.kill("SIGTERM");
    await crowded;
    expect(await ended()).toBe(0);
  });
});

test("streams that send more than is stored are held back, all together, and messages are accepted again afterwards", async () => {
  const request = toBinary(StreamInboundMessagesRequestSchema, {
    $typeName: "phoneproof.v1.StreamInboundMessagesRequest",
    messages: Array.from({ length: 100 }, () =>
      inboundMessage({ to: project.liveNumber, text: "hello ".repeat(80) }),
    ),
  });
  const { unlock } = await holdTable("inbound_message");
  let sent = 0;
  const { typeName, method } = InboundMessageService;
  for (let stream = 0; stream < 6; stream++) {
    const connection = connectRaw(service.grpcAddress);
    connections.push(connection);
    const call = connection.call(`${typeName}/${method.streamInboundMessages.name}`, {
      authorization: `Bearer ${service.adminToken}`,
    });
    void (async () => {
      while (sent < 100_000) {
        await call.send(request);
        sent += 100;
      }
    })().catch(() => {});
  }
  // Other calls are answered meanwhile. When fifty of them have brought no more of these messages, none will come.
  const health = service.client(Health);
  try {
    for (let [before, unchanged] = [0, 0]; unchanged < 50; before = sent) {
      await health.check({});
      unchanged = sent === before && sent > 0 ? unchanged + 1 : 0;
    }
  } finally {
    for (const connection of connections) connection.destroy();
    await unlock();
  }
  // Each stream's window, plus the limit on messages in progress in all streams.
  expect(sent).toBeLessThan(30_000);
  const messageId = randomUUID();
  expect(await service.sms({ to: project.liveNumber, text: "hello", messageId })).toMatchObject([
    { messageId },
  ]);
});
