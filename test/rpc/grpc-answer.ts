import { type CallOptions, type Code, ConnectError } from "@connectrpc/connect";
import { ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";

/** The answer to a gRPC call. */
export interface GrpcAnswer<Message> {
  /** Undefined if the call was refused. */
  readonly message: Message | undefined;
  /** The catalogue's code, or `ok`; empty if a refusal carries none. */
  readonly code: string;
  readonly status: Code | undefined;
  /** The fields that `validation_failed` names, sorted. */
  readonly fields: readonly string[];
  readonly requestId: string;
  readonly retryAfterSeconds: number;
  /** The headers, with a refusal also the trailers. */
  readonly metadata: Headers;
}

/** Makes a unary call and returns its answer, even if it is a refusal. */
export async function answerOf<Message>(
  call: (options: CallOptions) => Promise<Message>,
): Promise<GrpcAnswer<Message>> {
  let metadata = new Headers();
  const onHeader = (headers: Headers) => {
    metadata = headers;
  };
  try {
    const message = await call({ onHeader });
    return {
      message,
      code: "ok",
      status: undefined,
      fields: [],
      requestId: metadata.get("x-request-id") ?? "",
      retryAfterSeconds: 0,
      metadata,
    };
  } catch (error) {
    return { message: undefined, ...refusalOf(error) };
  }
}

/** The answer to a refused call. Rethrows anything but a refusal. */
export function refusalOf(error: unknown): Omit<GrpcAnswer<never>, "message"> {
  if (!(error instanceof ConnectError)) throw error;
  const [detail] = error.findDetails(ErrorDetailSchema);
  return {
    code: detail?.code ?? "",
    status: error.code,
    fields: (detail?.fields ?? []).map(({ field }) => field).sort(),
    requestId: detail?.requestId ?? "",
    retryAfterSeconds: detail?.retryAfterSeconds ?? 0,
    metadata: error.metadata,
  };
}
