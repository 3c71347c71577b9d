import { type CallOptions, type Code, ConnectError } from "@connectrpc/connect";
import { ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";

/** All that a call over gRPC is told. */
export interface GrpcAnswer<Message> {
  /** Undefined where it was refused. */
  readonly message: Message | undefined;
  /** The catalogue's code, or `ok`; empty where a refusal carries none. */
  readonly code: string;
  readonly status: Code | undefined;
  /** The fields that `validation_failed` names, in order of their names. */
  readonly fields: readonly string[];
  readonly requestId: string;
  readonly retryAfterSeconds: number;
  /** What came as headers, and with a refusal as trailers. */
  readonly metadata: Headers;
}

/** Makes a unary call and answers whatever it is told, refusals included. */
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

/** What a refused call was told. Anything but a refusal is thrown on. */
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
