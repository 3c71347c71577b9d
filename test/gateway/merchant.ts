/** A merchant's server, which uses the REST API. Every answer must be as the OpenAPI document describes it. */

import { expect } from "vitest";
import { undescribed } from "../harness/contract.ts";

export interface AnswerBody {
  id: string;
  status: string;
  environment: string;
  mode: string;
  phone: string | null;
  carrier: string | null;
  client_reference: string;
  state: string;
  created_at: string;
  expires_at: string;
  verified_at: string | null;
  server_time: string;
  verification_url: string;
  destination: string;
  sms_text: string;
  error: {
    code: string;
    message: string;
    request_id: string;
    fields?: { field: string; message: string }[];
  };
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  body: AnswerBody;
}

let keys = 0;

export function newIdempotencyKey(): string {
  keys += 1;
  return `attempt-${keys}`;
}

export function merchant(httpUrl: string, apiKey: string) {
  const call = async (method: string, path: string, init: RequestInit = {}): Promise<Answer> => {
    const headers = new Headers(init.headers);
    if (!headers.has("authorization")) headers.set("authorization", `Bearer ${apiKey}`);
    const response = await fetch(`${httpUrl}${path}`, { ...init, method, headers });
    const text = await response.text();
    const body = (text === "" ? {} : JSON.parse(text)) as AnswerBody;
    const answer = { status: response.status, headers: response.headers, text, body };
    expect(undescribed(method, path, answer)).toEqual([]);
    return answer;
  };
  return {
    call,
    /** A body of text or bytes is sent unchanged. */
    create: (
      body: unknown = {},
      idempotencyKey = newIdempotencyKey(),
      headers: Record<string, string> = {},
    ) =>
      call("POST", "/v1/verifications", {
        body: typeof body === "string" || body instanceof Uint8Array ? body : JSON.stringify(body),
        headers: { "content-type": "application/json", "idempotency-key": idempotencyKey, ...headers },
      }),
    read: (id: string) => call("GET", `/v1/verifications/${id}`),
    cancel: (id: string, init: RequestInit = {}) => call("POST", `/v1/verifications/${id}/cancel`, init),
  };
}

export type Merchant = ReturnType<typeof merchant>;

/** The usage headers, such as `503/1000`; null if both are absent. */
export function usageOf({ headers }: Answer): string | null {
  const calls = headers.get("x-usage-calls");
  const limit = headers.get("x-usage-limit");
  return calls === null && limit === null ? null : `${calls}/${limit}`;
}
