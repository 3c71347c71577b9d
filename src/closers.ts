import type { Logger } from "pino";
import type { Job } from "./jobs/job.ts";

/** Things to be ended, the latest first. */
export class Closers {
  readonly #closers: (() => Promise<void>)[] = [];
  readonly #stops: (() => void)[] = [];

  add(close: () => Promise<void>): void {
    this.#closers.push(close);
  }

  /** Stopped before anything else ends, together with all other jobs, and waited for in its turn. */
  addJob(job: Job): void {
    const stopped = Promise.withResolvers<void>();
    this.#stops.push(() => stopped.resolve(job.stop()));
    // Heard of in its turn, which may be later.
    stopped.promise.catch(() => {});
    this.add(() => stopped.promise);
  }

  async close(log: Logger): Promise<void> {
    for (const stop of this.#stops.splice(0)) stop();
    for (const close of this.#closers.splice(0).reverse()) {
      try {
        await close();
      } catch (error) {
        log.error({ err: error }, "something did not end cleanly");
      }
    }
  }
}
