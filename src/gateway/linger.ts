import type { Duplex } from "node:stream";

/** How long a connection that is given up is still read. */
const lingerMs = 1000;

/**
 * Sends what is left to send, and closes a moment later. To close a connection with input unread resets it,
 * and with it the client may lose the answer: what comes meanwhile is read and dropped.
 */
export function closeGently(socket: Duplex, lastWords = ""): void {
  socket.end(lastWords);
  setTimeout(() => socket.destroy(), lingerMs).unref();
}

/** To be called before an answer that does not wait for the rest of its request. */
export function lingerAtClose(socket: Duplex): void {
  // What Node calls after an answer with which the connection ends.
  Object.assign(socket, { destroySoon: () => closeGently(socket) });
}
