import type { ServerHttp2Stream } from "node:http2";
import type { Caller } from "../core/project.ts";
import { CallerBounds } from "./caller-bounds.ts";
import { isOver } from "./stream-turns.ts";

/**
 * Each costs some 50 KiB, and is open for up to ten seconds where its message does not come, or its answer is not taken. One
 * caller may have many at once where the database stands still for a moment, and those are to wait, not to be refused.
 */
const most = { inAll: 10_000, each: 2_500 };

/** Counts the unary calls of those who have shown who they are, until nothing of them is left. Refuses what is too much. */
export function boundCalls(): (caller: Caller, stream: ServerHttp2Stream) => void {
  const bounds = new CallerBounds("calls", most);
  return (caller, stream) => {
    // Of one that has ended already no end would be heard.
    if (isOver(stream)) return;
    stream.once("close", bounds.take(caller));
  };
}
