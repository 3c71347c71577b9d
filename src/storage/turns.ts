import { Failure } from "../failures.ts";

/**
 * Lets so many pieces of work go on at once, the others in the order they came. What has waited for as long as `patienceMs` is
 * refused with service_unavailable, without having begun.
 */
export function createTurns(options: {
  readonly atOnce: number;
  readonly patienceMs: number;
}): <T>(work: () => Promise<T>) => Promise<T> {
  let free = options.atOnce;
  const waiting = new Set<() => void>();

  const turn = () =>
    new Promise<void>((resolve, reject) => {
      const take = () => {
        clearTimeout(patience);
        waiting.delete(take);
        resolve();
      };
      const patience = setTimeout(() => {
        waiting.delete(take);
        reject(new Failure("service_unavailable"));
      }, options.patienceMs);
      waiting.add(take);
    });

  return async (work) => {
    if (free > 0) free -= 1;
    else await turn();
    try {
      return await work();
    } finally {
      const [next] = waiting;
      if (next) next();
      else free += 1;
    }
  };
}
