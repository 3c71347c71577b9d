import { Code, ConnectError } from "@connectrpc/connect";
import { Failure, type FailureCode } from "../failures.ts";
import { ErrorDetailSchema } from "../gen/proto/phoneproof/v1/error_pb.ts";

/** Connect's message for an error that is thrown outside of the interceptor that translates errors. */
const ownFault = "internal error";

/** Connect's message for a timeout that it cannot parse. */
const namesTimeout = /^protocol error: invalid (?:grpc|connect) timeout value/;

/** The refusal of bytes that cannot be read as the expected message. `cause`: Connect's error, if there is one. */
export function malformedMessage(cause?: unknown): Failure {
  return new Failure("malformed_request", {
    message: "The message could not be decoded: send a complete one, as the .proto files define it.",
    cause,
  });
}

/** The refusal of a message over the size limit. `cause`: Connect's error, if there is one. */
export function tooLargeMessage(cause?: unknown): Failure {
  return new Failure("body_too_large", { message: "The message is too large: send a smaller one.", cause });
}

/** The refusal of a call whose timeout cannot be parsed. */
function invalidTimeout(cause: unknown): Failure {
  return new Failure("malformed_request", {
    message:
      "The timeout is invalid: send grpc-timeout as up to eight digits and a unit (H, M, S, m, u or n), or Connect-Timeout-Ms as up to ten digits.",
    cause,
  });
}

/** The refusal of a message that does not arrive, or not completely, in time. */
export function incompleteMessage(): Failure {
  return new Failure("malformed_request", {
    message: "The message was not complete within 10 seconds: send all of it at once.",
  });
}

/**
 * Wraps a refusal that is thrown while a message is read: Connect serialises it before any code here sees it, and drops
 * what is not part of a response. So it travels as an error detail, without a request id as yet.
 */
export function toConnectError({ code, message, fields }: Failure): ConnectError {
  const detail = { code, fields: fields.map((violation) => ({ ...violation })) };
  return new ConnectError(message, Code.InvalidArgument, undefined, [
    { desc: ErrorDetailSchema, value: detail },
  ]);
}

/** Translates Connect's refusal of an unreadable message into the catalogue's; undefined for any other error. */
export function toMessageFailure(error: ConnectError): Failure | undefined {
  const [detail] = error.findDetails(ErrorDetailSchema);
  if (detail?.requestId === "") {
    return new Failure(detail.code as FailureCode, { message: error.rawMessage, fields: detail.fields });
  }
  if (error.details.length > 0) return undefined;
  if (error.rawMessage === ownFault) return new Failure("internal_error", { cause: error.cause ?? error });
  switch (error.code) {
    case Code.ResourceExhausted:
      return tooLargeMessage(error);
    case Code.Internal:
    case Code.InvalidArgument:
      return namesTimeout.test(error.rawMessage) ? invalidTimeout(error) : malformedMessage(error);
    default:
      return undefined;
  }
}
