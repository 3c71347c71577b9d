/**
 * An open loop: requests arrive at a constant rate, whether or not earlier ones have been answered, as from independent
 * clients. Latency counts from when a request was due, so that a stalled server is charged for everything that it delayed.
 */

/** Calls `arrive` with the time at which each request was due, by `performance.now()`, until the time is over. */
export function atConstantRate(
  perSecond: number,
  milliseconds: number,
  arrive: (dueAt: number) => void,
): Promise<void> {
  const startedAt = performance.now();
  const total = Math.floor((perSecond * milliseconds) / 1000);
  let arrived = 0;
  return new Promise((resolve, reject) => {
    const arriveIfDue = () => {
      try {
        const soFar = Math.min(total, ((performance.now() - startedAt) * perSecond) / 1000);
        for (; arrived < soFar; arrived++) arrive(startedAt + (arrived * 1000) / perSecond);
      } catch (error) {
        reject(error);
        return;
      }
      if (arrived < total) setTimeout(arriveIfDue, 1);
      else resolve();
    };
    arriveIfDue();
  });
}
