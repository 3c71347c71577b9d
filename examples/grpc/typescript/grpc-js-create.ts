/** Creates a verification with @grpc/grpc-js, and prints what the person has to send: npx node grpc-js-create.ts PROJECT_ID */

import { randomUUID } from "node:crypto";
import path from "node:path";
import { credentials, loadPackageDefinition, Metadata, type ServiceError } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const { PHONEPROOF_ADDRESS = "127.0.0.1:50051", PHONEPROOF_TOKEN = "" } = process.env;
const [projectId = ""] = process.argv.slice(2);

const loaded = loadSync("phoneproof/v1/verification.proto", {
  includeDirs: [path.join(import.meta.dirname, "../../../proto")],
  keepCase: true,
  enums: String,
});
// biome-ignore lint/suspicious/noExplicitAny: the protos are read at run time.
const { v1 } = loadPackageDefinition(loaded).phoneproof as any;
// credentials.createSsl() if the service uses TLS.
const verifications = new v1.VerificationService(PHONEPROOF_ADDRESS, credentials.createInsecure());

const metadata = new Metadata();
metadata.set("authorization", `Bearer ${PHONEPROOF_TOKEN}`);
const request = {
  project_id: projectId,
  environment: "ENVIRONMENT_TEST",
  idempotency_key: randomUUID(),
  client_reference: "signup-4711",
};

interface Created {
  readonly verification: { readonly id: string };
  readonly destination: string;
  readonly sms_text: string;
}

const deadline = Date.now() + 5_000;
verifications.CreateVerification(
  request,
  metadata,
  { deadline },
  (error: ServiceError | null, created: Created) => {
    if (error === null) {
      console.log(`${created.verification.id}: send "${created.sms_text}" to ${created.destination}`);
    } else {
      console.error(error.message);
      process.exitCode = 1;
    }
    verifications.close();
  },
);
