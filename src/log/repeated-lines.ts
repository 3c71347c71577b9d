/** Lines that would be logged again and again, such as those of every job while the database is away. */

/** How long equal lines are only counted after one has been written. */
const countedMs = 10_000;

/** Errors whose text always differs must not fill the memory: beyond this, lines are written without being counted. */
const mostLines = 1_000;

export interface ErrorLine {
  readonly err: unknown;
  readonly requestId?: unknown;
  readonly [field: string]: unknown;
}

/** Writes a line, or counts it if it equals one that has been written: that one is then written again, with `repeated`. */
export type Repetitions = (line: ErrorLine, message: string, write: (line: ErrorLine) => void) => void;

export function countRepetitions(): Repetitions {
  const counted = new Map<string, number>();

  return (line, message, write) => {
    // Whoever asks for a request finds its own line.
    if (line.requestId !== undefined) {
      write(line);
      return;
    }
    const { err, ...others } = line;
    const key = JSON.stringify([message, others, textOf(err)]);
    const repeated = counted.get(key);
    if (repeated !== undefined) {
      counted.set(key, repeated + 1);
      return;
    }
    write(line);
    if (counted.size >= mostLines) return;
    counted.set(key, 0);
    const report = (): void => {
      const since = counted.get(key) ?? 0;
      if (since === 0) {
        counted.delete(key);
        return;
      }
      counted.set(key, 0);
      write({ ...line, repeated: since });
      setTimeout(report, countedMs).unref();
    };
    setTimeout(report, countedMs).unref();
  };
}

/**
 * With that of its causes: a failure's own is for callers; and of what it consists of: if none of a host's addresses answers, its
 * own is empty.
 */
function textOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const others: unknown[] = error instanceof AggregateError ? [...error.errors] : [];
  if (error.cause !== undefined) others.push(error.cause);
  return [String(error), ...others.map(textOf)].join(": ");
}
