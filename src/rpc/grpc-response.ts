import http2, {
  type Http2ServerRequest,
  Http2ServerResponse,
  type OutgoingHttpHeaders,
  type ServerHttp2Stream,
} from "node:http2";
import { findTrailerError, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { newRequestId } from "../core/ids.ts";
import type { FaultyCall } from "./answered-call.ts";
import { compressions } from "./compressions.ts";
import { toMessageFailure } from "./message-errors.ts";
import { messageTimeoutSignal } from "./message-timeout.ts";
import { ownMethods, streamingMethods } from "./methods.ts";
import { connectError } from "./refusal.ts";
import { isOver } from "./stream-scheduling.ts";

/** How long a complete response waits for its client, which may grant no HTTP/2 window and hold the response for ever. */
const responseTimeoutMs = 10_000;

const encodings = compressions.map(({ name }) => name);

/**
 * Adapts refusals: errors that Connect itself makes of a fault also get the catalogue's code, and the message becomes a
 * text that clients can show as it is. Connect percent-encodes everything but letters; gRPC requires that only for the
 * percent sign and for what is not printable ASCII, and grpc-js decodes no more than that. Also limits how long any
 * response may take to leave once it is complete.
 */
export function grpcResponse(parts: {
  /** Called with each stream that is about to be answered. May close it. */
  readonly onAnswer: (stream: ServerHttp2Stream) => void;
  readonly onFault: (call: FaultyCall) => void;
}): typeof Http2ServerResponse {
  const { onAnswer, onFault } = parts;
  return class<Request extends Http2ServerRequest> extends Http2ServerResponse<Request> {
    #isTimeLimited = false;
    /** Of a gRPC response of which nothing has been sent yet. */
    #heldHead: Head | undefined;
    #isHeadSent = false;

    // A response that is larger than the window ends only when the client takes it, so its time limit starts here.
    override writeHead(...head: unknown[]): this {
      if (this.#isHeadSent) return super.writeHead(...(head as Head));
      if (!streamingMethods.has(this.#method)) this.#limitTime();
      const isNaming = this.#nameEncodings();
      this.#heldHead = head as Head;
      if (isNaming || !this.#isGrpc) this.#sendHead();
      return this;
    }

    override end(...last: unknown[]): this {
      this.#limitTime();
      this.#sendHead();
      return super.end(...(last as Parameters<Http2ServerResponse["end"]>));
    }

    get #isGrpc(): boolean {
      return this.req.headers["content-type"]?.startsWith("application/grpc") === true;
    }

    #sendHead(): void {
      const head = this.#heldHead;
      this.#isHeadSent = true;
      this.#heldHead = undefined;
      if (head !== undefined) super.writeHead(...head);
    }

    /**
     * The response to a request in an unknown compression names the known ones. Connect drops the header that it makes for this.
     * Clients look for it only in headers apart from the status.
     */
    #nameEncodings(): boolean {
      const { "grpc-encoding": encoding } = this.req.headers;
      if (typeof encoding !== "string" || encoding === "identity" || encodings.includes(encoding))
        return false;
      if (!isOver(this.stream)) this.setHeader("grpc-accept-encoding", encodings.join(","));
      return true;
    }

    #limitTime(): void {
      const { stream } = this;
      if (this.#isTimeLimited || isOver(stream)) return;
      this.#isTimeLimited = true;
      const timer = setTimeout(() => stream.close(http2.constants.NGHTTP2_CANCEL), responseTimeoutMs);
      stream.once("close", () => clearTimeout(timer));
      onAnswer(stream);
    }

    get #method(): string {
      return this.req.url.slice(1);
    }

    /**
     * Connect prints every failed write, except for a few error codes of a closed stream. The code of a cut write,
     * ECANCELED, is not among them, and is replaced by one that is.
     */
    override write(...given: unknown[]): boolean {
      const last = given.at(-1);
      const written =
        typeof last === "function" ? [...given.slice(0, -1), withClosedStreamCode(last as Written)] : given;
      this.#sendHead();
      return super.write(...(written as Parameters<Http2ServerResponse["write"]>));
    }

    override addTrailers(trailers: OutgoingHttpHeaders): void {
      if (trailers["grpc-status"] === "0") super.addTrailers(trailers);
      else this.#refuse(readable(this.#withOwnError(trailers)));
    }

    /**
     * Without a message before it, a refusal is the headers (gRPC's Trailers-Only): once a client has received headers apart from the
     * status, it no longer retries the call by itself, whatever its retry policy says. An overdue message waits for trailers.
     */
    #refuse(trailers: OutgoingHttpHeaders): void {
      const [status, headers] = this.#heldHead ?? [];
      if (status === undefined || messageTimeoutSignal(this.req)?.aborted) {
        super.addTrailers(trailers);
        return;
      }
      this.#heldHead = undefined;
      this.#isHeadSent = true;
      if (isOver(this.stream)) return;
      // Not by `writeHead`, which waits for trailers: until they are sent, Node does not close a stream whose request nobody reads.
      const all = { ":status": status, ...(headers as unknown as OutgoingHttpHeaders), ...trailers };
      this.stream.respond(all, { endStream: true });
    }

    #withOwnError(trailers: OutgoingHttpHeaders): OutgoingHttpHeaders {
      const method = this.#method;
      if ("grpc-status-details-bin" in trailers || !ownMethods.has(method) || isOver(this.stream))
        return trailers;
      const error = findTrailerError(new Headers(trailers as Record<string, string>));
      const failure = error && toMessageFailure(error);
      if (failure === undefined) return trailers;
      const requestId = newRequestId();
      onFault({ method, requestId, failure });
      return Object.fromEntries(setTrailerStatus(new Headers(), connectError(failure, requestId)));
    }
  };
}

type Head = Parameters<Http2ServerResponse["writeHead"]>;
type Written = (error?: Error | null) => void;

function withClosedStreamCode(written: Written): Written {
  return (error) => {
    const isCut = error instanceof Error && "code" in error && error.code === "ECANCELED";
    written(isCut ? Object.assign(new Error(error.message), { code: "ERR_STREAM_DESTROYED" }) : error);
  };
}

function readable(trailers: OutgoingHttpHeaders): OutgoingHttpHeaders {
  const { "grpc-message": message } = trailers;
  if (typeof message !== "string") return trailers;
  const text = decodeURIComponent(message);
  return { ...trailers, "grpc-message": text.replace(/[^ -$&-~]+/g, encodeURIComponent) };
}
