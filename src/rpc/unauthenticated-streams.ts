import http2, { type Http2Session, type ServerHttp2Stream } from "node:http2";
import { Code } from "@connectrpc/connect";
import { networkOf } from "../admission/network.ts";
import { StreamBounds } from "../admission/stream-bounds.ts";
import { refuseInHeaders } from "./refusal.ts";
import { isOver } from "./stream-scheduling.ts";
import type { NoteRefusedStream } from "./transport-refusals.ts";

/** Unauthenticated streams: enough for all load balancers and clients that check health; each costs some 30 to 50 KiB. */
const unauthenticatedLimits = { inAll: 1_000, each: 500 };
/** Streams whose credential is being looked up, on connections that have presented no valid one before. */
const authenticatingLimits = { inAll: 5_000, each: 2_500 };
/** A refused stream lasts until its connection has taken the refusal, which a connection that reads nothing never does. */
const mostRefusals = 10_000;
/**
 * How much a connection that has presented a valid credential may send ahead. Any other has the 64 KiB of HTTP/2: in frames of a
 * byte each, what it sends takes a hundred times as much memory until its streams are read. (Node renews this window while it parses:
 * what a client that takes no notice of it can send in a turn is limited by `session-turns.ts`.)
 */
const knownWindowBytes = 4 * 1024 * 1024;

/**
 * Bounds the streams whose caller is not authenticated, each from its opening to its close, whether or not its response
 * is taken. A stream with a credential is counted separately until that has been checked, so that anonymous clients
 * cannot use up its room; on a connection that has presented a valid credential, it is not counted until then.
 */
export interface UnauthenticatedStreams {
  /** False if there is no room; the stream was then refused. `hasCredential`: it will be looked up. */
  open(stream: ServerHttp2Stream, address: string, hasCredential: boolean): boolean;
  /** Reports that the stream's credential is valid, which gives its connection a larger window. */
  admit(stream: ServerHttp2Stream): void;
  /** Whether the connection has presented a valid credential. */
  isKnown(session: Http2Session): boolean;
  /**
   * Reports that the stream, which is not over, is being answered. A credential that is not known to be valid by then is
   * invalid, or, as of a request that is no call, will never be checked. Resets the stream if there is no room for another
   * unauthenticated one.
   */
  answered(stream: ServerHttp2Stream): void;
}

interface Place {
  readonly network: string;
  readonly isAuthenticating: boolean;
  giveBack(): void;
}

/** `onKnown` is called once for each connection that has presented a valid credential. */
export function limitUnauthenticatedStreams(
  noteRefused: NoteRefusedStream,
  onKnown: (session: Http2Session) => void = () => {},
): UnauthenticatedStreams {
  const unauthenticated = new StreamBounds(unauthenticatedLimits);
  const authenticating = new StreamBounds(authenticatingLimits);
  const places = new WeakMap<ServerHttp2Stream, Place>();
  const knownSessions = new WeakSet<Http2Session>();
  let refusals = 0;

  function take(stream: ServerHttp2Stream, network: string, isAuthenticating: boolean): boolean {
    const giveBack = (isAuthenticating ? authenticating : unauthenticated).take(network);
    if (typeof giveBack === "string") {
      noteRefused(isAuthenticating ? "authenticating" : "unauthenticated", giveBack);
      return false;
    }
    places.set(stream, { network, isAuthenticating, giveBack });
    return true;
  }

  function leave(this: ServerHttp2Stream): void {
    places.get(this)?.giveBack();
    places.delete(this);
  }

  /** Moves a stream whose credential is being looked up to the unauthenticated ones; false if there is no room. */
  function moveToUnauthenticated(stream: ServerHttp2Stream): boolean {
    const place = places.get(stream);
    // The stream is closed, or counted as unauthenticated already.
    if (!place?.isAuthenticating) return true;
    leave.call(stream);
    stream.once("close", leave);
    return take(stream, place.network, false);
  }

  function refuse(stream: ServerHttp2Stream, code: Code, message: string): void {
    if (isOver(stream)) return;
    refusals += 1;
    stream.once("close", () => {
      refusals -= 1;
    });
    if (refusals > mostRefusals) {
      // Without an error, Node would ignore the code.
      stream.session?.destroy(
        new Error("too many refusals have not been taken"),
        http2.constants.NGHTTP2_ENHANCE_YOUR_CALM,
      );
      return;
    }
    refuseInHeaders(stream, code, message);
    stream.close(http2.constants.NGHTTP2_NO_ERROR);
  }

  return {
    open(stream, address, hasCredential) {
      if (hasCredential && stream.session !== undefined && knownSessions.has(stream.session)) {
        places.set(stream, { network: networkOf(address), isAuthenticating: true, giveBack: () => {} });
        return true;
      }
      // A stream that is over already would not emit `close` again.
      if (isOver(stream)) return false;
      if (!take(stream, networkOf(address), hasCredential)) {
        if (hasCredential)
          refuse(stream, Code.Unavailable, "too many calls are being authenticated: try again");
        else refuse(stream, Code.ResourceExhausted, "too many unauthenticated streams are open: close some");
        return false;
      }
      stream.once("close", leave);
      return true;
    },

    admit(stream) {
      leave.call(stream);
      const { session } = stream;
      if (session === undefined || session.destroyed || knownSessions.has(session)) return;
      knownSessions.add(session);
      onKnown(session);
      session.setLocalWindowSize(knownWindowBytes);
    },

    isKnown: (session) => knownSessions.has(session),

    answered(stream) {
      if (!moveToUnauthenticated(stream)) stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
    },
  };
}
