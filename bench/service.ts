/** Starts the service as in production, on an embedded Postgres with full durability in a directory of its own. */

import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { createClient } from "@connectrpc/connect";
import pg from "pg";
import { decodeId, encodeId } from "../src/core/ids.ts";
import { ApiKeyService } from "../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../src/gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenScope, ServiceTokenService } from "../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment } from "../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { transportTo } from "../test/harness/grpc-transport.ts";
import { ChildProgram, type Daemon } from "./child.ts";
import { type CpuClock, postgresClock, processClock } from "./process-cpu.ts";
import { type ReadyService, startReady } from "./ready-service.ts";
import { codeLength, creationBody, parentOrigin, projectName, returnUrl } from "./requests.ts";
import { readTemplate, type Template } from "./template.ts";

export interface BenchProject {
  /** A UUID. */
  readonly id: string;
  /** Two keys, because rate limits apply per project and environment: both environments together have twice the limit. */
  readonly keys: { readonly live: string; readonly test: string };
  readonly numbers: { readonly live: string; readonly test: string };
  /** The rows of the project's first creation. */
  readonly template: Template;
}

export interface ServiceUnderLoad {
  readonly pid: number;
  readonly httpPort: number;
  /** `host:port` */
  readonly grpcAddress: string;
  readonly ingestToken: string;
  /** One project that takes all the load, with every feature on. */
  readonly project: BenchProject;
  /** Another project for the database loop, so that the two do not wait for each other's usage row. */
  readonly loopProject: BenchProject;
  readonly database: pg.Client;
  readonly databaseConnection: pg.ClientConfig;
  readonly cpu: CpuClock;
  readonly postgresCpu: CpuClock;
  /** Sets the webhook of `project` in both environments. */
  setWebhook(url: string): Promise<void>;
  close(): Promise<void>;
}

/** `execArgv` is for profiling: `--cpu-prof`. `environment` adds settings to those of every run. */
export async function startService(
  directory: string,
  options: { readonly execArgv: readonly string[]; readonly environment?: Readonly<Record<string, string>> },
): Promise<ServiceUnderLoad> {
  const dataDir = path.join(directory, "data");
  const settings = { DATA_DIR: dataDir, LOG_LEVEL: "info", ...options.environment };
  let keeper: ChildProgram<object, unknown> | undefined;
  const keep = ({ pid }: Daemon) => {
    keeper = new ChildProgram("keeper.ts", [String(pid), directory]);
  };
  let service: ReadyService | undefined;
  let database: pg.Client | undefined;
  const close = async () => {
    await database?.end().catch(() => undefined);
    const postmaster = await readPostmaster(dataDir).catch(() => undefined);
    await service?.stop();
    if (postmaster !== undefined) endPostgres(postmaster.pid);
    keeper?.close();
  };
  try {
    service = await startReady(directory, settings, keep, options.execArgv);
    const { pid, httpPort, grpcAddress } = service;
    const postmaster = await readPostmaster(dataDir);
    const databaseConnection = {
      host: postmaster.host,
      port: postmaster.port,
      user: "phoneproof",
      database: "phoneproof",
      password: await readFile(path.join(dataDir, "postgres/phoneproof.password"), "utf8"),
    };
    database = new pg.Client({ ...databaseConnection, application_name: "phoneproof-bench" });
    // Emitted if the service exits by itself. The next query fails then.
    database.on("error", () => {});
    await database.connect();
    await fillLog(database);
    const adminToken = (await readFile(path.join(dataDir, "admin-token"), "utf8")).trim();
    const administration = administer(grpcAddress, adminToken);
    const opened = database;
    const createProject = async (lastDigit: string): Promise<BenchProject> => {
      const project = await administration.createProject(lastDigit);
      const first = decodeId("vrf_", await createOne(httpPort, project.keys.test)) ?? "";
      return { ...project, template: await readTemplate(opened, first) };
    };
    const project = await createProject("1");
    return {
      pid,
      httpPort,
      grpcAddress,
      ingestToken: await administration.createIngestToken(),
      project,
      loopProject: await createProject("2"),
      database,
      databaseConnection,
      cpu: processClock(pid),
      postgresCpu: postgresClock(postmaster.pid),
      setWebhook: (url) => administration.setWebhook(project.id, url),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

export function administer(grpcAddress: string, adminToken: string) {
  const transport = transportTo(grpcAddress, `Bearer ${adminToken}`);
  const projects = createClient(ProjectService, transport);
  const keys = createClient(ApiKeyService, transport);
  const numbers = createClient(DestinationNumberService, transport);
  const tokens = createClient(ServiceTokenService, transport);
  const webhooks = createClient(WebhookService, transport);
  return {
    /** The numbers end in `lastDigits`, which must be unique per project. */
    async createProject(lastDigits: string): Promise<Omit<BenchProject, "template">> {
      const { project } = await projects.createProject({
        name: projectName,
        // With ten digits, a number can have ten million pending codes before longer codes are used.
        codeLength,
        validitySeconds: 3_600,
        parentOrigin,
        returnUrl,
        // Both limits are enabled, but too high to be reached.
        usageLimit: 1_000_000_000_000n,
        rateLimitPerMinute: 1_000_000,
      });
      const projectId = project?.id ?? "";
      const opened = async (environment: Environment, number: string) => {
        await numbers.addDestinationNumber({ number, environment, projectId });
        return (await keys.createApiKey({ projectId, environment })).secret;
      };
      const addresses = { live: `0200001${lastDigits}`, test: `0200002${lastDigits}` };
      return {
        id: decodeId("prj_", projectId) ?? "",
        keys: {
          live: await opened(Environment.LIVE, addresses.live),
          test: await opened(Environment.TEST, addresses.test),
        },
        numbers: addresses,
      };
    },
    /** `project` is a UUID. */
    async setWebhook(project: string, url: string): Promise<void> {
      for (const environment of [Environment.LIVE, Environment.TEST]) {
        await webhooks.setWebhook({ projectId: encodeId("prj_", project), environment, url });
      }
    },
    createIngestToken: async () =>
      (await tokens.createServiceToken({ scope: ServiceTokenScope.INGEST, source: "bench" })).secret,
  };
}

/**
 * Brings Postgres's WAL into the state of a server that has been running for a while. A new WAL segment is filled with zeros
 * before anything can commit, which takes 10 to 40 ms per second of full load; later, old segments are recycled. This creates a
 * gigabyte of segments.
 */
async function fillLog(database: pg.Client): Promise<void> {
  for (let segment = 0; segment < 64; segment++) {
    await database.query("SELECT pg_logical_emit_message(false, 'bench', '')");
    await database.query("SELECT pg_switch_wal()");
  }
  await database.query("CHECKPOINT");
}

/** Creates a verification and returns its id, `vrf_…`. */
export async function createOne(httpPort: number, apiKey: string): Promise<string> {
  const response = await fetch(`http://127.0.0.1:${httpPort}/v1/verifications`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${apiKey}`,
      "content-type": "application/json",
      "idempotency-key": randomUUID(),
    },
    body: creationBody,
  });
  const { id } = (await response.json()) as { id?: string };
  if (id === undefined) throw new Error(`the service created nothing: ${response.status}`);
  return id;
}

interface Postmaster {
  readonly pid: number;
  readonly host: string;
  readonly port: number;
}

/** Lines 1, 4, 5 and 6 of postmaster.pid: the pid, the port, the socket directory, the TCP address. */
export async function readPostmaster(dataDir: string): Promise<Postmaster> {
  const lines = (await readFile(path.join(dataDir, "postgres/postmaster.pid"), "utf8")).split("\n");
  return { pid: Number(lines[0]), port: Number(lines[3]), host: lines[4]?.trim() || lines[5]?.trim() || "" };
}

/** The service stops Postgres when it exits, unless it was killed. */
function endPostgres(pid: number): void {
  try {
    process.kill(pid, "SIGQUIT");
  } catch {
    // Already stopped, as expected.
  }
}
