/**
 * The tracing implementation: OpenTelemetry, exporting over OTLP. The exporter reads endpoint, headers, timeout, compression
 * and certificates from the standard environment variables, and the resource the service's name and attributes. Nothing is
 * registered globally.
 */

import { setTimeout as delay } from "node:timers/promises";
import {
  type Attributes,
  type Context,
  type Span as OtelSpan,
  SpanKind as OtelSpanKind,
  ROOT_CONTEXT,
  SpanStatusCode,
  TraceFlags,
  trace,
} from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { ExportResultCode, parseTraceParent, W3CTraceContextPropagator } from "@opentelemetry/core";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { detectResources, envDetector, resourceFromAttributes } from "@opentelemetry/resources";
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type Sampler,
  type SpanExporter,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from "@opentelemetry/sdk-trace";
import type { Span, SpanAttributes, SpanKind, Tracing } from "../core/tracing.ts";
import { version } from "../version.ts";

/** How long shutdown waits for the last spans to be exported: the exporter by itself would retry for eight seconds. */
const lastSpansMs = 2_000;

export interface TracingSettings {
  /** The value of OTEL_TRACES_SAMPLER. */
  readonly sampler: string;
  readonly samplerRatio: number;
  /** The interval between exports. */
  readonly scheduleDelayMs: number;
}

/** Whether the collector accepts spans: those it does not accept are lost, and the provider itself reports that to nobody. */
export interface CollectorEvents {
  onLost(error: Error | undefined): void;
  onFound(): void;
}

const kinds: Record<SpanKind, OtelSpanKind> = {
  server: OtelSpanKind.SERVER,
  client: OtelSpanKind.CLIENT,
  consumer: OtelSpanKind.CONSUMER,
  internal: OtelSpanKind.INTERNAL,
};

function samplerOf({ sampler, samplerRatio }: TracingSettings): Sampler {
  const name = sampler.replace("parentbased_", "");
  const root =
    name === "always_on"
      ? new AlwaysOnSampler()
      : name === "always_off"
        ? new AlwaysOffSampler()
        : new TraceIdRatioBasedSampler(samplerRatio);
  return sampler === name ? root : new ParentBasedSampler({ root });
}

function observed(exporter: SpanExporter, { onLost, onFound }: CollectorEvents): SpanExporter {
  let isLost = false;
  return {
    export(spans, done) {
      exporter.export(spans, (result) => {
        const wasLost = isLost;
        isLost = result.code !== ExportResultCode.SUCCESS;
        if (isLost && !wasLost) onLost(result.error);
        if (!isLost && wasLost) onFound();
        done(result);
      });
    },
    shutdown: () => exporter.shutdown(),
  };
}

export function openTracing(settings: TracingSettings, events: CollectorEvents): Tracing {
  const provider = new TracerProvider({
    resource: resourceFromAttributes({ "service.name": "phoneproof", "service.version": version }).merge(
      detectResources({ detectors: [envDetector] }),
    ),
    sampler: samplerOf(settings),
    spanProcessors: [
      new BatchSpanProcessor({
        exporter: observed(new OTLPTraceExporter(), events),
        scheduledDelayMillis: settings.scheduleDelayMs,
      }),
    ],
  });
  const tracer = provider.getTracer("phoneproof");
  const contexts = new AsyncLocalStorageContextManager().enable();
  const propagator = new W3CTraceContextPropagator();
  const key = Symbol("span");

  /** A span, and the context in which it is active. */
  class ContextSpan implements Span {
    readonly #span: OtelSpan;
    readonly context: Context;

    constructor(span: OtelSpan, parent: Context) {
      this.#span = span;
      this.context = trace.setSpan(parent, span).setValue(key, this);
    }

    get traceparent(): string | null {
      const { traceId, spanId, traceFlags } = this.#span.spanContext();
      return (traceFlags & TraceFlags.SAMPLED) === 0 ? null : `00-${traceId}-${spanId}-01`;
    }

    run<T>(work: () => T): T {
      return contexts.with(this.context, work);
    }

    set(attributes: SpanAttributes): void {
      const given = Object.entries(attributes).filter(([, value]) => value !== null && value !== undefined);
      this.#span.setAttributes(Object.fromEntries(given) as Attributes);
    }

    link(traceparent: string): void {
      const context = parseTraceParent(traceparent);
      if (context !== null) this.#span.addLink({ context });
    }

    fail(reason: string, refused = false): void {
      this.#span.setAttribute("error.type", reason);
      if (!refused) this.#span.setStatus({ code: SpanStatusCode.ERROR });
    }

    end(at?: number): void {
      this.#span.end(at);
    }
  }

  const current = () => contexts.active().getValue(key) as ContextSpan | undefined;

  return {
    begin(name, { kind, headers, under, root = false }) {
      let parent = under === undefined ? contexts.active() : (under as ContextSpan).context;
      if (root) parent = ROOT_CONTEXT;
      if (headers) {
        parent = propagator.extract(ROOT_CONTEXT, headers, {
          get: (carrier, header) => carrier(header),
          keys: () => [],
        });
      }
      return new ContextSpan(tracer.startSpan(name, { kind: kinds[kind] }, parent), parent);
    },

    current,

    headers() {
      const carrier: Record<string, string> = {};
      propagator.inject(contexts.active(), carrier, {
        set: (into, header, value) => {
          into[header] = value;
        },
      });
      return carrier;
    },

    // An unavailable collector must not delay the shutdown or make it fail.
    close: () =>
      Promise.race([provider.shutdown().catch(() => {}), delay(lastSpansMs, undefined, { ref: false })]),
  };
}
