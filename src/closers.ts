import type { Logger } from "pino";
import type { Job } from "./jobs/job.ts";

/** Collects close functions and runs them in reverse order of registration. */
export class Closers {
  readonly #closers: (() => Promise<void>)[] = [];
  readonly #stops: (() => void)[] = [];

  add(close: () => Promise<void>): void {
    this.#closers.push(close);
  }

  /** Starts a job. Closing tells all jobs to stop before it runs any closer, and waits for this job when its turn comes. */
  startJob(job: Job): void {
    job.start();
    const stopped = Promise.withResolvers<void>();
    this.#stops.push(() => stopped.resolve(job.stop()));
    // The closer handles a rejection, possibly later than it happens: without this, it would count as unhandled.
    stopped.promise.catch(() => {});
    this.add(() => stopped.promise);
  }

  async close(log: Logger): Promise<void> {
    for (const stop of this.#stops.splice(0)) stop();
    for (const close of this.#closers.splice(0).reverse()) {
      try {
        await close();
      } catch (error) {
        log.error({ err: error }, "a part of the service did not shut down cleanly");
      }
    }
  }
}
