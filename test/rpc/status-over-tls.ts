import { readFile } from "node:fs/promises";
import grpc from "@grpc/grpc-js";
import { onTestFinished } from "vitest";
import { certificates } from "./certificates.ts";

/** The status that grpc-js gets over a new connection, with `own` as the client's certificate and trust in `trusted`. */
export async function statusTo(
  { grpcAddress }: { readonly grpcAddress: string },
  {
    own,
    trusted = certificates.authority,
  }: { own?: Readonly<Record<"cert" | "key", string>> | undefined; trusted?: string } = {},
): Promise<string | undefined> {
  const files = [trusted, ...(own ? [own.key, own.cert] : [])].map((file) => readFile(file));
  const credentials = grpc.credentials.createSsl(...(await Promise.all(files)));
  const caller = new grpc.Client(grpcAddress, credentials, {
    // An IP address cannot be sent as the server's name.
    "grpc.ssl_target_name_override": "localhost",
    "grpc.use_local_subchannel_pool": 1,
  });
  onTestFinished(() => caller.close());
  return new Promise((resolve) => {
    caller.makeUnaryRequest(
      "/grpc.health.v1.Health/Check",
      (bytes: Buffer) => bytes,
      (bytes: Buffer) => bytes,
      Buffer.of(),
      { deadline: Date.now() + 45_000 },
      (error) => resolve(grpc.status[error?.code ?? grpc.status.OK]),
    );
  });
}
