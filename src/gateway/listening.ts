/** Connections that are not read for a while: their data waits in the kernel. */

import type { Socket } from "node:net";

const unheard = new WeakSet<Socket>();

/** Whether a connection is not being read, or soon will not be. */
export const isUnheard = (socket: Socket): boolean => unheard.has(socket);

/** To be followed by `stopListening` once all of its request was read: before that, Node would resume reading for the rest. */
export function leaveUnheard(socket: Socket): void {
  unheard.add(socket);
}

export function stopListening(socket: Socket): void {
  unheard.add(socket);
  socket.pause();
}

export function listenTo(socket: Socket): void {
  unheard.delete(socket);
  if (!socket.destroyed) socket.resume();
}
