/** A collector of spans over OTLP/HTTP that decodes protobuf's wire format by itself. */

import { once } from "node:events";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { gunzipSync } from "node:zlib";
import { vi } from "vitest";
import { atFileEnd } from "../harness/endings.ts";

export interface Link {
  readonly traceId: string;
  readonly spanId: string;
}

export interface CollectedSpan extends Link {
  /** Empty for the root of a trace. */
  readonly parentSpanId: string;
  readonly name: string;
  /** In milliseconds since the epoch, as is the next. */
  readonly startedAt: number;
  readonly endedAt: number;
  /** 1 internal, 2 server, 3 client, 5 consumer. */
  readonly kind: number;
  readonly attributes: Readonly<Record<string, unknown>>;
  readonly links: readonly Link[];
  /** Whether its status is an error. */
  readonly failed: boolean;
}

export interface Collector {
  readonly endpoint: string;
  readonly spans: CollectedSpan[];
  /** The decompressed bodies of all requests. */
  readonly bodies: Buffer[];
  readonly requests: { readonly path: string; readonly headers: IncomingHttpHeaders }[];
  readonly resources: Readonly<Record<string, unknown>>[];
  /** Waits for a span that satisfies `wanted`. */
  spanWhere(wanted: (span: CollectedSpan) => boolean): Promise<CollectedSpan>;
}

type Field = { readonly number: number; readonly bytes: Buffer; readonly value: bigint };

function* fieldsOf(message: Buffer): Iterable<Field> {
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = message.readUInt8(at++);
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  const nothing = Buffer.alloc(0);
  while (at < message.length) {
    const tag = Number(varint());
    const number = tag >> 3;
    switch (tag & 7) {
      case 0:
        yield { number, bytes: nothing, value: varint() };
        break;
      case 1:
        yield { number, bytes: message.subarray(at, at + 8), value: message.readBigUInt64LE(at) };
        at += 8;
        break;
      case 2: {
        const length = Number(varint());
        yield { number, bytes: message.subarray(at, at + length), value: 0n };
        at += length;
        break;
      }
      case 5:
        yield { number, bytes: nothing, value: BigInt(message.readUInt32LE(at)) };
        at += 4;
        break;
      default:
        throw new Error(`wire type ${tag & 7}`);
    }
  }
}

const all = (message: Buffer, number: number) =>
  [...fieldsOf(message)].filter((field) => field.number === number);
const one = (message: Buffer, number: number) => all(message, number)[0]?.bytes ?? Buffer.alloc(0);

/** Decodes repeated KeyValue. The service writes only strings, booleans and whole numbers. */
function attributesOf(pairs: readonly Field[]): Record<string, unknown> {
  return Object.fromEntries(
    pairs.map(({ bytes }) => {
      const [value] = fieldsOf(one(bytes, 2));
      const read = {
        1: () => value?.bytes.toString(),
        2: () => value?.value === 1n,
        3: () => Number(value?.value),
      };
      return [one(bytes, 1).toString(), read[value?.number as 1 | 2 | 3]?.()];
    }),
  );
}

const linkOf = (message: Buffer): Link => ({
  traceId: one(message, 1).toString("hex"),
  spanId: one(message, 2).toString("hex"),
});

function spanOf(message: Buffer): CollectedSpan {
  return {
    ...linkOf(message),
    parentSpanId: one(message, 4).toString("hex"),
    name: one(message, 5).toString(),
    kind: Number(all(message, 6)[0]?.value ?? 0n),
    startedAt: Number((all(message, 7)[0]?.value ?? 0n) / 1_000_000n),
    endedAt: Number((all(message, 8)[0]?.value ?? 0n) / 1_000_000n),
    attributes: attributesOf(all(message, 9)),
    links: all(message, 13).map(({ bytes }) => linkOf(bytes)),
    failed: Number(all(one(message, 15), 3)[0]?.value ?? 0n) === 2,
  };
}

export async function startCollector(): Promise<Collector> {
  const spans: CollectedSpan[] = [];
  const bodies: Buffer[] = [];
  const requests: Collector["requests"] = [];
  const resources: Record<string, unknown>[] = [];
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const sent = Buffer.concat(chunks);
    const body = request.headers["content-encoding"] === "gzip" ? gunzipSync(sent) : sent;
    requests.push({ path: request.url ?? "", headers: request.headers });
    bodies.push(body);
    for (const { bytes: ofResource } of all(body, 1)) {
      resources.push(attributesOf(all(one(ofResource, 1), 1)));
      for (const { bytes: ofScope } of all(ofResource, 2)) {
        spans.push(...all(ofScope, 2).map(({ bytes }) => spanOf(bytes)));
      }
    }
    response.writeHead(200, { "content-type": "application/x-protobuf" }).end();
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  atFileEnd(() => server.close());
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    bodies,
    requests,
    resources,
    spanWhere: (wanted) => vi.waitUntil(() => spans.find(wanted), { timeout: 45_000, interval: 20 }),
  };
}
