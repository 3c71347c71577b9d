/**
 * Long work in time slices. A chunk of a stream may hold thousands of requests, and a project's statistics thousands of hours:
 * processed back to back, they would block the event loop, and all other work, until the last of them.
 */

/** How long such work may occupy the event loop before all other work gets its turn. */
const sliceMs = 5;

/** End of the current slice; undefined if none has begun in this turn of the event loop. */
let endsAt: number | undefined;
const waiting: (() => void)[] = [];

/**
 * Passes the same requests on. Those that arrive together are taken until the slice ends, the rest after all other work
 * had a turn.
 */
export function inTimeSlices<T>(requests: AsyncIterable<T>): AsyncIterable<T> {
  return {
    [Symbol.asyncIterator]() {
      const all = requests[Symbol.asyncIterator]();
      return {
        next: () => (isSliceOver() ? nextSlice().then(() => all.next()) : all.next()),
        return: async () => (await all.return?.()) ?? { done: true, value: undefined },
      };
    },
  };
}

/** To be awaited between two parts of long work: undefined within a slice, else resolves after all other work had a turn. */
export function turnOfOthers(): Promise<void> | undefined {
  return isSliceOver() ? nextSlice() : undefined;
}

function isSliceOver(): boolean {
  const now = performance.now();
  if (endsAt === undefined) {
    endsAt = now + sliceMs;
    setImmediate(beginSlice);
  }
  return now >= endsAt;
}

function nextSlice(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
  });
}

/** Begins a slice for one waiting piece of work per turn of the event loop. */
function beginSlice(): void {
  const next = waiting.shift();
  endsAt = undefined;
  if (next === undefined) return;
  endsAt = performance.now() + sliceMs;
  setImmediate(beginSlice);
  next();
}
