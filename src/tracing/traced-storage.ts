import { type Span, type Tracing, within } from "../core/tracing.ts";

/**
 * Wraps a batch in a span: a child of its first item's span, and linked in both directions with the spans of the other items.
 */
export function tracedBatches(tracing: Tracing, operation: string) {
  return {
    current: () => tracing.current(),
    within<T>(items: readonly (Span | undefined)[], work: () => Promise<T>): Promise<T> {
      const [first, ...others] = items.filter((item) => item !== undefined);
      const span = tracing.begin(`storage ${operation}`, {
        kind: "internal",
        ...(first ? { under: first } : { root: true }),
      });
      span.set({ "db.operation.batch.size": items.length });
      for (const other of others) {
        if (other.traceparent !== null) span.link(other.traceparent);
        if (span.traceparent !== null) other.link(span.traceparent);
      }
      return within(span, work);
    },
  };
}

/** Wraps a statement in a span if a span is active: periodic background work is not traced. */
export function tracedStatements(tracing: Tracing) {
  return <T>(name: string, work: () => Promise<T>, isExpected: (error: unknown) => boolean): Promise<T> => {
    if (tracing.current() === undefined) return work();
    const span = tracing.begin(name, { kind: "client" });
    span.set({ "db.system.name": "postgresql", "db.query.summary": name });
    return within(span, work, isExpected);
  };
}
