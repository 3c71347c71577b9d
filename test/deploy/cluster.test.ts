/** The rolling upgrade and failover of docs/operations.md under load, if the necessary programs are installed. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rmdir } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { findPrograms, MissingPrograms } from "../../deploy/cluster/programs.ts";
import { newCredential } from "../../src/core/credential.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditService } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { freePorts } from "../harness/ports.ts";

const root = path.join(import.meta.dirname, "../..");
const adminToken = newCredential("svc");

/** The processes started here, which are ended even if a test fails. */
const children: ChildProcess[] = [];
afterAll(() => {
  for (const child of children) child.kill("SIGTERM");
});

function startProgram(args: readonly string[], environment: Readonly<Record<string, string>>) {
  const child = spawn(process.execPath, args, {
    cwd: root,
    env: { ...process.env, ...environment },
    stdio: ["pipe", "pipe", "pipe"],
  });
  children.push(child);
  const lines: string[] = [];
  createInterface({ input: child.stdout }).on("line", (line) => lines.push(line));
  createInterface({ input: child.stderr }).on("line", (line) => lines.push(line));
  return { child, lines };
}

const missing = (() => {
  try {
    findPrograms();
    return undefined;
  } catch (error) {
    return error as MissingPrograms;
  }
})();

if (missing !== undefined)
  test("npm run start:cluster names the missing packages in one line", async () => {
    expect(missing).toBeInstanceOf(MissingPrograms);
    const { child, lines } = startProgram(["deploy/cluster/run.ts"], {});
    expect(await once(child, "close")).toEqual([1, null]);
    expect(lines).toEqual([`start:cluster: ${missing.message}`]);
    expect(missing.message).toContain("apt-get install");
  });

if (missing === undefined)
  test.for([
    "PORT",
    "GRPC_PORT",
  ])("npm run start:cluster names %s in one line if its port is in use", async (name) => {
    const taken = createServer().listen(0, "127.0.0.1");
    await once(taken, "listening");
    const { port } = taken.address() as AddressInfo;
    const [other = 0] = await freePorts(1);
    const environment = { PORT: String(other), GRPC_PORT: String(other), [name]: String(port) };
    const { child, lines } = startProgram(["deploy/cluster/run.ts"], environment);
    expect(await once(child, "close")).toEqual([1, null]);
    expect(lines).toEqual([`start:cluster: ${name}: port ${port} on 127.0.0.1 is in use by another program`]);
    taken.close();
  });

/** The last state of a verification that a merchant received. */
interface Acknowledged {
  readonly id: string;
  readonly key: string;
  status: "pending" | "verified" | "cancelled";
}

if (missing === undefined)
  describe("a cluster under load", { shuffle: false }, () => {
    /** Its name has what the programs' configuration files and shells split or quote by. */
    let temporary: string;
    let cluster: ReturnType<typeof startProgram>;
    let httpUrl: string;
    let apiKey: string;
    /** To the gRPC port, as the administrator. */
    let transport: Transport;
    let gateway: ReturnType<typeof startProgram>;
    const receipts = new Map<string, { readonly message_id: string }>();
    const acknowledged: Acknowledged[] = [];
    /** The failed calls, which were repeated. */
    let failures: string[] = [];

    async function command(name: string): Promise<void> {
      const from = cluster.lines.length;
      cluster.child.stdin.write(`${name}\n`);
      await expect
        .poll(() => cluster.lines.slice(from).find((line) => line.startsWith(`  ${name}: `)), {
          timeout: 150_000,
        })
        .toBe(`  ${name}: done`);
    }

    async function call(
      method: string,
      address: string,
      headers: Record<string, string> = {},
      body?: object,
    ) {
      const response = await fetch(`${httpUrl}${address}`, {
        method,
        headers: { authorization: `Bearer ${apiKey}`, "content-type": "application/json", ...headers },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      return { status: response.status, body: (await response.json()) as Record<string, string> };
    }

    /** Repeats a call until it succeeds, as the API allows. */
    async function callUntilDone(...request: Parameters<typeof call>): ReturnType<typeof call> {
      for (;;) {
        const answer = await call(...request).catch((error) => ({
          status: 0,
          body: { message: String(error) },
        }));
        if (answer.status === 200 || answer.status === 201) return answer;
        // A permanent refusal: the data that the call is about is lost.
        if (answer.status >= 400 && answer.status < 500) throw new Error(`${request[1]}: ${answer.status}`);
        failures.push(`${request[0]} ${answer.status} ${JSON.stringify(answer.body)}`);
        await delay(100);
      }
    }

    async function merchant(name: string, stopped: () => boolean): Promise<void> {
      for (let attempt = 1; !stopped(); attempt++) {
        const key = `${name}-attempt-${attempt}`;
        const { body } = await callUntilDone("POST", "/v1/verifications", { "idempotency-key": key }, {});
        const { id = "", destination, sms_text } = body;
        const own: Acknowledged = { id, key, status: "pending" };
        acknowledged.push(own);
        if (attempt % 3 === 0) {
          await callUntilDone("POST", `/v1/verifications/${id}/cancel`);
          own.status = "cancelled";
        } else if (attempt % 3 === 1) {
          const message = {
            message_id: key,
            from: "01012345678",
            to: destination,
            text: sms_text,
            carrier: "KT",
          };
          gateway.child.stdin.write(`${JSON.stringify(message)}\n`);
          const receipt = await vi.waitUntil(() => receipts.get(key), { timeout: 60_000, interval: 20 });
          expect(receipt).toMatchObject({ outcome: "VERIFIED", verification_id: id });
          own.status = "verified";
        }
        // Enough load for something to be in progress at every moment, and no more: the cluster needs the CPU.
        await delay(100);
      }
    }

    /** Runs `walk` under load, which starts before it and continues until enough verifications are made. */
    async function underLoad(walk: () => Promise<void>): Promise<void> {
      failures = [];
      let over = false;
      const round = acknowledged.length;
      const merchants = Promise.all(
        [1, 2, 3, 4].map((number) => merchant(`shop-${round}-${number}`, () => over)),
      );
      try {
        await vi.waitUntil(() => acknowledged.length > round, { timeout: 60_000 });
        await walk();
        await vi.waitUntil(() => acknowledged.length - round > 20, { timeout: 60_000 });
      } finally {
        over = true;
        await merchants;
      }
    }

    /** The acknowledged states and idempotency keys that are no longer true. */
    async function lost(): Promise<string[]> {
      const check = async ({ id, key, status }: Acknowledged) => {
        const read = await call("GET", `/v1/verifications/${id}`);
        const replay = await call("POST", "/v1/verifications", { "idempotency-key": key }, {});
        return [
          ...(read.body.status === status
            ? []
            : [`${id} was ${status}, is ${read.status} ${read.body.status}`]),
          ...(replay.status === 200 && replay.body.id === id ? [] : [`${key} is no longer ${id}`]),
        ];
      };
      return (await Promise.all(acknowledged.map(check))).flat();
    }

    beforeAll(async () => {
      const [httpPort, grpcPort] = await freePorts(2);
      httpUrl = `http://127.0.0.1:${httpPort}`;
      temporary = await mkdtemp(path.join(os.tmpdir(), "an 'odd' name "));
      cluster = startProgram(["deploy/cluster/run.ts"], {
        TMPDIR: temporary,
        PORT: String(httpPort),
        GRPC_PORT: String(grpcPort),
        PHONEPROOF_ADMIN_TOKEN: adminToken,
        LOG_LEVEL: "warn",
      });
      await vi.waitUntil(() => cluster.lines.some((line) => line.includes("Ctrl-C")), { timeout: 150_000 });
      transport = createGrpcTransport({
        baseUrl: `http://127.0.0.1:${grpcPort}`,
        interceptors: [
          (next) => (request) => {
            request.header.set("authorization", `Bearer ${adminToken}`);
            request.header.set("x-forwarded-for", "192.0.2.1");
            return next(request);
          },
        ],
      });
      const { project } = await createClient(ProjectService, transport).createProject({
        name: "Shop",
        rateLimitPerMinute: 1_000_000,
      });
      const own = { projectId: project?.id ?? "", environment: Environment.LIVE };
      await createClient(DestinationNumberService, transport).addDestinationNumber({
        number: "0200000001",
        ...own,
      });
      apiKey = (await createClient(ApiKeyService, transport).createApiKey(own)).secret;
      gateway = startProgram(["bin/phoneproof.mjs", "sms", "stream", "--json"], {
        PHONEPROOF_ADDRESS: `127.0.0.1:${grpcPort}`,
        PHONEPROOF_TOKEN: adminToken,
      });
      createInterface({ input: gateway.child.stdout }).on("line", (line) => {
        const receipt = JSON.parse(line) as { readonly message_id: string };
        receipts.set(receipt.message_id, receipt);
      });
    }, 180_000);

    test("believes no gRPC client's X-Forwarded-For", async () => {
      const { entries } = await createClient(AuditService, transport).listAuditEntries({});
      expect(entries).not.toEqual([]);
      expect(new Set(entries.map(({ address }) => address))).toEqual(new Set(["127.0.0.2"]));
    });

    test("is upgraded process by process without a failed call", { timeout: 180_000 }, async () => {
      const pids = (line: string) => Number(/pid (\d+)/.exec(line)?.[1]);
      const before = cluster.lines.filter((line) => /^ {2}(api|worker)\d /.test(line)).map(pids);
      expect(before).toHaveLength(4);
      await underLoad(() => command("roll"));
      expect(failures).toEqual([]);
      // What was acknowledged meanwhile is looked for after the failover, with the rest.
      for (const pid of before) expect(existsSync(`/proc/${pid}`)).toBe(false);
    });

    test("loses its primary, but nothing that was acknowledged", { timeout: 180_000 }, async () => {
      await underLoad(() => command("failover"));
      expect(cluster.lines.join("\n")).toMatch(/Postgres a: SIGKILL to pid \d+\n.*Postgres b: promoted/);
      expect(failures.filter((failure) => !/^POST 503 .*service_unavailable/.test(failure))).toEqual([]);
      expect(await lost()).toEqual([]);
    });

    test(
      "gets a new standby without a failed call, and can fail over again",
      { timeout: 180_000 },
      async () => {
        await underLoad(() => command("rejoin"));
        expect(failures).toEqual([]);
        await command("status");
        expect(cluster.lines.findLast((line) => line.startsWith("  standby"))).toMatch(
          /Postgres a, .*: sync$/,
        );
        await underLoad(() => command("failover"));
        expect(await lost()).toEqual([]);
      },
    );

    test("gets a new standby in place of one that was killed", { timeout: 180_000 }, async () => {
      await command("rejoin");
      const standbyNow = () => cluster.lines.findLast((line) => line.startsWith("  standby")) ?? "";
      await command("status");
      expect(standbyNow()).toMatch(/Postgres b, .*: sync$/);
      process.kill(Number(/pid (\d+)/.exec(standbyNow())?.[1]), "SIGKILL");
      await expect
        .poll(() => command("status").then(standbyNow), { timeout: 60_000 })
        .toBe("  standby     none: every commit waits for one, so rejoin");
      cluster.child.stdin.write("failover\n");
      await expect
        .poll(() => cluster.lines.at(-1), { timeout: 60_000 })
        .toBe("  failover: failed: there is no standby: rejoin first");
      await command("rejoin");
      await underLoad(() => command("status"));
      expect(standbyNow()).toMatch(/Postgres b, .*: sync$/);
      expect(await lost()).toEqual([]);
    });

    test("leaves no process and no files after Ctrl-C", { timeout: 180_000 }, async () => {
      const pids = cluster.lines.flatMap((line) =>
        [...line.matchAll(/\bpid (\d+)/g)].map(([, pid]) => Number(pid)),
      );
      const directory = /files +(.+),/.exec(cluster.lines.join("\n"))?.[1] ?? "";
      expect(path.dirname(directory)).toBe(temporary);
      expect(existsSync(directory)).toBe(true);
      gateway.child.stdin.end();
      cluster.child.kill("SIGINT");
      expect(await once(cluster.child, "close")).toEqual([0, null]);
      expect(pids.length).toBeGreaterThan(12);
      for (const pid of pids) expect([pid, existsSync(`/proc/${pid}`)]).toEqual([pid, false]);
      // Removes only an empty directory.
      await rmdir(temporary);
    });
  });
