/** Metrics of calls over HTTP and gRPC. Every label takes only the few values that the code can give it. */

import { Counter, Gauge, type Registry } from "prom-client";
import {
  type AnsweredRequest,
  type AnsweredRpc,
  type RefusedConnection,
  type RefusedStream,
  refusedConnections,
  refusedStreams,
} from "../core/answered-call.ts";
import { type FailureCode, failureCodes } from "../failures.ts";
import { briefBuckets, HistogramFamily, type Observed } from "./histogram-family.ts";

/** Other methods have no route and share one label, so that clients cannot make up labels. */
const knownMethods = new Set(["GET", "HEAD", "POST"]);

export function createCallMetrics(registry: Registry) {
  const requests = new HistogramFamily({
    name: "phoneproof_http_request_duration_seconds",
    help: "HTTP requests of merchants and windows by method, route and status; status none: the client disconnected",
    buckets: briefBuckets,
    registry,
  });
  const rpcs = new HistogramFamily({
    name: "phoneproof_rpc_duration_seconds",
    help: "Unary gRPC calls by method and code",
    buckets: briefBuckets,
    registry,
  });
  const streamsEnded = new Counter({
    name: "phoneproof_rpc_streams_ended_total",
    help: "gRPC streams that have ended, by method and code",
    labelNames: ["method", "code"],
    registers: [registry],
  });
  const streamsOpen = new Gauge({
    name: "phoneproof_rpc_streams_open",
    help: "gRPC streams that are open, by method",
    labelNames: ["method"],
    registers: [registry],
  });
  // All codes from the start: a counter that first appears as 1 has not increased, to those who watch its rate.
  const refusals = { http: countsOf(failureCodes), grpc: countsOf(failureCodes) };
  new Counter({
    name: "phoneproof_refusals_total",
    help: "Refused calls, by face and error code",
    labelNames: ["face", "code"],
    registers: [registry],
    collect() {
      this.reset();
      for (const [face, counts] of Object.entries(refusals)) {
        for (const [code, count] of counts) this.inc({ face, code }, count);
      }
    },
  });
  const streamsRefused = new Counter({
    name: "phoneproof_rpc_streams_refused_total",
    help: "gRPC streams that were refused before they were calls, by reason",
    labelNames: ["reason"],
    registers: [registry],
  });
  for (const reason of refusedStreams) streamsRefused.inc({ reason }, 0);
  const connectionsRefused = new Counter({
    name: "phoneproof_rpc_connections_refused_total",
    help: "Connections to the gRPC port that were ended because of what they sent, by reason",
    labelNames: ["reason"],
    registers: [registry],
  });
  for (const reason of refusedConnections) connectionsRefused.inc({ reason }, 0);
  let charged = 0;
  new Counter({
    name: "phoneproof_usage_calls_total",
    help: "Calls that were counted as a project's usage",
    registers: [registry],
    collect() {
      this.reset();
      this.inc(charged);
    },
  });

  // Nested by label: building a combined string as key costs ten times as much.
  const requestsOf = new Map<string, Map<string, Map<number | null, Observed>>>();
  const rpcsOf = new Map<string, Map<string, Observed>>();

  return {
    watchTurns(turns: { waitedMs(): number }): void {
      new Gauge({
        name: "phoneproof_http_turn_seconds",
        help: "How long the connection that is next to be read has been waiting; 0 unless the process is overloaded",
        registers: [registry],
        collect() {
          this.set(turns.waitedMs() / 1000);
        },
      });
    },

    answered({ method, route = "none", status, failureCode, seconds }: AnsweredRequest): void {
      const known = knownMethods.has(method) ? method : "other";
      const ofRoute = requestsOf.get(route) ?? kept(requestsOf, route, new Map());
      const ofMethod = ofRoute.get(known) ?? kept(ofRoute, known, new Map());
      const observed =
        ofMethod.get(status) ??
        kept(ofMethod, status, requests.of({ method: known, route, status: String(status ?? "none") }));
      observed.observe(seconds);
      countRefusal(refusals.http, failureCode);
    },

    /** Counts a refusal that is part of no call as it is reported otherwise. */
    refusedLate(face: "http" | "grpc", code: FailureCode): void {
      countRefusal(refusals[face], code);
    },

    charged(calls: number): void {
      charged += calls;
    },

    rpcStreamRefused(reason: RefusedStream): void {
      streamsRefused.inc({ reason });
    },

    rpcConnectionRefused(reason: RefusedConnection): void {
      connectionsRefused.inc({ reason });
    },

    rpcBegun(method: string, streaming: boolean): void {
      if (streaming) streamsOpen.inc({ method });
    },

    rpcAnswered({ method, streaming, code, failureCode, seconds }: AnsweredRpc): void {
      if (streaming) {
        streamsOpen.dec({ method });
        streamsEnded.inc({ method, code });
      } else {
        const ofMethod = rpcsOf.get(method) ?? kept(rpcsOf, method, new Map());
        const observed = ofMethod.get(code) ?? kept(ofMethod, code, rpcs.of({ method, code }));
        observed.observe(seconds);
      }
      countRefusal(refusals.grpc, failureCode);
    },
  };
}

function countsOf(codes: readonly FailureCode[]): Map<FailureCode, number> {
  return new Map(codes.map((code) => [code, 0]));
}

/** Undefined: the call was not refused, though its client may have disconnected. */
function countRefusal(counts: Map<FailureCode, number>, code: FailureCode | undefined): void {
  if (code !== undefined) counts.set(code, (counts.get(code) ?? 0) + 1);
}

/** Puts a value into a map and returns it: `map.get(key) ?? kept(map, key, made())`. */
function kept<Key, Value>(map: Map<Key, Value>, key: Key, value: Value): Value {
  map.set(key, value);
  return value;
}
