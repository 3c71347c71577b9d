/** Stops the reading of sockets by what Node reads them by: a parser takes it over, and takes no notice of the socket's own `pause`. */

export interface Handle {
  /** Whether the socket is paused otherwise. */
  readonly reading: boolean;
  readStop(): void;
  readStart(): void;
}

/** Until it is read on, even if the socket is resumed, as Node does after each request and for each body. */
export function stopReading(handle: Handle): void {
  handle.readStop();
  Object.assign(handle, { readStart: () => 0 });
}

export function readOn(handle: Handle): void {
  Reflect.deleteProperty(handle, "readStart");
  if (handle.reading) handle.readStart();
}
