/**
 * Ends connections that send a lot of what is neither a call nor its data. Node parses that without reporting it, so no turns are taken
 * by it: window updates, frames of no data, header blocks of more fields than it accepts. Two hundred clients that send such frames
 * without pause would keep it busy for most of a second in each turn of the event loop.
 */

import http2, { type Http2Session } from "node:http2";

/** How much of it a connection may send: at once, and per second. Real clients send a few dozen bytes, now and then. */
const burstBytes = 256 * 1024;
const bytesPerSecond = 4 * 1024;
/** What belongs to a stream beside its data, such as its headers, and to a frame of its data: its head, and answers to what it causes. */
const streamBytes = 16 * 1024;
const frameBytes = 256;
/** Data that is on its way when its stream is ended is not reported either: with a valid credential, a client may send more ahead. */
const knownStreamBytes = 1024 * 1024;
const knownBurstBytes = 4 * 1024 * 1024;

/** How often all connections are looked at: more often while turns of the event loop take longer than `longTurnMs`. */
const lookEveryMs = 1_000;
const longTurnMs = 50;

interface Received {
  readonly handle: { readonly bytesRead: number };
  /** Up to how many bytes it may have sent by now. */
  most: number;
  isKnown: boolean;
}

export interface UnreportedBytes {
  add(session: Http2Session): void;
  /** Reports that the connection has presented a valid credential. */
  admit(session: Http2Session): void;
  reportStream(session: Http2Session): void;
  reportData(session: Http2Session, bytes: number): void;
  /** No connection is looked at any more. */
  stop(): void;
}

export function limitUnreportedBytes(): UnreportedBytes {
  const sessions = new Map<Http2Session, Received>();
  let lookedAt = performance.now();
  let tickedAt = lookedAt;

  const ticking = setInterval(() => {
    const now = performance.now();
    const isInTime = now - tickedAt < 2 * longTurnMs;
    tickedAt = now;
    if (isInTime && now - lookedAt < lookEveryMs) return;
    const more = ((now - lookedAt) / 1_000) * bytesPerSecond;
    lookedAt = now;
    for (const [session, received] of sessions) look(session, received, more);
  }, longTurnMs).unref();

  function look(session: Http2Session, received: Received, more: number): void {
    const { bytesRead } = received.handle;
    if (bytesRead > received.most) {
      sessions.delete(session);
      // Without an error, Node would ignore the code.
      session.destroy(
        new Error("too much was sent that belongs to no call"),
        http2.constants.NGHTTP2_ENHANCE_YOUR_CALM,
      );
      return;
    }
    const burst = received.isKnown ? knownBurstBytes : burstBytes;
    received.most = Math.min(received.most + more, bytesRead + burst);
  }

  return {
    add(session) {
      const { _handle: handle } = session.socket as unknown as {
        readonly _handle: Received["handle"] | null;
      };
      if (handle === null) return;
      sessions.set(session, { handle, most: burstBytes, isKnown: false });
      session.once("close", () => sessions.delete(session));
    },
    admit(session) {
      const received = sessions.get(session);
      if (received === undefined) return;
      received.isKnown = true;
      received.most += knownBurstBytes;
    },
    reportStream(session) {
      const received = sessions.get(session);
      if (received !== undefined) received.most += received.isKnown ? knownStreamBytes : streamBytes;
    },
    reportData(session, bytes) {
      const received = sessions.get(session);
      if (received !== undefined) received.most += frameBytes + 2 * bytes;
    },
    stop: () => clearInterval(ticking),
  };
}
