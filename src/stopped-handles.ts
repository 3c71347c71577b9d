/** Stops the reading of sockets by what Node reads them by: a parser takes it over, and takes no notice of the socket's own `pause`. */

export interface Handle {
  /** Whether the socket is paused otherwise. */
  readonly reading: boolean;
  /** How many bytes are still to be written. */
  readonly writeQueueSize: number;
  readStop(): void;
  readStart(): void;
}

/** Until it is read on, even if the socket is resumed, as Node does after each request and for each body. */
export function stopReading(handle: Handle): void {
  handle.readStop();
  Object.assign(handle, { readStart: () => 0 });
}

/** `afterWrites`: not while something is being written, after which Node does it by itself. */
export function readOn(handle: Handle, { afterWrites = false } = {}): void {
  Reflect.deleteProperty(handle, "readStart");
  const isWriting = afterWrites && handle.writeQueueSize > 0;
  if (handle.reading && !isWriting) handle.readStart();
}
