/** Unary calls over gRPC, from encoded messages over plain HTTP/2 streams, so that the generator is a small part of the figures. */

import http2 from "node:http2";
import { type LoadResult, Tally } from "./load.ts";
import { framed } from "./stream-load.ts";

export interface UnaryRound {
  /** The message of the next call. */
  readonly next: () => Uint8Array;
  readonly milliseconds: number;
}

/** Keeps a number of calls in progress, each on its connection in turn. */
export class UnaryLoad {
  readonly #sessions: readonly http2.ClientHttp2Session[];
  readonly #inProgress: number;
  readonly #headers: http2.OutgoingHttpHeaders;

  private constructor(
    sessions: readonly http2.ClientHttp2Session[],
    inProgress: number,
    headers: http2.OutgoingHttpHeaders,
  ) {
    this.#sessions = sessions;
    this.#inProgress = inProgress;
    this.#headers = headers;
  }

  /** `address` is `host:port`, `method` is `package.Service/Method`. */
  static async open(options: {
    readonly address: string;
    readonly method: string;
    readonly credential: string;
    readonly connections: number;
    readonly inProgress: number;
  }): Promise<UnaryLoad> {
    const sessions = Array.from({ length: options.connections }, () =>
      http2.connect(`http://${options.address}`),
    );
    await Promise.all(
      sessions.map(
        (session) => new Promise((resolve, reject) => session.once("connect", resolve).once("error", reject)),
      ),
    );
    return new UnaryLoad(sessions, options.inProgress, {
      ":method": "POST",
      ":path": `/${options.method}`,
      "content-type": "application/grpc",
      te: "trailers",
      authorization: `Bearer ${options.credential}`,
    });
  }

  /** Sends the next call as soon as one is answered, until the time is over. Any answer but OK ends the run. */
  async run({ next, milliseconds }: UnaryRound): Promise<LoadResult> {
    const tally = new Tally();
    const deadline = performance.now() + milliseconds;
    const callers = Array.from({ length: this.#inProgress }, async (_, index) => {
      const session = this.#sessions[index % this.#sessions.length] as http2.ClientHttp2Session;
      for (let now = performance.now(); now < deadline; now = performance.now()) {
        await this.#call(session, framed(next()));
        tally.add(performance.now() - now);
      }
    });
    await Promise.all(callers);
    return tally.result();
  }

  close(): void {
    for (const session of this.#sessions) session.destroy();
  }

  #call(session: http2.ClientHttp2Session, frame: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      const call = session.request(this.#headers);
      let status: string | undefined;
      const note = (headers: http2.IncomingHttpHeaders) => {
        if (headers["grpc-status"] !== undefined)
          status = `${headers["grpc-status"]} ${headers["grpc-message"] ?? ""}`.trim();
      };
      call.on("response", note).on("trailers", note).on("error", reject).resume();
      call.on("close", () =>
        status === "0" ? resolve() : reject(new Error(`a call ended with ${status ?? "no status"}`)),
      );
      call.end(frame);
    });
  }
}
