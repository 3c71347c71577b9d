import { Code, ConnectError, type ConnectRouterOptions, type Interceptor } from "@connectrpc/connect";
import { codeToString } from "@connectrpc/connect/protocol-connect";
import type { Call } from "../core/call.ts";
import { encodeId } from "../core/ids.ts";
import type { Span, Tracing } from "../core/tracing.ts";
import { methodName } from "./answered-call.ts";
import { callKey, spanKey } from "./call-context.ts";

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

/** Ends a call's span. `error`: what the call was refused with. */
export function endSpan(
  span: Span,
  call: Pick<Call, "requestId" | "caller"> | undefined,
  error?: ConnectError,
): void {
  const { requestId, caller } = call ?? {};
  span.set({
    "phoneproof.request_id": requestId ?? error?.metadata.get("x-request-id"),
    "phoneproof.project_id": caller?.kind === "merchant" ? encodeId("prj_", caller.project.id) : null,
    "rpc.response.status_code": error === undefined ? "OK" : statusName(error.code),
  });
  if (error !== undefined) span.fail(statusName(error.code), !faultsOfServers.has(error.code));
  span.end();
}

/**
 * Makes each call a span, under the parent that its metadata names. It begins here, so that it includes the look-up of the
 * credential and the wait for the message. It ends here if the gate refuses the call, otherwise in the interceptor, or where calls
 * without a readable message are charged, which reach no interceptor.
 */
export function tracedGate(tracing: Tracing, gate: Gate): Gate {
  return async (context) => {
    const { requestHeader, values } = context;
    const method = methodName(context.method);
    const headers = (field: string) => requestHeader.get(field) ?? undefined;
    const span = tracing.begin(method, { kind: "server", headers });
    span.set({ "rpc.system.name": "grpc", "rpc.method": method });
    try {
      await gate(context);
      values.set(spanKey, span);
    } catch (thrown) {
      endSpan(span, undefined, ConnectError.from(thrown));
      throw thrown;
    }
  };
}

/** Runs each call in its span, and ends that with the call. A stream is one span until it ends. */
export function tracingInterceptor(): Interceptor {
  return (next) => async (request) => {
    const span = request.contextValues.get(spanKey);
    if (span === undefined) throw new Error("the interceptor was reached without the gate");
    const end = (error?: ConnectError) => endSpan(span, request.contextValues.get(callKey), error);
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
