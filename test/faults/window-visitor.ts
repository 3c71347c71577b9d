/** Somebody who looks at a verification's window: a stream of events that is opened again wherever it ends. */

import { setTimeout as delay } from "node:timers/promises";
import type { Balancer } from "./balancer.ts";
import type { Random } from "./random.ts";

/** Resolves with the ending that the window was told, however many streams that took; undefined once the patience is over. */
export async function watchWindow(parts: {
  readonly balancer: Pick<Balancer, "choose">;
  readonly random: Random;
  readonly verificationUrl: string;
  readonly patienceMs: number;
}): Promise<string | undefined> {
  const { balancer, random, verificationUrl, patienceMs } = parts;
  const { pathname } = new URL(verificationUrl);
  const patience = AbortSignal.timeout(patienceMs);
  while (!patience.aborted) {
    const life = await balancer.choose(random);
    try {
      const response = await fetch(`${life.httpUrl}${pathname}/events`, { signal: patience });
      let text = "";
      for await (const piece of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
        text += piece;
        const status = /"status":"(verified|expired|cancelled)"/.exec(text)?.[1];
        if (status !== undefined) return status;
      }
    } catch {
      // Lost: a browser comes again by itself.
    }
    await delay(random.between(100, 300));
  }
  return undefined;
}
