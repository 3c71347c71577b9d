const never = new Int32Array(new SharedArrayBuffer(4));

/** Keeps the event loop busy, as for lack of processor time: without taking any from other tests. */
export const blockFor = (milliseconds: number): void => void Atomics.wait(never, 0, 0, milliseconds);
