/** Which connections are not read for a while. What comes on them waits in the kernel. */

import type { Socket } from "node:net";

const unheard = new WeakSet<Socket>();

/** Whether a connection is not to be read, or is soon not to be. */
export const isUnheard = (socket: Socket): boolean => unheard.has(socket);

/** To be followed by `stopListening`, once all of its request was read: Node would begin to read again for the rest of it. */
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
