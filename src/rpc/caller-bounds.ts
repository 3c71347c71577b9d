import { type Limits, StreamBounds } from "../admission/stream-bounds.ts";
import type { Caller } from "../core/project.ts";
import { Failure } from "../failures.ts";

/** The key by which a caller's usage of resources is counted: its project or its token. */
export const ownerOf = (caller: Caller): string =>
  caller.kind === "merchant" ? caller.project.id : (caller.tokenId ?? "installation");

/** Limits the calls or streams that are open, in total and per caller, which is a project or a token. */
export class CallerBounds {
  readonly #what: string;
  readonly #most: Limits;
  readonly #bounds: StreamBounds;

  constructor(what: "calls" | "streams", most: Limits) {
    this.#what = what;
    this.#most = most;
    this.#bounds = new StreamBounds(most);
  }

  /** Returns a function that releases the place, to be called once. Refuses with rate_limited or service_unavailable. */
  take(caller: Caller): () => void {
    const giveBack = this.#bounds.take(ownerOf(caller));
    if (giveBack === "each") {
      throw new Failure("rate_limited", {
        message: `More than ${this.#most.each} ${this.#what} are open: close some.`,
      });
    }
    if (giveBack === "in_all") throw new Failure("service_unavailable");
    return giveBack;
  }
}
