import { setTimeout as delay } from "node:timers/promises";

/**
 * Pause between the end of one rendering and the start of the next. A scraper does not notice it; it bounds the cost of any
 * number of scrapers.
 */
const restMs = 50;

/**
 * How many calls share one rendering. Sending it takes some 0.2 ms each: with 250 scrapers at once, everything else in the process
 * would wait for all of them.
 */
const mostCalls = 16;

interface Rendering {
  readonly text: Promise<string>;
  calls: number;
}

/**
 * Concurrent calls share renderings, and a call just after one has ended waits for the next. A rendering shows what had
 * happened when it began, so a caller that has one and calls again sees what has happened since.
 */
export function shareRenderings(render: () => Promise<string>): () => Promise<string> {
  let newest: Rendering | undefined;
  let restEndsAt = Number.NEGATIVE_INFINITY;

  async function renderAfter(previous: Promise<unknown> | undefined): Promise<string> {
    await previous?.catch(() => {});
    try {
      const restLeftMs = restEndsAt - performance.now();
      if (restLeftMs > 0) await delay(restLeftMs);
      return await render();
    } finally {
      restEndsAt = performance.now() + restMs;
    }
  }

  function next(): Rendering {
    const rendering = { text: renderAfter(newest?.text), calls: 0 };
    const leave = () => {
      if (newest === rendering) newest = undefined;
    };
    rendering.text.then(leave, leave);
    return rendering;
  }

  return () => {
    if (newest === undefined || newest.calls === mostCalls) newest = next();
    newest.calls += 1;
    return newest.text;
  };
}
