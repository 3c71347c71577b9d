/**
 * Answers unary calls in gRPC's binary form. Connect passes every message through a chain of eight asynchronous generators,
 * which a stream needs and a single message does not: they cost more than all the rest of a call.
 */

import type { BinaryReadOptions, DescMethodUnary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ConnectRouter,
  createHandlerContext,
  createMethodImplSpec,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type MethodImplSpec,
} from "@connectrpc/connect";
import {
  type Compression,
  compressionNegotiate,
  createMethodSerializationLookup,
  encodeEnvelope,
  envelopeCompress,
  invokeUnaryImplementation,
  pipe,
  transformDecompressEnvelope,
  transformInvokeImplementation,
  transformParseEnvelope,
  transformSplitEnvelope,
  type UniversalHandler,
  type UniversalServerRequest,
  type UniversalServerResponse,
  validateReadWriteMaxBytes,
} from "@connectrpc/connect/protocol";
import {
  contentTypeProto,
  grpcStatusOk,
  headerAcceptEncoding,
  headerContentType,
  headerEncoding,
  headerGrpcStatus,
  headerTimeout,
  parseContentType,
  parseTimeout,
  setTrailerStatus,
} from "@connectrpc/connect/protocol-grpc";
import { around, bytesOf, prefixBytes } from "./handlers.ts";

/** The options of Connect's router that its own handlers of unary calls go by. */
export interface UnaryOptions {
  readonly acceptCompression: Compression[];
  readonly readMaxBytes: number;
  readonly binaryOptions: Partial<BinaryReadOptions>;
  readonly requestGate: (context: HandlerContext) => void | Promise<void>;
  readonly interceptors: Interceptor[];
  readonly shutdownSignal: AbortSignal;
}

type UnarySpec = MethodImplSpec & { readonly kind: "unary" };

/** Frees what waits for the end of a call. Without a reason, an error with its stack would be created for each call. */
const callIsOver = new ConnectError("the call is over", Code.Canceled);

/** Wraps the router: the unary methods that are added to it are answered here. */
export function answeringUnaryCalls(router: ConnectRouter, options: UnaryOptions): ConnectRouter {
  const answering = {
    ...router,
    rpc(
      method: DescMethodUnary,
      implementation: MethodImpl<DescMethodUnary>,
      connectOptions: Parameters<ConnectRouter["rpc"]>[2],
    ) {
      router.rpc(method, implementation, connectOptions);
      if (method.methodKind !== "unary") return answering;
      const spec = createMethodImplSpec(method, implementation) as UnarySpec;
      router.handlers.push(answerUnary(router.handlers.pop() as UniversalHandler, spec, options));
      return answering;
    },
  } as ConnectRouter;
  return answering;
}

/** Connect's own handler, except for calls in gRPC's binary form whose message is not compressed. */
export function answerUnary(
  connects: UniversalHandler,
  spec: UnarySpec,
  options: UnaryOptions,
): UniversalHandler {
  const { acceptCompression, requestGate, interceptors, shutdownSignal } = options;
  const limits = validateReadWriteMaxBytes(options.readMaxBytes, undefined, undefined);
  const serialization = createMethodSerializationLookup(
    spec.method,
    options.binaryOptions,
    undefined,
    limits,
  );
  const { parse } = serialization.getI(true);
  const { serialize } = serialization.getO(true);

  async function answer(
    request: UniversalServerRequest,
    body: AsyncIterable<Uint8Array>,
    timeoutMs: number | undefined,
  ): Promise<UniversalServerResponse> {
    const { header, method, url, signal, contextValues } = request;
    const context = createHandlerContext({
      ...spec,
      service: spec.method.parent,
      protocolName: "grpc",
      requestMethod: method,
      requestHeader: header,
      requestSignal: signal,
      shutdownSignal,
      url,
      ...(timeoutMs !== undefined && { timeoutMs }),
      ...(contextValues !== undefined && { contextValues }),
      responseHeader: { [headerContentType]: contentTypeProto },
      responseTrailer: { [headerGrpcStatus]: grpcStatusOk },
    });
    const { responseHeader, responseTrailer } = context;
    const compression = compressionNegotiate(
      acceptCompression,
      null,
      header.get(headerAcceptEncoding),
      headerAcceptEncoding,
    ).response;
    if (compression !== null) responseHeader.set(headerEncoding, compression.name);
    const answered = { status: 200, header: responseHeader, trailer: responseTrailer };
    try {
      await requestGate(context);
      const data = serialize(await outputOf(body, context));
      const envelope = await envelopeCompress({ flags: 0, data }, compression, limits.compressMinBytes);
      context.abort(callIsOver);
      return { ...answered, body: single(encodeEnvelope(envelope.flags, envelope.data)) };
    } catch (thrown) {
      context.abort(thrown);
      const error =
        thrown instanceof ConnectError
          ? thrown
          : new ConnectError("internal error", Code.Internal, undefined, undefined, thrown);
      setTrailerStatus(responseTrailer, error);
      return { ...answered, body: single() };
    }
  }

  /** What is no single, complete message goes Connect's way, which also refuses it in Connect's words. */
  async function outputOf(body: AsyncIterable<Uint8Array>, context: HandlerContext) {
    const chunks = body[Symbol.asyncIterator]();
    const first = await chunks.next();
    const input = first.done ? undefined : wholeMessage(first.value);
    if (input === undefined) return await throughConnect([first], chunks, context);
    const second = await chunks.next();
    if (!second.done) return await throughConnect([first, second], chunks, context);
    return await invokeUnaryImplementation(spec, context, input, interceptors);
  }

  /** The message of a chunk that is just its envelope, within the limit; undefined for any other chunk. */
  function wholeMessage(chunk: Uint8Array) {
    const { byteOffset, byteLength } = chunk;
    const dataBytes = byteLength - prefixBytes;
    if (dataBytes < 0) return undefined;
    const prefix = new DataView(chunk.buffer, byteOffset, prefixBytes);
    if (prefix.getUint8(0) !== 0 || prefix.getUint32(1) !== dataBytes) return undefined;
    try {
      return parse(chunk.subarray(prefixBytes));
    } catch {
      return undefined;
    }
  }

  async function throughConnect(
    given: IteratorResult<Uint8Array>[],
    rest: AsyncIterator<Uint8Array>,
    context: HandlerContext,
  ) {
    const messages = pipe(
      continued(given, rest),
      transformSplitEnvelope(limits.readMaxBytes),
      transformDecompressEnvelope(null, limits.readMaxBytes),
      transformParseEnvelope(serialization.getI(true)),
    );
    const outputs = transformInvokeImplementation(spec, context, interceptors)(messages);
    const [output] = await Array.fromAsync(outputs);
    if (output === undefined) throw new Error("the implementation has returned no message");
    return output;
  }

  return around(connects, (request) => {
    const { header } = request;
    const body = bytesOf(request);
    const isBinary = parseContentType(header.get(headerContentType))?.binary === true;
    const encoding = header.get(headerEncoding);
    const isPlain = encoding === null || encoding === "identity";
    const { timeoutMs, error } = parseTimeout(header.get(headerTimeout), Number.MAX_SAFE_INTEGER);
    if (body === undefined || !isBinary || !isPlain || error !== undefined) return connects(request);
    return answer(request, body, timeoutMs);
  });
}

/** The results that have been read already, and then the rest. */
function continued<Value>(given: IteratorResult<Value>[], rest: AsyncIterator<Value>): AsyncIterable<Value> {
  return {
    [Symbol.asyncIterator]: () => ({
      next: async () => given.shift() ?? rest.next(),
      return: async () => (await rest.return?.()) ?? { done: true, value: undefined },
    }),
  };
}

async function* single(...chunks: Uint8Array[]) {
  yield* chunks;
}
