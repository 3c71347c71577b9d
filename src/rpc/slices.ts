/**
 * What comes by stream is worked through in slices. A chunk may hold requests by the thousand: read one right behind the other, they
 * would keep the event loop, and everybody else, until the last of them.
 */

/** So long streams may keep the event loop before it comes to everybody else. */
const sliceMs = 5;

/** Of the present slice; undefined between two turns of the event loop. */
let endsAt: number | undefined;
const waiting: (() => void)[] = [];

/** The same requests. Those that come in one go are taken for a slice, and the rest when everybody else had a turn. */
export function inSlices<T>(requests: AsyncIterable<T>): AsyncIterable<T> {
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

/** One that waits a turn. */
function beginSlice(): void {
  const next = waiting.shift();
  endsAt = undefined;
  if (next === undefined) return;
  endsAt = performance.now() + sliceMs;
  setImmediate(beginSlice);
  next();
}
