import { once } from "node:events";
import http2 from "node:http2";
import { brotliCompressSync, brotliDecompressSync, constants } from "node:zlib";
import { create, createFileRegistry, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import {
  type FileDescriptorProto,
  FileDescriptorProtoSchema,
  FileDescriptorSetSchema,
} from "@bufbuild/protobuf/wkt";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { describe, expect, onTestFinished, test } from "vitest";
import {
  ServerReflection,
  ServerReflectionRequestSchema,
  type ServerReflectionResponse,
  ServerReflectionResponseSchema,
} from "../../src/gen/proto/grpc/reflection/v1/reflection_pb.ts";
import {
  Health,
  HealthCheckResponse_ServingStatus as Status,
} from "../../src/gen/proto/health/v1/health_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "./grpc-answer.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService();
/** Without any credential. */
const transport = createGrpcTransport({ baseUrl: `http://${service.grpcAddress}` });
const health = createClient(Health, transport);
const reflection = createClient(ServerReflection, transport);

type Question = NonNullable<MessageInitShape<typeof ServerReflectionRequestSchema>["messageRequest"]>;

async function ask(...questions: Question[]): Promise<ServerReflectionResponse["messageResponse"][]> {
  const requests = (async function* () {
    for (const messageRequest of questions) yield { messageRequest };
  })();
  const answers = await Array.fromAsync(reflection.serverReflectionInfo(requests));
  return answers.map(({ messageResponse }) => messageResponse);
}

async function servicesListed(): Promise<string[]> {
  const [answer] = await ask({ case: "listServices", value: "" });
  if (answer?.case !== "listServicesResponse") throw new Error("services were not listed");
  return answer.value.service.map(({ name }) => name);
}

describe("health", () => {
  test("is SERVING for the server and each of its services, without a credential", async () => {
    expect(await health.check({})).toMatchObject({ status: Status.SERVING });
    for (const name of await servicesListed()) {
      if (name === ServerReflection.typeName) continue;
      expect(await health.check({ service: name })).toMatchObject({ status: Status.SERVING });
    }
  });

  test("of an unknown service is NOT_FOUND for a check, and SERVICE_UNKNOWN for a watch", async () => {
    const answer = await answerOf(() => health.check({ service: "phoneproof.v1.NoService" }));
    expect(answer.status).toBe(Code.NotFound);
    const left = new AbortController();
    const watched = health.watch({ service: "phoneproof.v1.NoService" }, { signal: left.signal });
    const watching = watched[Symbol.asyncIterator]();
    expect((await watching.next()).value?.status).toBe(Status.SERVICE_UNKNOWN);
    left.abort();
  });

  test("is NOT_SERVING while the database cannot be reached, and recovers by itself", async () => {
    const proxy = await startCuttableProxy(service.databaseUrl);
    const { databaseUrl } = proxy;
    const distant = await service.startAnother({ DATABASE_URL: databaseUrl });
    const client = createClient(Health, createGrpcTransport({ baseUrl: `http://${distant.grpcAddress}` }));
    const verifications = distant.client(VerificationService);
    const get = () => answerOf((options) => verifications.getVerification({}, options));
    const left = new AbortController();
    const watching = client.watch({}, { signal: left.signal })[Symbol.asyncIterator]();
    const next = async () => (await watching.next()).value?.status;
    expect(await next()).toBe(Status.SERVING);
    // A status that does not change is reported once, however often it is looked up meanwhile.
    const unchanged: unknown[] = [];
    const watchingUnchanged = (async () => {
      const service = "phoneproof.v1.NoService";
      for await (const { status } of client.watch({ service }, { signal: left.signal }))
        unchanged.push(status);
    })().catch(() => {});

    proxy.cut();
    expect(await next()).toBe(Status.NOT_SERVING);
    expect(await client.check({})).toMatchObject({ status: Status.NOT_SERVING });
    expect(await get()).toMatchObject({ code: "service_unavailable", status: Code.Unavailable });
    proxy.restore();
    expect(await next()).toBe(Status.SERVING);
    expect(await get()).toMatchObject({ code: "verification_not_found" });
    left.abort();
    await watchingUnchanged;
    expect(unchanged).toEqual([Status.SERVICE_UNKNOWN]);
  });
});

test.for([
  "grpc.health.v1.Health/Check",
  "grpc.health.v1.Health/Watch",
  "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
])("an unreadable message to %s is INVALID_ARGUMENT", async (method) => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  const call = connection.call(method);
  void call.send(Buffer.from("0aff", "hex"));
  call.halfClose();
  await call.next();
  expect(await call.status).toMatchObject({
    code: Code.InvalidArgument,
    message: "the message could not be decoded",
    detail: undefined,
  });
});

test.for([
  "grpc.health.v1.Health/Check",
  "grpc.health.v1.Health/Watch",
  "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
])("a message to %s that is longer than any name is refused unread", async (method) => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  const statusOf = async (bytes: number) => {
    const call = connection.call(method);
    // Fields that nothing knows take the longest.
    void call.send(Buffer.alloc(bytes, "7801", "hex"));
    call.halfClose();
    // A watch has no end.
    return await Promise.race([
      call.status.then(({ code }) => code),
      call.next().then((answer) => answer && 0),
    ]);
  };
  expect(await statusOf(1_024)).toBe(0);
  expect(await statusOf(1_026)).toBe(Code.ResourceExhausted);
});

test("JSON with a lone surrogate is INVALID_ARGUMENT, however its content type is capitalized", async () => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  for (const type of ["application/grpc+json", "application/grpc+JSON", "Application/gRPC+Json"]) {
    const call = connection.call("grpc.health.v1.Health/Check", { "content-type": type });
    void call.send(Buffer.from(String.raw`{"\ud800":1}`));
    call.halfClose();
    expect((await call.status).code).toBe(Code.InvalidArgument);
  }
});

test("an unreadable message over the Connect protocol is invalid_argument", async () => {
  const session = http2.connect(`http://${service.grpcAddress}`);
  onTestFinished(() => session.destroy());
  const stream = session.request({
    ":method": "POST",
    ":path": "/grpc.health.v1.Health/Check",
    "content-type": "application/proto",
  });
  stream.end(Buffer.from("0aff", "hex"));
  const [answer] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
  const body = JSON.parse(Buffer.concat(await Array.fromAsync(stream)).toString());
  expect([answer[":status"], body]).toEqual([
    400,
    { code: "invalid_argument", message: "the message could not be decoded" },
  ]);
});

/** How many files a file imports, directly and indirectly; a file counts once per import. */
function importsWithin(files: readonly FileDescriptorProto[], { dependency }: FileDescriptorProto): number {
  const imported = dependency.map((name) => files.find((file) => file.name === name));
  return imported.reduce((count, file) => count + 1 + (file ? importsWithin(files, file) : 0), 0);
}

describe("reflection", () => {
  test("lists every service, each once", async () => {
    expect((await servicesListed()).toSorted()).toEqual([
      "grpc.health.v1.Health",
      "grpc.reflection.v1.ServerReflection",
      "phoneproof.v1.ApiKeyService",
      "phoneproof.v1.AuditService",
      "phoneproof.v1.DestinationNumberService",
      "phoneproof.v1.ErasureService",
      "phoneproof.v1.InboundMessageService",
      "phoneproof.v1.ProjectService",
      "phoneproof.v1.ServiceTokenService",
      "phoneproof.v1.StatisticsService",
      "phoneproof.v1.VerificationHistoryService",
      "phoneproof.v1.VerificationService",
      "phoneproof.v1.WebhookService",
    ]);
  });

  test("returns for each service all files that a client needs to call it", async () => {
    for (const name of await servicesListed()) {
      const [answer] = await ask({ case: "fileContainingSymbol", value: name });
      if (answer?.case !== "fileDescriptorResponse") throw new Error(`${name} is not described`);
      const files = answer.value.fileDescriptorProto.map((bytes) =>
        fromBinary(FileDescriptorProtoSchema, bytes),
      );
      // A registry takes files after those that they import.
      const file = files.toSorted((one, other) => importsWithin(files, one) - importsWithin(files, other));
      const registry = createFileRegistry(create(FileDescriptorSetSchema, { file }));
      expect(registry.getService(name)?.methods.length).toBeGreaterThan(0);
    }
  });

  test.for<[string, Question, boolean]>([
    [
      "a method",
      { case: "fileContainingSymbol", value: "phoneproof.v1.VerificationService.CreateVerification" },
      true,
    ],
    ["a message", { case: "fileContainingSymbol", value: "phoneproof.v1.InboundMessageReceipt" }, true],
    ["a field", { case: "fileContainingSymbol", value: "phoneproof.v1.Verification.client_reference" }, true],
    ["an enumeration", { case: "fileContainingSymbol", value: "phoneproof.v1.Carrier" }, true],
    ["the detail of errors", { case: "fileContainingSymbol", value: "phoneproof.v1.ErrorDetail" }, true],
    ["a file", { case: "fileByFilename", value: "phoneproof/v1/verification.proto" }, true],
    ["a file of Google's", { case: "fileByFilename", value: "google/protobuf/timestamp.proto" }, true],
    // A lookup of each prefix would take long.
    [
      "a name with more parts than any symbol has",
      { case: "fileContainingSymbol", value: `phoneproof.v1.Verification${".part".repeat(190)}` },
      false,
    ],
    ["a symbol that does not exist", { case: "fileContainingSymbol", value: "phoneproof.v1.Nothing" }, false],
    ["a file that does not exist", { case: "fileByFilename", value: "nothing.proto" }, false],
  ])("answers for %s, and answers the next question", async ([, question, known]) => {
    const [answer, afterwards] = await ask(question, { case: "listServices", value: "" });
    if (known) expect(answer?.case).toBe("fileDescriptorResponse");
    else expect(answer).toMatchObject({ case: "errorResponse", value: { errorCode: Code.NotFound } });
    expect(afterwards?.case).toBe("listServicesResponse");
  });

  test("says that a request asks for nothing, and answers the next question", async () => {
    const [answer, afterwards] = await ask({ case: undefined }, { case: "listServices", value: "" });
    expect(answer).toMatchObject({ case: "errorResponse", value: { errorCode: Code.InvalidArgument } });
    expect(afterwards?.case).toBe("listServicesResponse");
  });

  test("does not keep fields of a request that nothing knows, of which there may be thousands", async () => {
    const connection = connectRaw(service.grpcAddress);
    onTestFinished(() => connection.destroy());
    const call = connection.call("grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    const question = create(ServerReflectionRequestSchema, {
      messageRequest: { case: "listServices", value: "" },
    });
    const bytes = toBinary(ServerReflectionRequestSchema, question);
    void call.send(Buffer.concat([bytes, Buffer.from("7801", "hex")]));
    call.halfClose();
    const answer = fromBinary(ServerReflectionResponseSchema, (await call.next()) ?? new Uint8Array());
    expect(answer.originalRequest).toEqual(question);
  });

  test("compresses by brotli with little effort", async () => {
    const connection = connectRaw(service.grpcAddress);
    const call = connection.call("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", {
      "grpc-accept-encoding": "br",
    });
    const messageRequest = { case: "fileByFilename", value: "phoneproof/v1/verification.proto" } as const;
    await call.send(
      toBinary(ServerReflectionRequestSchema, create(ServerReflectionRequestSchema, { messageRequest })),
    );
    call.halfClose();
    const packed = await call.next();
    if (packed === undefined) throw new Error("there was no answer");
    const answer = brotliDecompressSync(packed);
    expect(fromBinary(ServerReflectionResponseSchema, answer).messageResponse.case).toBe(
      "fileDescriptorResponse",
    );
    const quickly = brotliCompressSync(answer, { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } });
    expect(Buffer.from(packed).equals(quickly)).toBe(true);
    expect(quickly.equals(brotliCompressSync(answer))).toBe(false);
    await connection.close();
  });
});
