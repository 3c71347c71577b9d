/**
 * The ceiling that the service is compared with: Fastify with the gateway's schemas and presenter, and Connect with the same
 * service and HTTP/2 window sizes, without any work behind them: no database, authentication, limits or log. Runs in a process
 * of its own.
 */

import http2 from "node:http2";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { fastifyConnectPlugin } from "@connectrpc/connect-fastify";
import fastify, { type FastifyInstance } from "fastify";
import type { CreateVerificationBody } from "../src/gateway/create-request.ts";
import { presentCreatedVerification, presentVerification } from "../src/gateway/presenter.ts";
import { createdVerification, createVerificationBody, verificationResult } from "../src/gateway/schemas.ts";
import {
  InboundMessageOutcome,
  InboundMessageReceiptSchema,
  InboundMessageService,
  type StreamInboundMessagesRequest,
  StreamInboundMessagesResponseSchema,
} from "../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import {
  Carrier,
  CreateVerificationResponseSchema,
  Environment,
  GetVerificationResponseSchema,
  type Verification,
  VerificationMode,
  VerificationSchema,
  VerificationService,
  VerificationStatus,
} from "../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { smsTextOf } from "./requests.ts";

export interface BareAddresses {
  readonly httpPort: number;
  /** `host:port` */
  readonly grpcAddress: string;
}

const verificationId = "vrf_01kcm3x5v8f3rrvsp2k7q9h4ze";

function verification(
  status: VerificationStatus,
  more: MessageInitShape<typeof VerificationSchema> = {},
): Verification {
  const now = timestampFromMs(Date.now());
  return create(VerificationSchema, {
    id: verificationId,
    projectId: "prj_01kcm3x5v8f3rrvsp2k7q9h4zd",
    status,
    environment: Environment.TEST,
    mode: VerificationMode.MATCH,
    clientReference: "signup-20261121-000042",
    state: "wHk2Rr0cXq7mYt5vZb8nLd3sFg6jKp1a",
    createdAt: now,
    expiresAt: timestampFromMs(Date.now() + 3_600_000),
    serverTime: now,
    ...more,
  });
}

const pending = verification(VerificationStatus.PENDING);
const cancelled = verification(VerificationStatus.CANCELLED);
const verified = verification(VerificationStatus.VERIFIED, {
  phone: "01012345678",
  carrier: Carrier.SKT,
  verifiedAt: timestampFromMs(Date.now()),
});

const created = create(CreateVerificationResponseSchema, {
  verification: pending,
  verificationUrl: "http://localhost:8080/v/K9XbQm0sVf2LrT7aYw3ZpA",
  destination: "0200000002",
  smsText: smsTextOf("1234567890"),
});

function httpServer(): FastifyInstance {
  const server = fastify({ logger: false });
  server.post<{ Body: CreateVerificationBody }>(
    "/v1/verifications",
    { schema: { body: createVerificationBody, response: { 201: createdVerification } } },
    async (_request, reply) => {
      reply.code(201);
      return presentCreatedVerification(created);
    },
  );
  let reads = 0;
  server.get(
    "/v1/verifications/:verification_id",
    { schema: { response: { 200: verificationResult } } },
    async () => presentVerification(++reads % 2 === 0 ? pending : verified),
  );
  server.post(
    "/v1/verifications/:verification_id/cancel",
    { schema: { response: { 200: verificationResult } } },
    async () => presentVerification(cancelled),
  );
  return server;
}

function grpcServer(): FastifyInstance<http2.Http2Server> {
  const server: FastifyInstance<http2.Http2Server> = fastify({
    http2: true,
    http2SessionTimeout: 0,
    logger: false,
    serverFactory: (handler) => {
      const http2Server = http2.createServer({ settings: { initialWindowSize: 1024 * 1024 } }, handler);
      http2Server.on("session", (session) => session.setLocalWindowSize(4 * 1024 * 1024));
      return http2Server;
    },
  });
  server.register(fastifyConnectPlugin, {
    routes: (router) => {
      router.service(InboundMessageService, { streamInboundMessages: answerAtOnce });
      router.service(VerificationService, {
        createVerification: async () => created,
        getVerification: async () => create(GetVerificationResponseSchema, { verification: pending }),
      });
    },
  });
  return server;
}

async function* answerAtOnce(requests: AsyncIterable<StreamInboundMessagesRequest>) {
  for await (const { messages } of requests) {
    const receipts = messages.map(({ messageId }) => {
      const receipt = create(InboundMessageReceiptSchema);
      receipt.messageId = messageId;
      receipt.outcome = InboundMessageOutcome.VERIFIED;
      receipt.verificationId = verificationId;
      return receipt;
    });
    yield create(StreamInboundMessagesResponseSchema, { receipts });
  }
}

/** `host:port` from `http://host:port`. */
const withoutScheme = (url: string) => url.replace(/^\w+:\/\//, "");

const httpUrl = await httpServer().listen({ host: "127.0.0.1", port: 0 });
const grpcUrl = await grpcServer().listen({ host: "127.0.0.1", port: 0 });
process.on("disconnect", () => process.exit());
const addresses: BareAddresses = {
  httpPort: Number(new URL(httpUrl).port),
  grpcAddress: withoutScheme(grpcUrl),
};
process.send?.(addresses);
