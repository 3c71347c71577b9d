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

    const end = (headers: Headers, error?: ConnectError) => {
      const caller = request.contextValues.get(callKey)?.caller;
      span.set({
        "phoneproof.request_id": headers.get("x-request-id"),
        "phoneproof.project_id": caller?.kind === "merchant" ? encodeId("prj_", caller.project.id) : null,
        "rpc.response.status_code": error === undefined ? "OK" : statusName(error.code),
      });
      if (error !== undefined) failSpan(span, error);
      span.end();
    };
    const failed = (thrown: unknown): ConnectError => {
      const error = ConnectError.from(thrown);
      end(error.metadata, error);
      return error;
    };

    try {
      const response = await span.run(() => next(request));
      if (!response.stream) {
        end(response.header);
        return response;
      }
      const ended = () => end(response.header);
      return { ...response, message: messagesWithin(span, response.message, ended, failed) };
    } catch (thrown) {
      throw failed(thrown);
    }
  };
}

/** A stream's responses are made when their writer asks for them: each step runs in the span's context. */
async function* messagesWithin<Message>(
  span: Span,
  messages: AsyncIterable<Message>,
  ended: () => void,
  failed: (thrown: unknown) => ConnectError,
): AsyncIterable<Message> {
  const iterator = messages[Symbol.asyncIterator]();
  let open = true;
  try {
    for (;;) {
      const result = await span.run(() => iterator.next());
      if (result.done === true) return;
      yield result.value;
    }
  } catch (thrown) {
    open = false;
    throw failed(thrown);
  } finally {
    if (open) {
      await iterator.return?.();
      ended();
    }
  }
}
