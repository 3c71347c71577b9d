/** A verification and its window, as seen by the person's browser and phone. */
import { afterEach } from "vitest";
import type { SimulatedReceipt, WindowState } from "../../src/window/browser/state.ts";
import { merchant } from "../gateway/merchant.ts";
import type { TestProject, TestService } from "../harness/service.ts";

export interface OpenWindow {
  readonly id: string;
  /** `verification_url`. */
  readonly url: string;
  readonly token: string;
  readonly to: string;
  readonly text: string;
  readonly state: string;
  get(path?: string, headers?: Record<string, string>): Promise<Page>;
  /** Sends a message from the simulated phone, as the page's script does. */
  play(message: Partial<Record<"from" | "text" | "carrier", string>>): Promise<Response>;
  receipt(message: Partial<Record<"from" | "text" | "carrier", string>>): Promise<SimulatedReceipt>;
  cancel(): Promise<void>;
}

export interface Page {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

export const android =
  "Mozilla/5.0 (Linux; Android 15; SM-S931N) AppleWebKit/537.36 Chrome/142.0 Mobile Safari/537.36";
export const iphone =
  "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148 Safari/604.1";

/** Creates a verification, by default in the test environment. */
export async function createWindow(
  service: TestService,
  project: TestProject,
  request: object = {},
  environment: "test" | "live" = "test",
): Promise<OpenWindow> {
  const shop = merchant(service.httpUrl, environment === "test" ? project.testKey : project.liveKey);
  const { status, text, body } = await shop.create(request);
  if (status !== 201) throw new Error(`not created: ${status} ${text}`);
  const url = body.verification_url;
  const play: OpenWindow["play"] = (message) =>
    fetch(`${url}/messages`, {
      method: "POST",
      body: new URLSearchParams({ from: "010-1234-5678", text: body.sms_text, carrier: "SKT", ...message }),
      headers: { accept: "application/json" },
    });
  return {
    id: body.id,
    url,
    token: url.split("/").at(-1) ?? "",
    to: body.destination,
    text: body.sms_text,
    state: body.state,
    get: (path = "", headers = {}) => getPage(url + path, headers),
    play,
    receipt: async (message) => (await play(message)).json() as Promise<SimulatedReceipt>,
    async cancel() {
      await shop.cancel(body.id);
    },
  };
}

export async function getPage(url: string, headers: Record<string, string> = {}): Promise<Page> {
  const response = await fetch(url, { headers: { "accept-language": "ko", ...headers }, redirect: "manual" });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

export interface StreamedEvent {
  readonly event: string;
  readonly state: WindowState;
}

export interface Stream {
  readonly headers: Headers;
  /** The next state event, or null at the end of the stream. */
  next(): Promise<StreamedEvent | null>;
  close(): void;
}

const streams: Stream[] = [];

afterEach(() => {
  for (const stream of streams.splice(0)) stream.close();
});

/** Opens the window's event stream; closed at the end of the test. */
export async function openStream(url: string): Promise<Stream> {
  const controller = new AbortController();
  const response = await fetch(`${url}/events`, { signal: controller.signal });
  if (response.status !== 200 || !response.body) throw new Error(`no stream: ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  const stream: Stream = {
    headers: response.headers,
    async next() {
      for (;;) {
        const end = buffered.indexOf("\n\n");
        if (end === -1) {
          const { done, value } = await reader.read();
          if (done) return null;
          buffered += value;
          continue;
        }
        const fields = new Map(buffered.slice(0, end).split("\n").map(fieldOf));
        buffered = buffered.slice(end + 2);
        if (fields.get("event") !== "state") continue;
        return {
          event: "state",
          state: JSON.parse(fields.get("data") ?? "null"),
        };
      }
    },
    close: () => controller.abort(),
  };
  streams.push(stream);
  return stream;
}

function fieldOf(line: string): [string, string] {
  const colon = line.indexOf(":");
  return [line.slice(0, colon), line.slice(colon + 1).trim()];
}
