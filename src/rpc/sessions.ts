import type { Http2Server, ServerHttp2Session } from "node:http2";
import type { Socket } from "node:net";

/** The HTTP/2 connections of a server. */
export interface Sessions {
  /** To be called once, before the server listens. */
  watch(server: Http2Server): void;
  /** No new streams; connections end as their streams do, at the latest after the grace. */
  close(graceMs: number): void;
}

const pingIntervalMs = 30_000;
const idleMs = 300_000;

/**
 * Ends connections that are dead or unused. Node's own session time-out would end those with open streams
 * too, and a stream may rightly be silent for days; so those are pinged, and only what does not answer, or
 * has had no stream for a while, is closed.
 */
export function keepSessions(): Sessions {
  const sessions = new Set<ServerHttp2Session>();
  const sockets = new Set<Socket>();
  return {
    watch(server) {
      server.on("session", keep);
      server.on("connection", (socket: Socket) => {
        sockets.add(socket);
        socket.once("close", () => sockets.delete(socket));
      });
    },
    close(graceMs) {
      for (const session of sessions) session.close();
      // A session that is closing waits for its peer even when destroyed; a peer that has frozen never comes.
      setTimeout(() => {
        for (const socket of sockets) socket.destroy();
      }, graceMs).unref();
    },
  };

  function keep(session: ServerHttp2Session): void {
    sessions.add(session);
    let openStreams = 0;
    let idleSince = performance.now();
    let answered = true;
    session.on("stream", (stream) => {
      openStreams++;
      stream.once("close", () => {
        openStreams--;
        idleSince = performance.now();
      });
    });
    // While the session has a socket; it gives out methods that are bound, and no `destroy`.
    const { destroySoon } = session.socket;
    const timer = setInterval(() => {
      // A session that has ended waits for its peer to go, who may never, and throws where it is pinged.
      if (session.destroyed) return destroySoon();
      if (!answered) return session.destroy();
      if (openStreams === 0 && performance.now() - idleSince > idleMs) return session.close();
      answered = false;
      session.ping(() => {
        answered = true;
      });
    }, pingIntervalMs);
    timer.unref();
    session.on("error", () => session.destroy());
    session.once("close", () => {
      clearInterval(timer);
      sessions.delete(session);
    });
  }
}
