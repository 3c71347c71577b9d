/** What a test file has begun ends with it. Vitest's `afterAll` says so at the top of a file only: called in a hook or a test, it does nothing. */

const endings: (() => unknown)[] = [];

/** The last that began ends first. */
export function atFileEnd(end: () => unknown): void {
  endings.push(end);
}

/** All of them, whether or not one fails. */
export async function endAll(): Promise<void> {
  const errors: unknown[] = [];
  for (let end = endings.pop(); end !== undefined; end = endings.pop()) {
    try {
      await end();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw new AggregateError(errors, "what a test file has begun could not be ended");
}
