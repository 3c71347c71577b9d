/** What a test file has begun ends with it. Vitest's `afterAll` says so at the top of a file only: called in a hook or a test, it does nothing. */

const endings: (() => unknown)[] = [];

/** The last that began ends first. */
export function atFileEnd(end: () => unknown): void {
  endings.push(end);
}

export async function endAll(): Promise<void> {
  for (let end = endings.pop(); end !== undefined; end = endings.pop()) await end();
}
