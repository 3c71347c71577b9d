/**
 * Arrivals at a constant rate, whether or not those before have been answered: what clients who do not know of each
 * other do. A time counts from when its request was due, so that a server that stalls is charged for all it kept waiting.
 */

/** Calls `arrive` with the time each arrival was due, by `performance.now()`, until the time is over. */
export function atConstantRate(
  perSecond: number,
  milliseconds: number,
  arrive: (dueAt: number) => void,
): Promise<void> {
  const startedAt = performance.now();
  const total = Math.floor((perSecond * milliseconds) / 1000);
  let arrived = 0;
  return new Promise((resolve, reject) => {
    const look = () => {
      try {
        const soFar = Math.min(total, ((performance.now() - startedAt) * perSecond) / 1000);
        for (; arrived < soFar; arrived++) arrive(startedAt + (arrived * 1000) / perSecond);
      } catch (error) {
        reject(error);
        return;
      }
      if (arrived < total) setTimeout(look, 1);
      else resolve();
    };
    look();
  });
}
