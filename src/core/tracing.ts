/** What the rooms need of tracing. What does it is loaded only where the service is traced. */

import { Failure } from "../failures.ts";

export type SpanKind = "server" | "client" | "consumer" | "internal";

/** Never a phone, a code, a text, a URL or a secret. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null | undefined>>;

export interface Span {
  /** As W3C Trace Context writes it; null where it is not sampled, and nobody will see it. */
  readonly traceparent: string | null;
  /** What is begun meanwhile is a part of it. */
  run<T>(work: () => T): T;
  /** What is null or undefined is left out. */
  set(attributes: SpanAttributes): void;
  link(traceparent: string): void;
  /** `refused`: whoever asked is at fault, and the work itself did not fail. */
  fail(reason: string, refused?: boolean): void;
  /** `at`: milliseconds since the epoch, where it was over before. */
  end(at?: number): void;
}

export interface Tracing {
  /**
   * Under the span that is under way here, or as the first of a trace of its own. `headers`: under the one that they
   * name, where they do; `root`: under none.
   */
  begin(
    name: string,
    options: {
      readonly kind: SpanKind;
      readonly headers?: (name: string) => string | undefined;
      readonly under?: Span | undefined;
      readonly root?: boolean;
    },
  ): Span;
  /** The span that is under way here. */
  current(): Span | undefined;
  /** What tells somebody else which span theirs belong to: `traceparent`, `tracestate`. */
  headers(): Record<string, string>;
  /** Sends what has not been sent. */
  close(): Promise<void>;
}

/** Under which span a verification was created, kept for whoever changes it or tells of it later. */
export interface CreationTraces {
  /** Does not wait, and is not missed where it fails. */
  note(verificationId: string, traceparent: string): void;
  find(verificationId: string): Promise<string | null>;
}

/**
 * Work as a span. Of an error its code or its name is kept: a message may quote what no span may hold. A refusal of the caller's
 * doing, and whatever else `isExpected` says, is no error of the work.
 */
export async function within<T>(
  span: Span,
  work: () => Promise<T>,
  isExpected: (error: unknown) => boolean = isRefusal,
): Promise<T> {
  try {
    return await span.run(work);
  } catch (error) {
    span.fail(reasonOf(error), isExpected(error));
    throw error;
  } finally {
    span.end();
  }
}

export const isRefusal = (error: unknown): boolean => error instanceof Failure && error.status < 500;

export function reasonOf(error: unknown): string {
  if (error instanceof Failure) return error.code;
  return error instanceof Error ? error.name : "unknown";
}
