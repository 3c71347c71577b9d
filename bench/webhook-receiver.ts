/** The merchant's endpoint in cycle.ts. It runs in the load generator's process, so that its cost counts as the generator's. */

import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as delay } from "node:timers/promises";

const timeoutMs = 120_000;

export class WebhookReceiver {
  readonly #server: Server;
  /** Ids of received events; a retry does not count twice. */
  readonly #received = new Set<string>();
  #wanted = Number.POSITIVE_INFINITY;
  #onAll: () => void = () => {};

  private constructor(server: Server) {
    this.#server = server;
    server.on("request", (request, response) => {
      request.resume();
      request.once("end", () => {
        response.writeHead(204).end();
        this.#received.add(String(request.headers["webhook-id"]));
        if (this.#received.size >= this.#wanted) this.#onAll();
      });
    });
  }

  static async open(): Promise<WebhookReceiver> {
    const receiver = new WebhookReceiver(createServer());
    receiver.#server.listen(0, "127.0.0.1");
    await once(receiver.#server, "listening");
    return receiver;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/webhooks`;
  }

  /** The number of different events received so far. */
  get events(): number {
    return this.#received.size;
  }

  /** Resolves once this many have been received since `forget()`. */
  async all(events: number): Promise<void> {
    const timer = new AbortController();
    const late = delay(timeoutMs, undefined, { signal: timer.signal }).then(() => {
      throw new Error(`only ${this.events} of ${events} webhooks arrived within ${timeoutMs / 1000} s`);
    });
    late.catch(() => {});
    const allArrived = new Promise<void>((resolve) => {
      this.#wanted = events;
      this.#onAll = resolve;
      if (this.#received.size >= events) resolve();
    });
    await Promise.race([allArrived, late]);
    timer.abort();
  }

  forget(): void {
    this.#received.clear();
    this.#wanted = Number.POSITIVE_INFINITY;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}
