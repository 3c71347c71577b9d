/** One run of a command: its connection to the service and its output format. */

import { findAddress, findToken } from "./address.ts";
import { ServiceClient } from "./client.ts";
import { type Json, safeJson } from "./terminal.ts";

export interface GlobalOptions {
  readonly address?: string;
  readonly token?: string;
  readonly json?: boolean;
}

export class Session {
  readonly client: ServiceClient;
  readonly json: boolean;

  constructor(client: ServiceClient, json: boolean) {
    this.client = client;
    this.json = json;
  }

  /** Prints one JSON object, or text for a person that is already free of control characters. */
  answer(object: Json, text: () => string): void {
    process.stdout.write(`${this.json ? safeJson(object) : text()}\n`);
  }

  close(): void {
    this.client.close();
  }
}

export function openSession({ address, token, json }: GlobalOptions): Session {
  const service = findAddress(address);
  return new Session(new ServiceClient(service, findToken(token, service)), json === true);
}
