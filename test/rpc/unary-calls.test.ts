/** Every unary call over gRPC is answered as Connect's own handler would answer it. */

import { gzipSync } from "node:zlib";
import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createConnectRouter,
  createContextKey,
  createContextValues,
  createMethodImplSpec,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import type { UniversalHandler, UniversalServerRequest } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { describe, expect, test } from "vitest";
import {
  type GetVerificationRequest,
  GetVerificationRequestSchema,
  type GetVerificationResponseSchema,
  VerificationService,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { answerUnary, type UnaryOptions } from "../../src/rpc/unary-calls.ts";

const method = VerificationService.method.getVerification;
const readMaxBytes = 200;
const message = toBinary(
  GetVerificationRequestSchema,
  create(GetVerificationRequestSchema, { verificationId: "vrf_1" }),
);
const large = toBinary(
  GetVerificationRequestSchema,
  create(GetVerificationRequestSchema, { verificationId: "v".repeat(readMaxBytes) }),
);
const note = createContextKey("", { description: "what the server noted" });

type Implementation = (
  request: GetVerificationRequest,
  context: HandlerContext,
) => MessageInitShape<typeof GetVerificationResponseSchema> | Promise<never>;

interface Case {
  readonly chunks?: readonly Uint8Array[];
  readonly header?: Readonly<Record<string, string>>;
  readonly implementation?: Implementation;
  readonly options?: Partial<UnaryOptions>;
  readonly client?: AbortSignal;
  /** Instead of the end of the body. */
  readonly failure?: Error;
  /** Instead of the end of the body: it stays open. */
  readonly isOpen?: true;
}

const named: Implementation = ({ verificationId }) => ({ verification: { id: verificationId } });

function envelope(data: Uint8Array, flags = 0, length = data.length): Uint8Array {
  const head = Buffer.alloc(5);
  head.writeUInt8(flags);
  head.writeUInt32BE(length, 1);
  return Buffer.concat([head, data]);
}

const bytesOf = (bytes: Uint8Array) => [...bytes].map((byte) => Uint8Array.of(byte));
const refusal = () =>
  new ConnectError("not today", Code.ResourceExhausted, { "x-request-id": "req_1", "retry-after": "2" }, [
    { desc: GetVerificationRequestSchema, value: { verificationId: "detail" } },
  ]);
const throwing = (error: unknown) => () => {
  throw error;
};

const cases: Readonly<Record<string, Case>> = {
  "a message": {},
  "a message within a larger buffer": { chunks: [Buffer.concat([bytes(9), envelope(message)]).subarray(9)] },
  "an empty message": { chunks: [envelope(bytes(0))] },
  "a field that nothing knows, and that is not kept": {
    chunks: [envelope(Uint8Array.of(0x78, 1))],
    implementation: ({ $unknown = [] }) => ({ verification: { id: `${$unknown.length} kept` } }),
    options: { binaryOptions: { readUnknownFields: false } },
  },
  "a message byte by byte": { chunks: bytesOf(envelope(message)) },
  "its head apart": { chunks: [envelope(message).subarray(0, 5), envelope(message).subarray(5)] },
  "empty chunks around it": { chunks: [bytes(0), envelope(message), bytes(0)] },
  "unknown flags": { chunks: [envelope(message, 0b10)] },
  "no message": { chunks: [] },
  "an empty body": { chunks: [bytes(0)] },
  "half of a head": { chunks: [envelope(message).subarray(0, 3)] },
  "half of a message": { chunks: [envelope(message).subarray(0, 8)] },
  "less than was announced": { chunks: [envelope(message, 0, message.length + 10)] },
  "less than was announced, behind another's head in its buffer": {
    chunks: [
      new Uint8Array(Buffer.concat([envelope(message), envelope(message, 0, message.length + 10)])).subarray(
        message.length + 5,
      ),
    ],
  },
  "more than was announced": { chunks: [envelope(message, 0, 0)] },
  "two messages in one chunk": { chunks: [Buffer.concat([envelope(message), envelope(message)])] },
  "two messages": { chunks: [envelope(message), envelope(message)] },
  "a message and a half": { chunks: [envelope(message), envelope(message).subarray(0, 8)] },
  "unreadable bytes": { chunks: [envelope(bytes(4, 0xff))] },
  "unreadable bytes of a client that does not end its side": {
    chunks: [envelope(bytes(4, 0xff))],
    isOpen: true,
  },
  "unreadable bytes in pieces": { chunks: bytesOf(envelope(bytes(4, 0xff))) },
  "a message that is too large": { chunks: [envelope(large)] },
  "the announcement of one": { chunks: [envelope(bytes(0), 0, 0xffffffff)], isOpen: true },
  "one that says that it is compressed": { chunks: [envelope(message, 1)] },
  "a compressed one without a compression": { chunks: [envelope(gzipSync(message), 1)] },
  "a compressed one": {
    chunks: [envelope(gzipSync(message), 1)],
    header: { "grpc-encoding": "gzip" },
  },
  "an unknown compression": { header: { "grpc-encoding": "zstd" } },
  "no compression, by its name": { header: { "grpc-encoding": "identity" } },
  "a client that takes compressed answers": { header: { "grpc-accept-encoding": "identity,br,gzip" } },
  "a long answer to one": {
    header: { "grpc-accept-encoding": "identity,br,gzip" },
    implementation: () => ({ verification: { id: "v".repeat(5_000) } }),
  },
  "a long answer to one that takes none that we have": {
    header: { "grpc-accept-encoding": "zstd" },
    implementation: () => ({ verification: { id: "v".repeat(5_000) } }),
  },
  "the longer media type": { header: { "content-type": "application/grpc+proto" } },
  JSON: {
    header: { "content-type": "application/grpc+json" },
    chunks: [envelope(Buffer.from('{"verificationId":"vrf_1"}'))],
  },
  "another media type": { header: { "content-type": "application/grpc-web" } },
  "a timeout": { header: { "grpc-timeout": "30S" } },
  "a timeout that is none": { header: { "grpc-timeout": "soon" } },
  "what the server noted, and headers": {
    header: { authorization: "Bearer x" },
    implementation: (_request, { values, requestHeader, responseHeader, responseTrailer, ...context }) => {
      responseHeader.set("x-noted", values.get(note));
      responseTrailer.set("x-credential", requestHeader.get("authorization") ?? "");
      const { protocolName, requestMethod, url, service, method: called } = context;
      responseTrailer.set("x-call", [protocolName, requestMethod, url, service.typeName, called.name].join());
      return { verification: { id: `${context.timeoutMs()}` } };
    },
  },
  "a refusal by the gate": { options: { requestGate: throwing(refusal()) } },
  "a fault in the gate": { options: { requestGate: async () => throwing(new Error("broken"))() } },
  "a gate that sets headers": {
    options: {
      requestGate: ({ responseHeader, responseTrailer }) => {
        responseHeader.set("x-gate", "1");
        responseTrailer.set("x-gate", "2");
      },
    },
  },
  "a refusal by the service": { implementation: throwing(refusal()) },
  "a later refusal by the service": { implementation: () => Promise.reject(refusal()) },
  "a fault in the service": { implementation: throwing(new Error("broken")) },
  "an interceptor that refuses": { options: { interceptors: [() => throwing(refusal())] } },
  "interceptors, the first around the second": { options: { interceptors: [adding("1"), adding("2")] } },
  "a client that leaves within its message": {
    chunks: [envelope(message).subarray(0, 8)],
    failure: Object.assign(new Error("left"), { code: "ERR_STREAM_PREMATURE_CLOSE" }),
  },
  "a client that leaves after its message": {
    failure: new ConnectError("left", Code.Canceled),
  },
};

function bytes(length: number, fill = 0): Uint8Array {
  return new Uint8Array(length).fill(fill);
}

function adding(name: string): Interceptor {
  return (next) => async (request) => {
    const response = await next(request);
    response.header.set("x-order", `${response.header.get("x-order") ?? ""}${name}`);
    return response;
  };
}

/** Both handlers of one method. */
function handlersOf({ implementation = named, options }: Case) {
  const all: UnaryOptions = {
    acceptCompression: [compressionGzip, compressionBrotli],
    readMaxBytes,
    binaryOptions: {},
    requestGate: () => {},
    interceptors: [],
    shutdownSignal: new AbortController().signal,
    ...options,
  };
  const router = createConnectRouter({ ...all, grpcWeb: false });
  router.rpc(method, implementation);
  const [connects] = router.handlers as [UniversalHandler];
  const spec = createMethodImplSpec(method, implementation) as Parameters<typeof answerUnary>[1];
  return { connects, ours: answerUnary(connects, spec, all) };
}

/** What a client gets, and what became of its body. */
async function answerOf(handler: UniversalHandler, given: Case) {
  const { chunks = [envelope(message)], header, client, failure, isOpen } = given;
  let isReturned = false;
  const left = [...chunks];
  const body: AsyncIterable<Uint8Array> = {
    [Symbol.asyncIterator]: () => ({
      async next() {
        const value = left.shift();
        if (value !== undefined) return { done: false, value };
        if (failure) throw failure;
        return isOpen ? await new Promise<never>(() => {}) : { done: true, value: undefined };
      },
      async return() {
        isReturned = true;
        return { done: true, value: undefined };
      },
    }),
  };
  const request: UniversalServerRequest = {
    httpVersion: "2.0",
    method: "POST",
    url: "http://localhost/phoneproof.v1.VerificationService/GetVerification",
    header: new Headers({ "content-type": "application/grpc", ...header }),
    body,
    signal: client ?? new AbortController().signal,
    contextValues: createContextValues().set(note, "noted"),
  };
  const response = await handler(request);
  const answer = Buffer.concat(await Array.fromAsync(response.body ?? []));
  return {
    status: response.status,
    header: Object.fromEntries(response.header ?? []),
    // Connect's handler has set them once its body has been read.
    trailer: Object.fromEntries(response.trailer ?? []),
    answer: answer.toString("hex"),
    unread: left.length,
    isReturned,
  };
}

describe("is answered as by Connect", () => {
  test.for(Object.entries(cases))("%s", async ([, given]) => {
    const { connects, ours } = handlersOf(given);
    const [expected, actual] = [await answerOf(connects, given), await answerOf(ours, given)];
    expect(actual).toEqual(expected);
  });
});

test("a plain message does not go through Connect's handler, and any other does", async () => {
  const through = async (given: Case) => {
    let isThrough = false;
    const { connects } = handlersOf(given);
    const watched = Object.assign((request: UniversalServerRequest) => {
      isThrough = true;
      return connects(request);
    }, connects);
    const spec = createMethodImplSpec(method, named) as Parameters<typeof answerUnary>[1];
    const ours = answerUnary(watched, spec, {
      acceptCompression: [compressionGzip],
      readMaxBytes,
      binaryOptions: {},
      requestGate: () => {},
      interceptors: [],
      shutdownSignal: new AbortController().signal,
    });
    expect(await answerOf(ours, given)).toMatchObject({ trailer: { "grpc-status": "0" } });
    return isThrough;
  };
  expect(await through({})).toBe(false);
  expect(await through({ header: { "grpc-encoding": "identity" } })).toBe(false);
  expect(await through({ header: { "grpc-encoding": "gzip" } })).toBe(true);
  expect(await through(cases.JSON ?? {})).toBe(true);
});

test("a call's signal is aborted by its deadline, its client, a shutdown, and its end", async () => {
  const statusOf = async (given: Case, end = () => {}) => {
    const implementation: Implementation = (_request, { signal }) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => reject(signal.reason));
        end();
      });
    const answer = await answerOf(handlersOf({ ...given, implementation }).ours, given);
    return Number(answer.trailer["grpc-status"]);
  };
  expect(await statusOf({ header: { "grpc-timeout": "10m" } })).toBe(Code.DeadlineExceeded);
  const [client, shutdown] = [new AbortController(), new AbortController()];
  const left = new ConnectError("left", Code.Canceled);
  expect(await statusOf({ client: client.signal }, () => client.abort(left))).toBe(Code.Canceled);
  const stopping = { options: { shutdownSignal: shutdown.signal } };
  const stop = () => shutdown.abort(new ConnectError("restarting", Code.Unavailable));
  expect(await statusOf(stopping, stop)).toBe(Code.Unavailable);
  const signals: AbortSignal[] = [];
  for (const end of [() => ({}), throwing(refusal())]) {
    const implementation: Implementation = (_request, { signal }) => {
      signals.push(signal);
      return end();
    };
    await answerOf(handlersOf({ implementation }).ours, {});
  }
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, true]);
});
