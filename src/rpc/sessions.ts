import type { Http2Server, ServerHttp2Session } from "node:http2";
import type { Socket } from "node:net";
import { afterRunning } from "../running-time.ts";

/** The HTTP/2 connections of a server. */
export interface Sessions {
  /** To be called once, before the server listens. */
  watch(server: Http2Server): void;
  /** Cuts connections after `graceMs`. Closing the server, by itself, ends each only when its streams have ended. */
  close(graceMs: number): void;
}

const pingIntervalMs = 30_000;
const idleMs = 300_000;
/**
 * Node does not end a session that fails after its client has said that it leaves. It reads no more from it, so it does not notice that
 * the client has gone. Otherwise, it stops reading only while it writes, which a busy one may be doing at each look.
 */
const leavingIntervalMs = 1_000;

/**
 * Ends connections that are dead or unused. Node's own session timeout would also end those with open streams, and a
 * stream may legitimately be silent for days: so connections are pinged, and only those from which nothing has arrived
 * since, or that have had no stream for a while, are closed. On a slow network, the answer to a ping waits behind what the
 * peer had begun to send, for longer than the next ping: so whatever arrives is a sign of life.
 */
export function keepSessions(): Sessions {
  const sockets = new Set<Socket>();
  return {
    watch(server) {
      // A session's own socket proxy has no `destroy`. Node creates the session while it reports the socket.
      let reported: Socket | undefined;
      for (const event of ["connection", "secureConnection"]) {
        server.prependListener(event, (socket: Socket) => {
          reported = socket;
        });
      }
      server.on("session", (session) => {
        keep(session, reported);
        reported = undefined;
      });
      server.on("connection", (socket: Socket) => {
        sockets.add(socket);
        socket.once("close", () => sockets.delete(socket));
      });
    },
    close(graceMs) {
      // A closing session waits for its peer even after `destroy`, and a frozen peer never answers: so the sockets are
      // destroyed.
      afterRunning(graceMs, () => {
        for (const socket of sockets) socket.destroy();
      });
    },
  };

  function keep(session: ServerHttp2Session, socket: Socket | undefined): void {
    let openStreams = 0;
    let idleSince = performance.now();
    let isAnswered = true;
    let receivedBefore: number | undefined = 0;
    session.on("stream", (stream) => {
      openStreams++;
      stream.once("close", () => {
        openStreams--;
        idleSince = performance.now();
      });
    });
    let isEnding = false;
    const timer = setInterval(() => {
      // A destroyed session waits for its peer to disconnect, which may never happen, and throws if it is pinged.
      if (session.destroyed) {
        // A peer that reads nothing would hold its socket for ever: what was written last is never sent.
        if (isEnding) socket?.destroy();
        else socket?.destroySoon();
        isEnding = true;
        return;
      }
      const bytesRead = socket?.bytesRead;
      if (!isAnswered && bytesRead === receivedBefore) return session.destroy();
      if (openStreams === 0 && performance.now() - idleSince > idleMs) return session.close();
      receivedBefore = bytesRead;
      // Node refuses a further ping while ten are unanswered.
      if (!isAnswered) return;
      isAnswered = false;
      session.ping(() => {
        isAnswered = true;
      });
    }, pingIntervalMs);
    timer.unref();
    /** How much it had written at the last look; undefined if it was reading, or had more to write. */
    let writtenBefore: number | undefined;
    let timerOfLeaving: NodeJS.Timeout | undefined;
    session.once("goaway", () => {
      timerOfLeaving = setInterval(() => {
        const written = socket?.isPaused() && socket.writableLength === 0 ? socket.bytesWritten : undefined;
        if (written !== undefined && written === writtenBefore) session.destroy();
        writtenBefore = written;
      }, leavingIntervalMs);
      timerOfLeaving.unref();
    });
    session.once("close", () => {
      clearInterval(timer);
      clearInterval(timerOfLeaving);
      // What leads to it leads to the session's errors, and those to the session.
      socket = undefined;
    });
  }
}
