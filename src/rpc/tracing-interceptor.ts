import type { DescMethod } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouterOptions, type Interceptor } from "@connectrpc/connect";
import { codeToString } from "@connectrpc/connect/protocol-connect";
import { encodeId } from "../core/ids.ts";
import type { Span, Tracing } from "../core/tracing.ts";
import { methodName } from "./answered-call.ts";
import { callKey } from "./call-context.ts";

/** The server's errors by OpenTelemetry's conventions for gRPC; all other codes are the caller's. */
const faultsOfServers = new Set([
  Code.Unknown,
  Code.DeadlineExceeded,
  Code.Unimplemented,
  Code.Internal,
  Code.Unavailable,
  Code.DataLoss,
]);

/** gRPC's own spelling: `NOT_FOUND`. */
const statusName = (code: Code) => (code === Code.Canceled ? "CANCELLED" : codeToString(code).toUpperCase());

type Gate = NonNullable<ConnectRouterOptions["requestGate"]>;

function beginSpan(tracing: Tracing, called: DescMethod, header: Headers): Span {
  const method = methodName(called);
  const span = tracing.begin(method, { kind: "server", headers: (field) => header.get(field) ?? undefined });
  span.set({ "rpc.system.name": "grpc", "rpc.method": method });
  return span;
}

function failSpan(span: Span, { code }: ConnectError): void {
  span.fail(statusName(code), !faultsOfServers.has(code));
}

/** Calls that the gate refuses reach no interceptor, but get a span, too. */
export function tracedGate(tracing: Tracing, gate: Gate): Gate {
  return async (context) => {
    try {
      await gate(context);
    } catch (thrown) {
      const error = ConnectError.from(thrown);
      const span = beginSpan(tracing, context.method, context.requestHeader);
      span.set({
        "phoneproof.request_id": error.metadata.get("x-request-id"),
        "rpc.response.status_code": statusName(error.code),
      });
      failSpan(span, error);
      span.end();
      throw thrown;
    }
  };
}

/** Makes each call a span, under the parent that its metadata names. A stream is one span until it ends. */
export function tracingInterceptor(tracing: Tracing): Interceptor {
  return (next) => async (request) => {
    const span = beginSpan(tracing, request.method, request.header);

    const end = (error?: ConnectError) => {
      const { requestId, caller } = request.contextValues.get(callKey) ?? {};
      span.set({
        "phoneproof.request_id": requestId,
        "phoneproof.project_id": caller?.kind === "merchant" ? encodeId("prj_", caller.project.id) : null,
        "rpc.response.status_code": error === undefined ? "OK" : statusName(error.code),
      });
      if (error !== undefined) failSpan(span, error);
      span.end();
    };
    const failed = (thrown: unknown): ConnectError => {
      const error = ConnectError.from(thrown);
      end(error);
      return error;
    };

    try {
      const response = await span.run(() => next(request));
      if (!response.stream) {
        end();
        return response;
      }
      return { ...response, message: messagesWithin(span, response.message, end, failed) };
    } catch (thrown) {
      throw failed(thrown);
    }
  };
}

/** Ends the span when the responses end, however they do. */
async function* messagesWithin<Message>(
  span: Span,
  messages: AsyncIterable<Message>,
  ended: () => void,
  failed: (thrown: unknown) => ConnectError,
): AsyncIterable<Message> {
  let open = true;
  try {
    yield* stepsWithin(span, messages);
  } catch (thrown) {
    open = false;
    throw failed(thrown);
  } finally {
    if (open) ended();
  }
}

/**
 * A stream's responses are made when their writer asks for them: each step runs in the span's context. If the client leaves
 * while one is being written, the writer throws that into the responses: what makes them would otherwise wait for its next turn
 * for ever, and the call would neither be logged nor counted as ended.
 */
function stepsWithin<Message>(span: Span, messages: AsyncIterable<Message>): AsyncIterable<Message> {
  return {
    [Symbol.asyncIterator]() {
      const iterator = messages[Symbol.asyncIterator]();
      return {
        next: () => span.run(() => iterator.next()),
        return: async () => (await iterator.return?.()) ?? { done: true, value: undefined },
        throw: async (reason: unknown) => {
          if (iterator.throw) return iterator.throw(reason);
          throw reason;
        },
      };
    },
  };
}
