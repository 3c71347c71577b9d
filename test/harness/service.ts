import { setTimeout as delay } from "node:timers/promises";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import type pg from "pg";
import { parseConfig } from "../../src/config.ts";
import { digestCredential, newCredential } from "../../src/core/credential.ts";
import { decodeId, newId } from "../../src/core/ids.ts";
import {
  InboundMessageOutcomeSchema,
  type InboundMessageReceipt,
  InboundMessageService,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { type CreateProjectRequest, ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import type { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";
import { type StartOptions, startService } from "../../src/service.ts";
import { directoryChannel } from "../../src/storage/notices.ts";
import { createDatabase, openPool, type TestDatabase } from "./database.ts";
import { atFileEnd } from "./endings.ts";
import { transportTo } from "./grpc-transport.ts";

export interface TestProject {
  readonly projectId: string;
  readonly testKey: string;
  readonly liveKey: string;
  readonly testNumber: string;
  readonly liveNumber: string;
}

export interface Sms {
  readonly to: string;
  readonly from?: string;
  readonly text: string;
  readonly carrier?: string;
  readonly messageId?: string;
}

export interface TestService {
  readonly httpUrl: string;
  /** `host:port` */
  readonly grpcAddress: string;
  readonly opsUrl: string;
  readonly adminToken: string;
  readonly databaseUrl: string;
  /** For looking at rows and changing times in them. */
  readonly db: pg.Pool;
  /** Creates a project with its own number and key in each environment. */
  createProject(settings?: Partial<Omit<CreateProjectRequest, "$typeName">>): Promise<TestProject>;
  /** Creates a service token and returns its secret. */
  createToken(
    token: { scope: "read" | "write" | "ingest" | "admin" } & Partial<{
      source: string;
      projectId: string;
      environment: Environment;
      numbers: string[];
    }>,
  ): Promise<string>;
  /** Streams messages to the service under the source `cli`; the receipts are in the messages' order. */
  sms(...messages: Sms[]): Promise<Receipt[]>;
  /** A Connect client over gRPC with this credential, by default the admin token. */
  client<Service extends Parameters<typeof createClient>[0]>(
    service: Service,
    token?: string,
  ): Client<Service>;
  /** A second service in this process, on the same database. */
  startAnother(environment?: Record<string, string>): Promise<TestService>;
  close(): Promise<void>;
}

export interface Receipt {
  readonly messageId: string;
  readonly outcome: string;
  readonly verificationId: string;
  readonly duplicate: boolean;
}

const scopes = { read: 1, write: 2, ingest: 3, admin: 4 } as const;

let numbersMade = 0;
let messagesMade = 0;

/** Starts the service in this process, on free ports and with a database of the suite's own. */
export async function startTestService(
  environment: Record<string, string> = {},
  options?: Pick<StartOptions, "deprecations">,
): Promise<TestService> {
  const database = await createDatabase();
  const service = await start(database, newCredential("svc"), environment, options);
  const close = async () => {
    await service.close();
    await database.drop();
  };
  atFileEnd(close);
  return { ...service, close };
}

async function start(
  database: TestDatabase,
  adminToken: string,
  environment: Record<string, string>,
  options?: Pick<StartOptions, "deprecations">,
): Promise<TestService> {
  const config = parseConfig({
    PORT: "0",
    GRPC_PORT: "0",
    OPS_PORT: "0",
    DATABASE_URL: database.url,
    PHONEPROOF_ADMIN_TOKEN: adminToken,
    LOG_LEVEL: "silent",
    ...environment,
  });
  const output = openLogOutput();
  const service = await startService(config, createLog(config.logLevel, output), { ...options, output });
  const { addresses } = service;
  const db = openPool({ ...database.connection, max: 4 });

  const client: TestService["client"] = (definition, token = adminToken) =>
    createClient(
      definition,
      // A worker has no gRPC port; these clients are never used then.
      transportTo(addresses.grpc || "127.0.0.1:1", `Bearer ${token}`),
    );
  const projects = client(ProjectService);
  const tokens = client(ServiceTokenService);
  const inbound = client(InboundMessageService);

  const others: TestService[] = [];
  let closed = false;
  return {
    httpUrl: addresses.http.replace("localhost", "127.0.0.1"),
    grpcAddress: addresses.grpc,
    opsUrl: `http://${addresses.ops}`,
    adminToken,
    databaseUrl: database.url,
    db,
    client,

    async createProject(settings = {}) {
      const { project } = await retryWhileUnavailable(() =>
        projects.createProject({ name: "Shop", ...settings }),
      );
      const projectId = project?.id ?? "";
      // Over gRPC, these four would take a tenth of the whole run.
      const [liveKey, testKey] = [newCredential("live"), newCredential("test")];
      const [liveNumber, testNumber] = [1, 2].map(() => `0200${String(++numbersMade).padStart(6, "0")}`);
      await db.query(
        `WITH numbers AS (
           INSERT INTO destination_number (id, number, environment, project_id)
           SELECT n.id, n.number, n.environment, $1
           FROM unnest($2::uuid[], $3::text[], $4::environment[]) AS n (id, number, environment)
         ),
         keys AS (
           INSERT INTO api_key (id, project_id, environment, name, digest, ending)
           SELECT k.id, $1, k.environment, '', decode(k.digest, 'hex'), k.ending
           FROM unnest($5::uuid[], $4::environment[], $6::text[], $7::text[]) AS k (id, environment, digest, ending)
         )
         SELECT pg_notify('${directoryChannel}', '')`,
        [
          decodeId("prj_", projectId),
          [newId(), newId()],
          [liveNumber, testNumber],
          ["live", "test"],
          [newId(), newId()],
          [liveKey, testKey].map(digestCredential),
          [liveKey, testKey].map((secret) => secret.slice(-4)),
        ],
      );
      return { projectId, testKey, liveKey, testNumber: testNumber ?? "", liveNumber: liveNumber ?? "" };
    },

    async createToken({ scope, ...rest }) {
      return (await retryWhileUnavailable(() => tokens.createServiceToken({ scope: scopes[scope], ...rest })))
        .secret;
    },

    async sms(...messages) {
      const receipts: InboundMessageReceipt[] = [];
      const request = {
        messages: messages.map(({ messageId, from, carrier, ...message }) => ({
          messageId: messageId ?? `sms-${++messagesMade}`,
          from: from ?? "01012345678",
          carrier: carrier ?? "SKT",
          ...message,
        })),
      };
      for await (const response of inbound.streamInboundMessages(once(request)))
        receipts.push(...response.receipts);
      return receipts.map(({ messageId, outcome, verificationId, duplicate }) => ({
        messageId,
        outcome: InboundMessageOutcomeSchema.value[outcome]?.localName ?? String(outcome),
        verificationId,
        duplicate,
      }));
    },

    async startAnother(more = {}) {
      const other = await start(database, adminToken, { ...environment, ...more });
      others.push(other);
      return other;
    },

    async close() {
      if (closed) return;
      closed = true;
      await Promise.all(others.map((other) => other.close()));
      await service.close();
      await db.end();
    },
  };
}

/** Retries a call that only prepares a test, or looks for what it waits for, for as long as the service answers UNAVAILABLE. */
export async function retryWhileUnavailable<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof ConnectError) || error.code !== Code.Unavailable) throw error;
      await delay(200);
    }
  }
}

async function* once<T>(value: T): AsyncIterable<T> {
  yield value;
}
