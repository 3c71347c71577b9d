/** Connections that are not read for a while: their data waits in the kernel. */

import type { Socket } from "node:net";

const paused = new WeakSet<Socket>();

/** Whether a connection is not being read, or soon will not be. */
export const isPaused = (socket: Socket): boolean => paused.has(socket);

/** To be followed by `pauseReading` once all of its request was read: before that, Node would resume reading for the rest. */
export function markPaused(socket: Socket): void {
  paused.add(socket);
}

export function pauseReading(socket: Socket): void {
  paused.add(socket);
  socket.pause();
}

export function resumeReading(socket: Socket): void {
  paused.delete(socket);
  if (!socket.destroyed) socket.resume();
}
