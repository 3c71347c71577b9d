import { Code, ConnectError } from "@connectrpc/connect";
import { Failure, type FailureCode } from "../failures.ts";
import { ErrorDetailSchema } from "../gen/proto/phoneproof/v1/error_pb.ts";

/** What Connect makes of what is thrown beside the interceptor that translates errors. */
const ownFault = "internal error";

/** The refusal of what cannot be read as the message it should be. `cause`: how Connect said so, where it did. */
export function unreadable(cause?: unknown): Failure {
  return new Failure("malformed_request", {
    message: "The message could not be read: send a whole one, as the protocol buffers define it.",
    cause,
  });
}

/** The refusal of one that does not come, or whose rest does not. */
export function notWhole(): Failure {
  return new Failure("malformed_request", {
    message: "The message did not come whole within 10 seconds: send all of it at once.",
  });
}

/**
 * A refusal that is thrown while a message is read: Connect writes it down before anybody here sees it, and drops what has no
 * place in an answer. It has no request's id yet.
 */
export function carried({ code, message, fields }: Failure): ConnectError {
  const detail = { code, fields: fields.map((violation) => ({ ...violation })) };
  return new ConnectError(message, Code.InvalidArgument, undefined, [
    { desc: ErrorDetailSchema, value: detail },
  ]);
}

/** What Connect refuses before it is a message, in the catalogue's words; undefined for whatever else it has to say. */
export function asUnread(error: ConnectError): Failure | undefined {
  const [detail] = error.findDetails(ErrorDetailSchema);
  if (detail?.requestId === "") {
    return new Failure(detail.code as FailureCode, { message: error.rawMessage, fields: detail.fields });
  }
  if (error.details.length > 0) return undefined;
  if (error.rawMessage === ownFault) return new Failure("internal_error", { cause: error.cause ?? error });
  switch (error.code) {
    case Code.ResourceExhausted:
      return new Failure("body_too_large", {
        message: "The message is too large: send less in one.",
        cause: error,
      });
    case Code.Internal:
    case Code.InvalidArgument:
      return unreadable(error);
    default:
      return undefined;
  }
}
