import type { Environment } from "../core/project.ts";
import type { Span } from "../core/tracing.ts";

/** Receives what the storage does. */
export interface StorageObserver {
  /** Called once per operation. */
  batch(operation: string): BatchObserver;
  /** This process has moved `count` verifications to that state. */
  moved(transition: "cancelled" | "expired", environment: Environment, count: number): void;
  /** A statement of this process has charged so many calls as usage. */
  charged(calls: number): void;
  /** One entry for each verification that this process has verified: the seconds since its creation. */
  verified(environment: Environment, seconds: readonly number[]): void;
  /**
   * Runs a statement in a span; set only if tracing is on. `isExpected`: whether an error is a normal outcome of the statement
   * and no failure of the database.
   */
  readonly statement?:
    | (<T>(name: string, work: () => Promise<T>, isExpected: (error: unknown) => boolean) => Promise<T>)
    | undefined;
}

export interface BatchObserver {
  /** How many items a batch had, how long its first one had waited, and how long it took. */
  ran(items: number, waitedMs: number, tookMs: number): void;
  /** Set only if tracing is on. */
  readonly spans?: BatchSpans | undefined;
}

export interface BatchSpans {
  /** The span of the request that submits an item. */
  current(): Span | undefined;
  /** Runs a batch in a span of its own, linked to those of its items. */
  within<T>(items: readonly (Span | undefined)[], work: () => Promise<T>): Promise<T>;
}

/** Ignores everything. */
export const unobserved: StorageObserver = {
  batch: () => ({ ran() {} }),
  moved: () => {},
  charged: () => {},
  verified: () => {},
};
