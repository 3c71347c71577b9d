import { Code, type ConnectError } from "@connectrpc/connect";
import { Failure } from "../failures.ts";

/** What Connect makes of what is thrown beside the interceptor that translates errors. */
const ownFault = "internal error";

/** The refusal of what cannot be read as the message it should be. `cause`: how Connect said so, where it did. */
export function unreadable(cause?: unknown): Failure {
  return new Failure("malformed_request", {
    message: "The message could not be read: send a whole one, as the protocol buffers define it.",
    cause,
  });
}

/** The refusal of one that has begun and whose rest does not come. */
export function notWhole(): Failure {
  return new Failure("malformed_request", {
    message: "The message was begun, and its rest did not come in time: send it whole.",
  });
}

/** What Connect refuses before it is a message, in the catalogue's words; undefined for whatever else it has to say. */
export function asUnread(error: ConnectError): Failure | undefined {
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
