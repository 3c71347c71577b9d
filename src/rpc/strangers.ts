import http2, { type Http2Session, type ServerHttp2Stream } from "node:http2";
import { Code } from "@connectrpc/connect";
import { networkOf } from "../admission/network.ts";
import { StreamBounds } from "../admission/stream-bounds.ts";
import { refuseInHeaders } from "./refusal.ts";
import { isOver } from "./stream-turns.ts";

/** Enough for every balancer and client that looks whether the service is well; each costs some 30 to 50 KiB. */
const mostOfStrangers = { inAll: 1_000, each: 500 };
/** For as long as credentials are looked up, of connections on which none was good before. */
const mostInQuestion = { inAll: 5_000, each: 2_500 };
/** What is refused is gone once its connection has taken the refusal, which one that reads nothing never does. */
const mostRefusals = 10_000;

/**
 * Bounds the streams whose caller is not authenticated, each from its opening to its close, whether or not its answer is taken. A
 * stream that names a credential is counted apart until that has been checked, so that anonymous clients cannot use up its room;
 * on a connection on which a credential was good it is not counted until then.
 */
export interface Strangers {
  /** False: there is no room, and the stream was refused. `asksWho`: names a credential that will be looked up. */
  open(stream: ServerHttp2Stream, address: string, asksWho: boolean): boolean;
  /** Its credential is good. */
  admit(stream: ServerHttp2Stream): void;
  /** Whether a credential was good on this connection. */
  isKnown(session: Http2Session): boolean;
  /** Its credential is not. Resolves when that can be said: at once, or when the stream is gone for want of room. */
  turnAway(stream: ServerHttp2Stream): Promise<void>;
  /** It is being answered. Where nobody has looked at its credential, as of what is no call at all, nobody will. */
  answered(stream: ServerHttp2Stream): void;
}

interface Place {
  readonly network: string;
  readonly isInQuestion: boolean;
  giveBack(): void;
}

export function boundStrangers(): Strangers {
  const strangers = new StreamBounds(mostOfStrangers);
  const inQuestion = new StreamBounds(mostInQuestion);
  const places = new WeakMap<ServerHttp2Stream, Place>();
  const withCallers = new WeakSet<Http2Session>();
  let refusals = 0;

  function take(stream: ServerHttp2Stream, network: string, isInQuestion: boolean): boolean {
    const giveBack = (isInQuestion ? inQuestion : strangers).take(network);
    if (typeof giveBack === "string") return false;
    places.set(stream, { network, isInQuestion, giveBack });
    return true;
  }

  function leave(this: ServerHttp2Stream): void {
    places.get(this)?.giveBack();
    places.delete(this);
  }

  /** From among those in question to the strangers; false: there is no room. */
  function moveToStrangers(stream: ServerHttp2Stream): boolean {
    const place = places.get(stream);
    // It is gone, or among them already.
    if (!place?.isInQuestion || isOver(stream)) return true;
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
      stream.session?.destroy();
      return;
    }
    refuseInHeaders(stream, code, message);
    stream.close(http2.constants.NGHTTP2_NO_ERROR);
  }

  return {
    open(stream, address, asksWho) {
      if (asksWho && stream.session !== undefined && withCallers.has(stream.session)) {
        places.set(stream, { network: networkOf(address), isInQuestion: true, giveBack: () => {} });
        return true;
      }
      // Of one that has ended already no end would be heard.
      if (isOver(stream)) return false;
      if (!take(stream, networkOf(address), asksWho)) {
        if (asksWho) refuse(stream, Code.Unavailable, "too much is being asked: try again");
        else refuse(stream, Code.ResourceExhausted, "too many of these streams are open: end some");
        return false;
      }
      stream.once("close", leave);
      return true;
    },

    admit(stream) {
      leave.call(stream);
      if (stream.session !== undefined) withCallers.add(stream.session);
    },

    isKnown: (session) => withCallers.has(session),

    async turnAway(stream) {
      if (moveToStrangers(stream)) return;
      await new Promise<void>((resolve) => {
        stream.once("close", () => resolve());
        stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
      });
    },

    answered(stream) {
      if (!moveToStrangers(stream)) stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
    },
  };
}
