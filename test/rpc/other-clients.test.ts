/** Clients that share no code with the service. */
import { execFile } from "node:child_process";
import path from "node:path";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import { describe, expect, onTestFinished, test } from "vitest";
import { startTestService } from "../harness/service.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService();
const project = await service.createProject();

describe("buf curl, which knows the service only from reflection", () => {
  const buf = path.join(import.meta.dirname, "../../node_modules/.bin/buf");

  async function curl(method: string, request: object): Promise<Record<string, unknown>> {
    const { stdout } = await promisify(execFile)(buf, [
      "curl",
      "--protocol=grpc",
      "--http2-prior-knowledge",
      `--header=authorization: Bearer ${project.liveKey}`,
      `--data=${JSON.stringify(request)}`,
      `http://${service.grpcAddress}/phoneproof.v1.VerificationService/${method}`,
    ]);
    return JSON.parse(stdout) as Record<string, unknown>;
  }

  test("creates a verification and reads it", async () => {
    const created = await curl("CreateVerification", {
      idempotencyKey: "buf-curl-1",
      clientReference: "주문 1",
    });
    expect(created).toMatchObject({
      destination: project.liveNumber,
      smsText: expect.stringMatching(/\d{8}/),
      verification: { status: "VERIFICATION_STATUS_PENDING", clientReference: "주문 1" },
    });
    const { id } = created.verification as { id: string };
    expect(await curl("GetVerification", { verificationId: id })).toMatchObject({ verification: { id } });
  });

  test("gets a refusal with its status and its ErrorDetail", async () => {
    const refused = await curl("GetVerification", { verificationId: "vrf_none" }).catch((error) => error);
    expect(refused.stderr).toContain("not_found");
    expect(refused.stderr).toContain("phoneproof.v1.ErrorDetail");
  });
});

describe("@grpc/grpc-js with hand-encoded messages", () => {
  const client = new grpc.Client(service.grpcAddress, grpc.credentials.createInsecure());
  const authorized = new grpc.Metadata();
  authorized.set("authorization", `Bearer ${project.liveKey}`);

  /** A string field in protobuf's wire format. */
  const text = (field: number, value: string): Buffer => {
    const bytes = Buffer.from(value);
    expect(bytes.length).toBeLessThan(128);
    return Buffer.concat([Buffer.of((field << 3) | 2, bytes.length), bytes]);
  };
  /** The length-delimited fields of a message; numbers are skipped. */
  function fieldsOf(message: Buffer): Map<number, Buffer> {
    const fields = new Map<number, Buffer>();
    const varint = (at: number): [number, number] => {
      let [value, shift, end] = [0, 0, at];
      for (;;) {
        const byte = message[end++] ?? 0;
        value |= (byte & 127) << shift;
        shift += 7;
        if (byte < 128) return [value, end];
      }
    };
    for (let at = 0; at < message.length; ) {
      const [tag, afterTag] = varint(at);
      const [length, start] = varint(afterTag);
      const isNumber = (tag & 7) === 0;
      if (!isNumber) fields.set(tag >> 3, message.subarray(start, start + length));
      at = isNumber ? start : start + length;
    }
    return fields;
  }

  const call = (
    method: string,
    request: Buffer,
    { metadata = authorized, deadline = Date.now() + 60_000, by = client } = {},
  ) =>
    new Promise<{ fields: Map<number, Buffer>; headers: grpc.Metadata }>((resolve, reject) => {
      let headers = new grpc.Metadata();
      const made = by.makeUnaryRequest(
        method.startsWith("/") ? method : `/phoneproof.v1.VerificationService/${method}`,
        (bytes: Buffer) => bytes,
        (bytes: Buffer) => bytes,
        request,
        metadata,
        { deadline },
        (error, answer) =>
          error ? reject(error) : resolve({ fields: fieldsOf(answer ?? Buffer.of()), headers }),
      );
      made.on("metadata", (received) => {
        headers = received;
      });
    });

  test("creates, reads and cancels a verification, and gets its usage in the headers", async () => {
    const { fields, headers } = await call("CreateVerification", text(3, "grpc-js-1"));
    expect(fields.get(3)?.toString()).toBe(project.liveNumber);
    expect(Number(headers.get("x-usage-calls")[0])).toBeGreaterThan(0);
    expect(headers.get("x-usage-limit")).toEqual(["unlimited"]);
    const id =
      fieldsOf(fields.get(1) ?? Buffer.of())
        .get(1)
        ?.toString() ?? "";
    expect(id).toMatch(/^vrf_[0-9a-z]{26}$/);
    const read = await call("GetVerification", text(1, id));
    expect(
      fieldsOf(read.fields.get(1) ?? Buffer.of())
        .get(1)
        ?.toString(),
    ).toBe(id);
    await call("CancelVerification", text(1, id));
    const again = await call("CancelVerification", text(1, id));
    expect(again.fields.has(1)).toBe(true);
  });

  test("gets a refusal with gRPC's status and the catalogue's code in its details", async () => {
    const refused: grpc.ServiceError = await call("GetVerification", text(1, "vrf_none")).catch(
      (error) => error,
    );
    expect(refused.code).toBe(grpc.status.NOT_FOUND);
    const [details] = refused.metadata.get("grpc-status-details-bin");
    expect(details?.toString()).toContain("verification_not_found");
    expect(refused.metadata.get("x-request-id")[0]).toMatch(/^req_/);
  });

  test("shows a refusal's message as the service wrote it", async () => {
    const metadata = new grpc.Metadata();
    metadata.set("authorization", "Bearer nobody");
    const refused: grpc.ServiceError = await call("GetVerification", text(1, "vrf_none"), { metadata }).catch(
      (error) => error,
    );
    expect(refused.details).toMatch(/^The API key or token is not valid: it is unknown, mistyped, /);
  });

  test("gets UNIMPLEMENTED for an unknown method and an unknown service, in unary calls and streams", async () => {
    for (const method of ["VerificationService/NoSuchMethod", "NoSuchService/Get"]) {
      const unary = call(`/phoneproof.v1.${method}`, Buffer.of());
      await expect(unary).rejects.toMatchObject({
        code: grpc.status.UNIMPLEMENTED,
        details: "no such method",
      });
      const identity = (bytes: Buffer) => bytes;
      const stream = client.makeBidiStreamRequest(`/phoneproof.v1.${method}`, identity, identity, authorized);
      const refusal = new Promise((_resolve, reject) => void stream.on("error", reject));
      stream.resume();
      stream.write(Buffer.of());
      await expect(refusal).rejects.toMatchObject({ code: grpc.status.UNIMPLEMENTED });
    }
  });

  test("retries refused calls by itself, as its retry policy says", async () => {
    const { liveKey } = await service.createProject();
    const metadata = new grpc.Metadata();
    metadata.set("authorization", `Bearer ${liveKey}`);
    const retryPolicy = {
      maxAttempts: 3,
      initialBackoff: "0.01s",
      maxBackoff: "0.01s",
      backoffMultiplier: 1,
      retryableStatusCodes: ["NOT_FOUND"],
    };
    const retrying = new grpc.Client(service.grpcAddress, grpc.credentials.createInsecure(), {
      "grpc.service_config": JSON.stringify({ methodConfig: [{ name: [{}], retryPolicy }] }),
    });
    onTestFinished(() => retrying.close());
    const refused = call("GetVerification", text(1, "vrf_none"), { by: retrying, metadata });
    const { code, metadata: received }: grpc.ServiceError = await refused.catch((error) => error);
    expect([code, received.get("x-usage-calls")]).toEqual([grpc.status.NOT_FOUND, ["3"]]);
  });

  test("may also retry if it says that its messages are not compressed", async () => {
    const connection = connectRaw(service.grpcAddress);
    onTestFinished(() => connection.destroy());
    const refused = connection.call("phoneproof.v1.VerificationService/GetVerification", {
      authorization: `Bearer ${project.liveKey}`,
      "grpc-encoding": "identity",
    });
    void refused.send(text(1, "vrf_none"));
    refused.halfClose();
    await refused.next();
    // It is the headers that have the status.
    expect(await refused.trailers).toMatchObject({ ":status": 200, "grpc-status": "5" });
  });

  test("learns from the refusal of a compression which it may use, and then sends without", async () => {
    const credentials = grpc.credentials.createInsecure();
    const deflating = new grpc.Client(service.grpcAddress, credentials, {
      "grpc.default_compression_algorithm": grpc.compressionAlgorithms.deflate,
    });
    onTestFinished(() => deflating.close());
    const read = () => call("GetVerification", text(1, "vrf_none"), { by: deflating });
    await expect(read()).rejects.toMatchObject({ code: grpc.status.UNIMPLEMENTED });
    await expect(read()).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
  });

  test.for([
    "127.0.0.1:50051,127.0.0.2:50051",
    "phoneproof.production:grpc",
    "cluster%2Fphoneproof",
    "::1",
    "%",
  ])("may call the service by an authority that is no host name and port: %s", async (authority) => {
    const named = new grpc.Client(service.grpcAddress, grpc.credentials.createInsecure(), {
      "grpc.default_authority": authority,
    });
    onTestFinished(() => named.close());
    const refused = await call("GetVerification", text(1, "vrf_none"), { by: named }).catch((error) => error);
    expect(refused).toMatchObject({ code: grpc.status.NOT_FOUND });
  });

  test("may set a deadline beyond the range of timers", async () => {
    const deadline = Date.now() + 30 * 86_400_000;
    await expect(call("GetVerification", text(1, "vrf_none"), { deadline })).rejects.toMatchObject({
      code: grpc.status.NOT_FOUND,
    });
  });
});
