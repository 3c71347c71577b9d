import { setTimeout as delay } from "node:timers/promises";

/** Between the end of one and the beginning of the next. A scraper does not notice; it bounds what any number cost. */
const restMs = 50;

/**
 * All who ask while one is under way share it, and who asks just after it waits for the next: so it shows what had happened
 * when it was begun, and whoever has one and asks again is shown what has happened since.
 */
export function renderedInTurn(render: () => Promise<string>): () => Promise<string> {
  let rendering: Promise<string> | undefined;
  let restedAt = Number.NEGATIVE_INFINITY;

  async function next(): Promise<string> {
    try {
      const restLeftMs = restedAt - performance.now();
      if (restLeftMs > 0) await delay(restLeftMs);
      return await render();
    } finally {
      rendering = undefined;
      restedAt = performance.now() + restMs;
    }
  }

  return () => {
    rendering ??= next();
    return rendering;
  };
}
