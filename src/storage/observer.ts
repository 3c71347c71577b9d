import type { Environment } from "../core/project.ts";
import type { Span } from "../core/tracing.ts";

/** Told of what the storage does, at most once a batch. */
export interface StorageObserver {
  /** Asked once for each operation. */
  batch(operation: string): BatchObserver;
  /** Verifications that this process has moved. */
  moved(transition: "cancelled" | "expired", environment: Environment, count: number): void;
  /** One entry for each verification that this process has verified: the seconds since its creation. */
  verified(environment: Environment, seconds: readonly number[]): void;
  /** Runs a statement, where the service is traced. `isExpected`: whether an error is an answer, and no failure of the database. */
  readonly statement?:
    | (<T>(name: string, work: () => Promise<T>, isExpected: (error: unknown) => boolean) => Promise<T>)
    | undefined;
}

export interface BatchObserver {
  /** How many items a batch had, how long its first one had waited, and how long it took. */
  ran(items: number, waitedMs: number, tookMs: number): void;
  /** Where the service is traced. */
  readonly spans?: BatchSpans | undefined;
}

export interface BatchSpans {
  /** That of whoever brings an item. */
  current(): Span | undefined;
  /** Runs a batch. */
  within<T>(items: readonly (Span | undefined)[], work: () => Promise<T>): Promise<T>;
}

/** For whoever counts nothing. */
export const unobserved: StorageObserver = {
  batch: () => ({ ran() {} }),
  moved: () => {},
  verified: () => {},
};
