/** Work that is repeated until the process ends. */
export interface Job {
  start(): void;
  /** Resolves when the run in progress has finished, or has been waited for long enough. */
  stop(): Promise<void>;
}

/**
 * How long `stop` waits. A database that does not answer must not delay the process's end: a statement still running then is
 * left to its own timeout.
 */
export const stopTimeoutMs = 2_000;

/**
 * Runs `work` repeatedly, never concurrently: after `busyMs` if it reports more work, else after `idleMs`. `busyMs` leaves room
 * for live traffic between two batches of a backlog. An error is reported and followed by `idleMs`.
 */
export function repeat(parts: {
  /**
   * Returns whether there is more work. `stopping` aborts at the stop: work in several steps must begin no further step then.
   */
  readonly work: (stopping: AbortSignal) => Promise<boolean>;
  /** Final work at the stop, after the last run. */
  readonly finish?: () => Promise<void>;
  readonly idleMs: number;
  readonly busyMs: number;
  /** The least pause after a run, as a multiple of its duration, failed or not; none by default. */
  readonly pausePerRun?: number;
  readonly onError: (error: unknown) => void;
}): Job {
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> = Promise.resolve();
  const stopping = new AbortController();

  async function run(): Promise<void> {
    const startedAt = performance.now();
    let more = false;
    try {
      more = await parts.work(stopping.signal);
    } catch (error) {
      parts.onError(error);
    }
    const leastMs = (parts.pausePerRun ?? 0) * (performance.now() - startedAt);
    if (!stopping.signal.aborted) schedule(Math.max(leastMs, more ? parts.busyMs : parts.idleMs));
  }

  function schedule(delayMs: number): void {
    timer = setTimeout(() => {
      running = run();
    }, delayMs);
  }

  return {
    start: () => schedule(0),
    async stop() {
      stopping.abort();
      clearTimeout(timer);
      const done = running.then(parts.finish).catch(parts.onError);
      const timedOut = new Promise<void>((resolve) => {
        setTimeout(resolve, stopTimeoutMs).unref();
      });
      await Promise.race([done, timedOut]);
    },
  };
}
