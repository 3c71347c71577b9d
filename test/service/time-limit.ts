/**
 * The property, which does nothing in runs that start later than this after the first. fast-check's own limit would fail it if no
 * run has ended by then, and would leave that run behind.
 */
export function withinLimit<T>(
  milliseconds: number,
  property: (value: T) => Promise<void>,
): (value: T) => Promise<void> {
  let end: number | undefined;
  return async (value) => {
    const now = performance.now();
    end ??= now + milliseconds;
    if (now <= end) await property(value);
  };
}
