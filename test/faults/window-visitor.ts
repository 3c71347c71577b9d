/** Somebody who has a verification window open: an event stream that is reopened whenever it ends. */

import { setTimeout as delay } from "node:timers/promises";
import type { Balancer } from "./balancer.ts";
import type { Random } from "./random.ts";

/** Resolves with the final status that the window received, over as many streams as necessary; undefined after `timeoutMs`. */
export async function watchWindow(parts: {
  readonly balancer: Pick<Balancer, "choose">;
  readonly random: Random;
  readonly verificationUrl: string;
  readonly timeoutMs: number;
}): Promise<string | undefined> {
  const { balancer, random, verificationUrl, timeoutMs } = parts;
  const { pathname } = new URL(verificationUrl);
  const deadline = AbortSignal.timeout(timeoutMs);
  while (!deadline.aborted) {
    const life = await balancer.choose(random);
    try {
      const response = await fetch(`${life.httpUrl}${pathname}/events`, { signal: deadline });
      let text = "";
      for await (const piece of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
        text += piece;
        const status = /"status":"(verified|expired|cancelled)"/.exec(text)?.[1];
        if (status !== undefined) return status;
      }
    } catch {
      // Connection lost: a browser reconnects by itself.
    }
    await delay(random.between(100, 300));
  }
  return undefined;
}
