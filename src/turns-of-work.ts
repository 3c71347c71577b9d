/** Does work of which there may be a lot in turns of the event loop, between which everything else gets its turn. */

/**
 * Returns a function that takes pieces of work. They are done in the order in which they came: one in each turn, and further ones until
 * that has taken so long, with all that they bring about at once.
 */
export function inTurnsOf(mostMs: number): (work: () => void) => void {
  const waiting: (() => void)[] = [];
  /** Of the current turn; undefined before its first piece. */
  let endsAt: number | undefined;

  function doNext(): void {
    if (endsAt === undefined) {
      endsAt = performance.now() + mostMs;
      setImmediate(() => {
        endsAt = undefined;
      });
    } else if (performance.now() >= endsAt) {
      setImmediate(doNext);
      return;
    }
    waiting.shift()?.();
  }

  return (work) => {
    waiting.push(work);
    // Of its own: promises that the piece before it has settled are followed up first.
    setImmediate(doNext);
  };
}
