import type { Duplex } from "node:stream";

/** How long a connection that is given up is still read. */
const lingerMs = 1000;

/**
 * Sends the remaining output, and closes a moment later; input that arrives meanwhile is read and dropped. Closing a
 * connection with unread input resets it, and the client may lose the response.
 */
export function closeGently(socket: Duplex, lastWords = ""): void {
  socket.end(lastWords);
  setTimeout(() => socket.destroy(), lingerMs).unref();
}

/** To be called before a response that does not wait for the rest of its request. */
export function lingerAtClose(socket: Duplex): void {
  // Node calls `destroySoon` after a response that ends the connection.
  Object.assign(socket, { destroySoon: () => closeGently(socket) });
}
