import http2, {
  type Http2ServerRequest,
  Http2ServerResponse,
  type OutgoingHttpHeaders,
  type ServerHttp2Stream,
} from "node:http2";
import { findTrailerError, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { newRequestId } from "../core/ids.ts";
import type { Failure } from "../failures.ts";
import { connectError } from "./refusal.ts";
import { isOver } from "./stream-turns.ts";
import { asUnread } from "./unread.ts";

/** A call that failed by a fault of ours beside the interceptor, such as while its answer was written. */
export interface FaultyCall {
  /** `package.Service/Method`, one of those there are. */
  readonly method: string;
  readonly requestId: string;
  readonly failure: Failure;
}

/** So long an answer that is whole waits for its client, who may give HTTP/2 no window for it and hold it for ever. */
const takenWithinMs = 10_000;

/**
 * How refusals leave: with the catalogue's code also in what Connect makes by itself of a fault, and with a text that clients
 * show as it is. Connect encodes all but letters; gRPC asks for that of a percent sign and of what is not printable ASCII, and
 * grpc-js decodes no more than that. And how long any answer may take to leave, once all of it is there.
 */
export function grpcResponse(parts: {
  readonly methods: ReadonlySet<string>;
  /** Methods whose answers begin long before they end. */
  readonly streamedAnswers: ReadonlySet<string>;
  /** Told of each that is about to be answered. May close it. */
  readonly onAnswer: (stream: ServerHttp2Stream) => void;
  readonly onFault: (call: FaultyCall) => void;
}): typeof Http2ServerResponse {
  const { methods, streamedAnswers, onAnswer, onFault } = parts;
  return class<Request extends Http2ServerRequest> extends Http2ServerResponse<Request> {
    #isToBeTaken = false;

    // An answer that is larger than the window comes to its end only when it is taken.
    override writeHead(...head: unknown[]): this {
      if (!streamedAnswers.has(this.#method)) this.#toBeTaken();
      return super.writeHead(...(head as Parameters<Http2ServerResponse["writeHead"]>));
    }

    override end(...last: unknown[]): this {
      this.#toBeTaken();
      return super.end(...(last as Parameters<Http2ServerResponse["end"]>));
    }

    #toBeTaken(): void {
      const { stream } = this;
      if (this.#isToBeTaken || isOver(stream)) return;
      this.#isToBeTaken = true;
      const patience = setTimeout(() => stream.close(http2.constants.NGHTTP2_CANCEL), takenWithinMs);
      stream.once("close", () => clearTimeout(patience));
      onAnswer(stream);
    }

    get #method(): string {
      return this.req.url.slice(1);
    }

    /** Connect prints whatever fails, but for a stream that is gone by one of the codes it knows, of which a cut write's is none. */
    override write(...given: unknown[]): boolean {
      const last = given.at(-1);
      const written = typeof last === "function" ? [...given.slice(0, -1), goneFor(last as Written)] : given;
      return super.write(...(written as Parameters<Http2ServerResponse["write"]>));
    }

    override addTrailers(trailers: OutgoingHttpHeaders): void {
      if (trailers["grpc-status"] === "0") super.addTrailers(trailers);
      else super.addTrailers(legible(this.#inOurWords(trailers)));
    }

    #inOurWords(trailers: OutgoingHttpHeaders): OutgoingHttpHeaders {
      const method = this.#method;
      const isHeard = !this.stream.closed && !this.stream.destroyed;
      if ("grpc-status-details-bin" in trailers || !methods.has(method) || !isHeard) return trailers;
      const error = findTrailerError(new Headers(trailers as Record<string, string>));
      const failure = error && asUnread(error);
      if (failure === undefined) return trailers;
      const requestId = newRequestId();
      onFault({ method, requestId, failure });
      return Object.fromEntries(setTrailerStatus(new Headers(), connectError(failure, requestId)));
    }
  };
}

type Written = (error?: Error | null) => void;

function goneFor(written: Written): Written {
  return (error) => {
    const isCut = error instanceof Error && "code" in error && error.code === "ECANCELED";
    written(isCut ? Object.assign(new Error(error.message), { code: "ERR_STREAM_DESTROYED" }) : error);
  };
}

function legible(trailers: OutgoingHttpHeaders): OutgoingHttpHeaders {
  const { "grpc-message": message } = trailers;
  if (typeof message !== "string") return trailers;
  const text = decodeURIComponent(message);
  return { ...trailers, "grpc-message": text.replace(/[^ -$&-~]+/g, encodeURIComponent) };
}
