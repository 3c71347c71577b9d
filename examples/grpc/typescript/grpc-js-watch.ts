/** Creates a verification and watches it until it ends, with @grpc/grpc-js: npx node grpc-js-watch.ts PROJECT_ID */

import { randomUUID } from "node:crypto";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import {
  type ClientReadableStream,
  credentials,
  type GrpcObject,
  loadPackageDefinition,
  Metadata,
  type ServiceClientConstructor,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { detailOf } from "./grpc-js-errors.ts";
import { describeRefusal } from "./refusal.ts";

if (process.argv.length !== 3) {
  console.error("usage: npx node grpc-js-watch.ts PROJECT_ID");
  process.exit(2);
}
const [projectId = ""] = process.argv.slice(2);
const { PHONEPROOF_ADDRESS = "127.0.0.1:50051", PHONEPROOF_TOKEN = "" } = process.env;

const loaded = loadSync("phoneproof/v1/verification.proto", {
  includeDirs: [path.join(import.meta.dirname, "../../../proto")],
  keepCase: true,
  enums: String,
});
const { v1 } = loadPackageDefinition(loaded).phoneproof as GrpcObject;
const VerificationService = (v1 as GrpcObject).VerificationService as ServiceClientConstructor;

// credentials.createSsl() if the service uses TLS.
const verifications = new VerificationService(PHONEPROOF_ADDRESS, credentials.createInsecure(), {
  "grpc.keepalive_time_ms": 20_000, // Ends the stream if the network connection silently vanished.
  "grpc.max_reconnect_backoff_ms": 1_000, // The default is two minutes.
});
const metadata = new Metadata();
metadata.set("authorization", `Bearer ${PHONEPROOF_TOKEN}`);

interface Verification {
  readonly id: string;
  readonly status: string;
  readonly phone?: string;
}

interface Created {
  readonly verification: Verification;
  readonly destination: string;
  readonly sms_text: string;
}

function create(request: object): Promise<Created> {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + 5_000;
    verifications.CreateVerification?.(
      request,
      metadata,
      { deadline },
      (error: ServiceError | null, created: Created) => (error ? reject(error) : resolve(created)),
    );
  });
}

/** No deadline: a watch lasts as long as the verification. Its first message is the current state. */
async function watch(verificationId: string): Promise<Verification> {
  const call = verifications.WatchVerification?.({ verification_id: verificationId }, metadata);
  for await (const { verification } of call as ClientReadableStream<{ verification: Verification }>) {
    if (verification.status !== "VERIFICATION_STATUS_PENDING") return verification;
  }
  const details = "the watch ended before the verification did";
  throw Object.assign(new Error(details), { code: status.UNAVAILABLE, details });
}

/** Retries temporary errors, with growing pauses. */
async function persistently<T>(call: () => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await call();
    } catch (error) {
      const failure = error as ServiceError;
      const pauseMs = retryPauseMs(failure, attempt);
      if (pauseMs === undefined) {
        console.error(describeRefusal(failure.details, detailOf(failure)));
        process.exit(1);
      }
      if (attempt === 0) console.error(`trying again: ${failure.details}`);
      await delay(pauseMs);
    }
  }
}

function retryPauseMs(error: ServiceError, attempt: number): number | undefined {
  const detail = detailOf(error);
  // If the service answered, its code decides; otherwise the gRPC status does.
  const passes =
    detail === undefined
      ? [
          status.UNAVAILABLE,
          status.ABORTED,
          status.INTERNAL,
          status.UNKNOWN,
          status.DEADLINE_EXCEEDED,
          status.CANCELLED,
        ].includes(error.code)
      : ["service_unavailable", "internal_error", "rate_limited"].includes(detail.code);
  if (!passes) return undefined;
  const pauseMs = Math.min(5_000, 100 * 2 ** attempt) * (0.5 + Math.random() / 2);
  return Math.max(pauseMs, (detail?.retryAfterSeconds ?? 0) * 1_000);
}

// Built once, so that every attempt has the same idempotency key and only one verification is created.
const creation = { project_id: projectId, environment: "ENVIRONMENT_TEST", idempotency_key: randomUUID() };
const created = await persistently(() => create(creation));
console.log(`pending ${created.verification.id} ${created.destination} ${created.sms_text}`);

const finished = await persistently(() => watch(created.verification.id));
console.log(finished.status.replace("VERIFICATION_STATUS_", "").toLowerCase(), finished.phone ?? "");
verifications.close();
