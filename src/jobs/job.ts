/** Work that is done again and again until the process ends. */
export interface Job {
  start(): void;
  /** Resolves when what was under way is done, or has been waited for long enough. */
  stop(): Promise<void>;
}

/**
 * A database that does not answer must not hold up the end of the process: what is under way then is left to the time its
 * statement has.
 */
const patienceMs = 2_000;

/**
 * Runs `work` one time after another: soon again where it says that more is waiting, after `idleMs` where it does
 * not. `busyMs` leaves room for live traffic between two batches of a backlog. A failure is told and waited out
 * like idleness.
 */
export function repeat(parts: {
  /** Answers whether more is waiting. At the stop `stopping` aborts: work in several steps begins none after that. */
  readonly work: (stopping: AbortSignal) => Promise<boolean>;
  /** What is left to do at the stop, after the last work. */
  readonly finish?: () => Promise<void>;
  readonly idleMs: number;
  readonly busyMs: number;
  readonly onError: (error: unknown) => void;
}): Job {
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> = Promise.resolve();
  const stopping = new AbortController();

  async function run(): Promise<void> {
    let more = false;
    try {
      more = await parts.work(stopping.signal);
    } catch (error) {
      parts.onError(error);
    }
    if (!stopping.signal.aborted) schedule(more ? parts.busyMs : parts.idleMs);
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
      const patience = new Promise<void>((resolve) => {
        setTimeout(resolve, patienceMs).unref();
      });
      await Promise.race([done, patience]);
    },
  };
}
