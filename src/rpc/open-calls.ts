import type { ServerHttp2Stream } from "node:http2";
import type { Caller } from "../core/project.ts";
import { asFailure, type Failure } from "../failures.ts";
import { CallerBounds } from "./caller-bounds.ts";
import { isOver } from "./stream-scheduling.ts";

/**
 * Each call or stream costs some 50 KiB, and stays open for up to ten seconds if its message does not arrive or its response is
 * not taken. One caller may have many calls at once while the database stalls for a moment; those should wait, not be refused.
 * The limit per caller, a project or a token, leaves room for the others.
 */
const most = { inAll: 10_000, each: 2_500 };

/** Counts the calls of authenticated callers until their streams close. Returns the refusal of a call beyond the limits. */
export function boundCalls(
  what: "calls" | "streams",
): (caller: Caller, stream: ServerHttp2Stream) => Failure | undefined {
  const bounds = new CallerBounds(what, most);
  return (caller, stream) => {
    // A stream that is over already would not emit `close` again.
    if (isOver(stream)) return undefined;
    try {
      stream.once("close", bounds.take(caller));
      return undefined;
    } catch (thrown) {
      return asFailure(thrown);
    }
  };
}
