/**
 * Which connections are read in turns, and how long Node takes for what is read of them. Without turns, a few dozen clients that open
 * a thousand streams each at once, or send their data in frames of a byte, would hold everybody else up for seconds.
 */

import type { Http2Server, Http2Session, ServerHttp2Stream } from "node:http2";
import { SessionTurns } from "./session-turns.ts";
import { limitUnreportedBytes } from "./unreported-bytes.ts";

/** How long Node takes for what a client sends: for a stream, before anything is done with it, and for a frame of its data. */
const streamMicroseconds = 60;
const frameMicroseconds = 0.3;
/**
 * In a turn, on all connections without a valid credential so far, and on all others. Of the last one that is read, the rest of up to
 * 64 KiB comes on top: the time for a thousand streams at most, or for six thousand frames.
 */
const spentOnStrangersMicroseconds = 3_000;
const spentOnKnownMicroseconds = 20_000;

export interface ReadingOfSessions {
  /** To be called once, before the server listens. */
  watch(server: Http2Server): void;
  /** Reports that the connection has presented a valid credential: it no longer waits for those that have not. */
  admit(session: Http2Session): void;
}

export function readSessionsInTurns(): ReadingOfSessions {
  const strangers = new SessionTurns(spentOnStrangersMicroseconds);
  const known = new SessionTurns(spentOnKnownMicroseconds);
  const turns = new WeakMap<Http2Session, SessionTurns>();
  const unreported = limitUnreportedBytes();

  return {
    watch(server) {
      server.once("close", unreported.stop);
      server.on("session", (session) => {
        unreported.add(session);
        turns.set(session, strangers);
        strangers.add(session);
        session.once("close", () => turns.get(session)?.remove(session));
      });
      server.on("stream", (stream: ServerHttp2Stream) => {
        const { session } = stream;
        if (session === undefined) return;
        turns.get(session)?.spend(session, streamMicroseconds);
        unreported.reportStream(session);
        const push = stream.push.bind(stream);
        stream.push = (...given) => {
          const [data] = given as [Uint8Array | null];
          turns.get(session)?.spend(session, frameMicroseconds);
          unreported.reportData(session, data?.length ?? 0);
          return push(...given);
        };
      });
    },

    admit(session) {
      turns.set(session, known);
      unreported.admit(session);
      strangers.moveTo(known, session);
    },
  };
}
