/** Work that is done again and again until the process ends. */
export interface Job {
  start(): void;
  /** Resolves when what was under way is done. */
  stop(): Promise<void>;
}

/**
 * Runs `work` one time after another: soon again where it says that more is waiting, after `idleMs` where it does
 * not. `busyMs` leaves room for live traffic between two batches of a backlog. A failure is told and waited out
 * like idleness.
 */
export function repeat(parts: {
  /** Answers whether more is waiting. */
  readonly work: () => Promise<boolean>;
  readonly idleMs: number;
  readonly busyMs: number;
  readonly onError: (error: unknown) => void;
}): Job {
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> = Promise.resolve();
  let stopped = false;

  async function run(): Promise<void> {
    let more = false;
    try {
      more = await parts.work();
    } catch (error) {
      parts.onError(error);
    }
    if (!stopped) schedule(more ? parts.busyMs : parts.idleMs);
  }

  function schedule(delayMs: number): void {
    timer = setTimeout(() => {
      running = run();
    }, delayMs);
  }

  return {
    start: () => schedule(0),
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
