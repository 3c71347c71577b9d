/** What a load generator counts, for any protocol. */

export interface LoadResult {
  /** Answers as expected; any other answer ends the run. */
  readonly answers: number;
  /** From the first request to the last answer. */
  readonly seconds: number;
  /** In milliseconds. */
  readonly p50: number;
  readonly p99: number;
  /** CPU of this process in microseconds, including the generation of the requests. */
  readonly cpuMicroseconds: number;
}

/** The counts of one round. */
export class Tally {
  readonly #startedAt = performance.now();
  readonly #cpuAtStart = process.cpuUsage();
  readonly #latencies: number[] = [];
  #answers = 0;

  /** `answers` arrived together, this many milliseconds after they were requested. */
  add(milliseconds: number, answers = 1): void {
    this.#latencies.push(milliseconds);
    this.#answers += answers;
  }

  result(): LoadResult {
    const seconds = (performance.now() - this.#startedAt) / 1000;
    const { user, system } = process.cpuUsage(this.#cpuAtStart);
    const sorted = Float64Array.from(this.#latencies).sort();
    return {
      answers: this.#answers,
      seconds,
      p50: quantile(sorted, 0.5),
      p99: quantile(sorted, 0.99),
      cpuMicroseconds: user + system,
    };
  }
}

/** A quantile of numbers in ascending order; NaN if there are none. */
function quantile(sorted: ArrayLike<number>, share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((one, other) => one - other);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? Number.NaN) + upper) / 2;
}
