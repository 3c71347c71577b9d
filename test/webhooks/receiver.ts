/** A merchant's endpoint on this machine. */

import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, type ServerResponse } from "node:http";
import { Webhook } from "standardwebhooks";
import { Webhook as SvixWebhook } from "svix";
import { expect, vi } from "vitest";
import { atFileEnd } from "../harness/endings.ts";

export interface Received {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
  /** `performance.now()` at the end of the request. */
  readonly at: number;
}

/** Answers a request. If it does not end the response, the request hangs. */
export type Answer = (response: ServerResponse, request: Received) => void;

export interface Receiver {
  /** The URL without a path. */
  readonly origin: string;
  readonly url: string;
  readonly received: Received[];
  /** Answers requests from now on. */
  answer: Answer;
  close(): Promise<void>;
}

export const answerWith =
  (status: number, headers: Record<string, string> = {}, body = ""): Answer =>
  (response) =>
    response.writeHead(status, headers).end(body);

/** Refuses with a Retry-After of an hour: by the schedule alone the next attempt could come during the test. */
export const refuseForLong = (status: number, body = ""): Answer =>
  answerWith(status, { "retry-after": "3600" }, body);

export const hang: Answer = () => {};

/** Answers 204 by default. Closed at the end of the test file. */
export async function startReceiver(answer: Answer = answerWith(204)): Promise<Receiver> {
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { url = "", headers } = request;
      const body = Buffer.concat(chunks).toString("utf8");
      const received = { path: url, headers, body, at: performance.now() };
      receiver.received.push(received);
      receiver.answer(response, received);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  const origin = `http://127.0.0.1:${port}`;
  const receiver: Receiver = {
    origin,
    url: `${origin}/hook`,
    received: [],
    answer,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  atFileEnd(() => receiver.close());
  return receiver;
}

/** Waits for `count` requests and returns them. */
export async function untilReceived(receiver: Receiver, count = 1): Promise<Received[]> {
  await vi.waitUntil(() => receiver.received.length >= count, { timeout: 45_000, interval: 5 });
  return receiver.received.slice(0, count);
}

export interface Payload {
  readonly type: string;
  readonly timestamp: string;
  readonly data: Record<string, unknown>;
}

/** The event, after two independent verifiers have accepted it with this secret, and only with it. */
export function verified({ body, headers }: Received, secret: string): Payload {
  const given = headers as Record<string, string>;
  const another = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;
  for (const Verifier of [Webhook, SvixWebhook]) {
    new Verifier(secret).verify(body, given);
    expect(() => new Verifier(another).verify(body, given)).toThrow();
    expect(() => new Verifier(secret).verify(`${body} `, given)).toThrow();
  }
  return JSON.parse(body);
}

/** Whether a verifier with only this secret accepts the request. */
export function isVerifiedBy({ body, headers }: Received, secret: string): boolean {
  try {
    new Webhook(secret).verify(body, headers as Record<string, string>);
    return true;
  } catch {
    return false;
  }
}
