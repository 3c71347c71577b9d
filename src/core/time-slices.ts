/**
 * Long work in time slices. A chunk of a stream may hold thousands of requests, and a project's statistics thousands of hours:
 * processed back to back, they would block the event loop, and all other work, until the last of them.
 */

/** How long such work may occupy the event loop before all other work gets its turn. */
const sliceMs = 5;

/** End of the current slice; undefined if none has begun in this turn of the event loop. */
let endsAt: number | undefined;
/** By whose work it is, in the order of their turns. */
const waiting = new Map<unknown, (() => void)[]>();

/**
 * Passes the same requests on. Those that arrive together are taken until the slice ends, the rest after all other work
 * had a turn. All streams with the same `sender` share the turns of one: else, who has hundreds would delay the others' by as many.
 */
export function inTimeSlices<T>(requests: AsyncIterable<T>, sender: unknown): AsyncIterable<T> {
  return {
    [Symbol.asyncIterator]() {
      const all = requests[Symbol.asyncIterator]();
      return {
        next: () => (isSliceOver() ? nextSlice(sender).then(() => all.next()) : all.next()),
        return: async () => (await all.return?.()) ?? { done: true, value: undefined },
      };
    },
  };
}

/**
 * To be awaited between two parts of long work: undefined within a slice, else resolves after all other work had a turn. `sender`
 * as above.
 */
export function turnOfOthers(sender?: unknown): Promise<void> | undefined {
  return isSliceOver() ? nextSlice(sender) : undefined;
}

function isSliceOver(): boolean {
  const now = performance.now();
  if (endsAt === undefined) {
    endsAt = now + sliceMs;
    setImmediate(beginSlice);
  }
  return now >= endsAt;
}

function nextSlice(sender: unknown): Promise<void> {
  return new Promise((resolve) => {
    const ofSender = waiting.get(sender);
    if (ofSender === undefined) waiting.set(sender, [resolve]);
    else ofSender.push(resolve);
  });
}

/** Takes the sender's next piece of work whose turn it is, and puts the rest of the sender's behind that of all others. */
function takeNext(): (() => void) | undefined {
  const [turn] = waiting;
  if (turn === undefined) return undefined;
  const [sender, ofSender] = turn;
  const next = ofSender.shift();
  waiting.delete(sender);
  if (ofSender.length > 0) waiting.set(sender, ofSender);
  return next;
}

/** Begins a slice for one waiting piece of work per turn of the event loop. */
function beginSlice(): void {
  const next = takeNext();
  endsAt = undefined;
  if (next === undefined) return;
  endsAt = performance.now() + sliceMs;
  setImmediate(beginSlice);
  next();
}
