import { setTimeout as delay } from "node:timers/promises";

/**
 * Pause between the end of one rendering and the start of the next. A scraper does not notice it; it bounds the cost of any
 * number of scrapers.
 */
const restMs = 50;

/**
 * Concurrent calls share one rendering, and a call just after it has ended waits for the next. A rendering shows what had
 * happened when it began, so a caller that has one and calls again sees what has happened since.
 */
export function shareRenderings(render: () => Promise<string>): () => Promise<string> {
  let rendering: Promise<string> | undefined;
  let restEndsAt = Number.NEGATIVE_INFINITY;

  async function next(): Promise<string> {
    try {
      const restLeftMs = restEndsAt - performance.now();
      if (restLeftMs > 0) await delay(restLeftMs);
      return await render();
    } finally {
      rendering = undefined;
      restEndsAt = performance.now() + restMs;
    }
  }

  return () => {
    rendering ??= next();
    return rendering;
  };
}
