/** A proxy between a merchant and the service that applies the next of a list of faults to each request. */

import { once } from "node:events";
import { Agent, createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import { atFileEnd } from "../harness/endings.ts";

export const faults = [
  /** The connection breaks before the request has reached the service. */
  "cut before",
  /** The request reaches the service, and its answer is lost. */
  "cut after",
  /** Half of the answer arrives, then the connection breaks. */
  "half",
  /** Half of the answer arrives, then nothing more. */
  "stall",
  /** The answer arrives after the client has given up the attempt. */
  "slow",
  /** The request reaches the service after the client has given up the attempt. */
  "late",
  /** The proxy answers 502, and the request has not reached the service. */
  "refused",
  /** The proxy answers 502, and the request has reached the service. */
  "refused after",
] as const;

export type Fault = (typeof faults)[number];

export interface FaultyProxy {
  readonly url: string;
  /** The arrival time of each request, by `performance.now()`. */
  readonly arrivals: number[];
  /** Sets the faults of the next requests; those after them pass. */
  meet(...faults: readonly (Fault | Refusal)[]): void;
  /** Resolves when every request that was held back has been answered by the service. */
  settled(): Promise<void>;
}

/** A refusal in the service's format, answered by the proxy. */
export interface Refusal {
  readonly status: number;
  readonly code?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

interface Answer {
  readonly status: number;
  readonly headers: IncomingMessage["headers"];
  readonly body: Buffer;
}

/** `timeoutMs`: the client's timeout for an attempt. */
export async function startFaultyProxy(target: string, timeoutMs: number): Promise<FaultyProxy> {
  const script: (Fault | Refusal)[] = [];
  const arrivals: number[] = [];
  const underWay = new Set<Promise<unknown>>();
  const agent = new Agent({ keepAlive: true });

  async function forward(incoming: IncomingMessage, body: Buffer): Promise<Answer> {
    const { method, url, headers } = incoming;
    const outgoing = request(`${target}${url}`, { method, headers, agent });
    outgoing.end(body);
    const [response] = (await once(outgoing, "response")) as [IncomingMessage];
    return { status: response.statusCode ?? 0, headers: response.headers, body: await whole(response) };
  }

  async function handle(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    arrivals.push(performance.now());
    const body = await whole(incoming);
    const fault = script.shift();
    const cut = () => void incoming.socket.destroy();
    if (typeof fault === "object") return refuse(response, fault);
    if (fault === "cut before") return cut();
    if (fault === "refused") return badGateway(response);
    if (fault === "late") await pastTimeout();
    const { status, headers, body: answered } = await forward(incoming, body);
    if (fault === "cut after") return cut();
    if (fault === "refused after") return badGateway(response);
    if (fault === "slow") await pastTimeout();
    response.writeHead(status, headers);
    if (fault !== "half" && fault !== "stall") {
      response.end(answered);
      return;
    }
    response.write(answered.subarray(0, answered.length / 2), () => {
      if (fault === "half") cut();
    });
  }

  const pastTimeout = () => new Promise((resolve) => setTimeout(resolve, timeoutMs * 1.5));

  const server = createServer((incoming, response) => {
    const handling = handle(incoming, response);
    underWay.add(handling);
    handling.finally(() => underWay.delete(handling));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const settled = async () => void (await Promise.all(underWay));
  atFileEnd(async () => {
    // A client that gave up does not wait for the answer to its request.
    await settled();
    agent.destroy();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  const { port } = server.address() as { port: number };
  return {
    url: `http://127.0.0.1:${port}`,
    arrivals,
    meet(...next) {
      script.splice(0, script.length, ...next);
    },
    settled,
  };
}

function badGateway(response: ServerResponse): void {
  response.writeHead(502, { "content-type": "text/html" }).end("<h1>Bad Gateway</h1>");
}

function refuse(response: ServerResponse, { status, code, headers = {} }: Refusal): void {
  const body = code === undefined ? "" : JSON.stringify({ error: { code, message: "not now" } });
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(body);
}

async function whole(message: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of message as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks);
}
