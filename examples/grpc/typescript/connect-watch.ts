/** Creates a verification and watches it until it ends, with Connect: npx node connect-watch.ts PROJECT_ID */

import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { ErrorDetailSchema } from "../../../src/gen/proto/phoneproof/v1/error_pb.ts";
import {
  Environment,
  VerificationService,
  VerificationStatus,
  VerificationStatusSchema,
} from "../../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { describeRefusal } from "./refusal.ts";

if (process.argv.length !== 3) {
  console.error("usage: npx node connect-watch.ts PROJECT_ID");
  process.exit(2);
}
const [projectId = ""] = process.argv.slice(2);
const { PHONEPROOF_ADDRESS = "127.0.0.1:50051", PHONEPROOF_TOKEN = "" } = process.env;

const transport = createGrpcTransport({
  baseUrl: `http://${PHONEPROOF_ADDRESS}`, // https:// if the service uses TLS.
  pingIntervalMs: 20_000, // Ends the stream if the network connection silently vanished.
  interceptors: [
    (next) => (request) => {
      request.header.set("authorization", `Bearer ${PHONEPROOF_TOKEN}`);
      return next(request);
    },
  ],
});
const verifications = createClient(VerificationService, transport);

/** Retries temporary errors, with growing pauses. */
async function persistently<T>(call: () => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await call();
    } catch (error) {
      const failure = ConnectError.from(error);
      const pauseMs = retryPauseMs(failure, attempt);
      if (pauseMs === undefined) {
        const [detail] = failure.findDetails(ErrorDetailSchema);
        console.error(describeRefusal(failure.rawMessage, detail));
        process.exit(1);
      }
      if (attempt === 0) console.error(`trying again: ${failure.rawMessage}`);
      await delay(pauseMs);
    }
  }
}

function retryPauseMs(error: ConnectError, attempt: number): number | undefined {
  const [detail] = error.findDetails(ErrorDetailSchema);
  // If the service answered, its code decides; otherwise the gRPC status does.
  const passes =
    detail === undefined
      ? [
          Code.Unavailable,
          Code.Aborted,
          Code.Internal,
          Code.Unknown,
          Code.DeadlineExceeded,
          Code.Canceled,
        ].includes(error.code)
      : ["service_unavailable", "internal_error", "rate_limited"].includes(detail.code);
  if (!passes) return undefined;
  const pauseMs = Math.min(5_000, 100 * 2 ** attempt) * (0.5 + Math.random() / 2);
  return Math.max(pauseMs, (detail?.retryAfterSeconds ?? 0) * 1_000);
}

// Built once, so that every attempt has the same idempotency key and only one verification is created.
const creation = { projectId, environment: Environment.TEST, idempotencyKey: randomUUID() };
const created = await persistently(() => verifications.createVerification(creation, { timeoutMs: 5_000 }));
const verificationId = created.verification?.id ?? "";
console.log(`pending ${verificationId} ${created.destination} ${created.smsText}`);

// No deadline: a watch lasts as long as the verification. Its first message is the current state.
const finished = await persistently(async () => {
  for await (const { verification } of verifications.watchVerification({ verificationId })) {
    if (verification && verification.status !== VerificationStatus.PENDING) return verification;
  }
  throw new ConnectError("the watch ended before the verification did", Code.Unavailable);
});
console.log(VerificationStatusSchema.value[finished.status]?.localName.toLowerCase(), finished.phone ?? "");
