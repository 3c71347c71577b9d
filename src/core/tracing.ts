/** The tracing interface the other modules use. Its implementation is loaded only if the service is traced. */

import { Failure } from "../failures.ts";

export type SpanKind = "server" | "client" | "consumer" | "internal";

/** Never contains a phone, a code, a message text, a URL or a secret. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null | undefined>>;

export interface Span {
  /** The W3C `traceparent`; null if the span is not sampled and so is never exported. */
  readonly traceparent: string | null;
  /** Spans begun while `work` runs become children of this span. */
  run<T>(work: () => T): T;
  /** Attributes that are null or undefined are skipped. */
  set(attributes: SpanAttributes): void;
  link(traceparent: string): void;
  /** `refused`: the caller is at fault and the work itself did not fail. */
  fail(reason: string, refused?: boolean): void;
  /** `at`: end time in milliseconds since the epoch, if the work ended before this call. */
  end(at?: number): void;
}

export interface Tracing {
  /**
   * Begins a span under the active span, or as the root of a new trace if there is none. `headers`: under the span that these
   * trace context headers name, or as a root if they name none; `under`: under this span; `root`: as a root.
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
  /** The currently active span. */
  current(): Span | undefined;
  /** The headers that propagate the current trace context to another service: `traceparent`, `tracestate`. */
  headers(): Record<string, string>;
  /** Flushes the spans that have not been exported yet. */
  close(): Promise<void>;
}

/** Keeps the `traceparent` of the span in which a verification was created, so that later spans about it can link to it. */
export interface CreationTraces {
  /** Does not wait for the write; a failed write only loses a link. */
  note(verificationId: string, traceparent: string): void;
  find(verificationId: string): Promise<string | null>;
}

/**
 * Runs `work` inside `span`. Of an error only the code or the class name is recorded, since its message may quote data that no
 * span may hold. Errors for which `isExpected` is true, by default refusals caused by the caller, do not mark the span as
 * failed.
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
