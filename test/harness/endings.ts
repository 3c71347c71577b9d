/**
 * Cleanup at the end of a test file for things created anywhere in it. Vitest's `afterAll` works only at the top level of a
 * file: called in a hook or a test, it does nothing.
 */

let endings: (() => unknown)[] = [];

/** Registers a cleanup function. They run in reverse order. */
export function atFileEnd(end: () => unknown): void {
  endings.push(end);
}

/**
 * Runs all of them, even if one fails. Those registered from now on are the next file's: a cleanup that hangs until its timeout
 * leaves them alone.
 */
export async function endAll(): Promise<void> {
  const ending = endings.reverse();
  endings = [];
  const errors: unknown[] = [];
  for (const end of ending) {
    try {
      await end();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw new AggregateError(errors, "what a test file has begun could not be ended");
}
