/** Requests as text, which can be varied as no client library allows, and what refusals of any request have in common. */

import { expect } from "vitest";
import type { AnswerBody } from "./merchant.ts";
import type { RawAnswer } from "./raw-http.ts";

/** The headers that every call has. */
export const authorisedBy = (key: string) => `Host: localhost\r\nAuthorization: Bearer ${key}\r\n`;
export const last = "Connection: close\r\n";
export const json = "Content-Type: application/json\r\nIdempotency-Key: hostile-1\r\n";
export const get = "GET /v1/verifications/vrf_none HTTP/1.1\r\n";
export const create = "POST /v1/verifications HTTP/1.1\r\n";
export const cancel = "POST /v1/verifications/vrf_none/cancel HTTP/1.1\r\n";

const contractStatuses = [200, 201, 400, 401, 403, 404, 409, 422, 429, 503];

export function errorOf(answer: RawAnswer): AnswerBody["error"] {
  return (JSON.parse(answer.body) as AnswerBody).error;
}

export function expectApiError(answer: RawAnswer | undefined, status: number, code: string): void {
  expect(answer).toMatchObject({ status });
  if (answer === undefined) return;
  expect(contractStatuses).toContain(answer.status);
  const error = errorOf(answer);
  expect(JSON.parse(answer.body)).toEqual({
    error: { code, message: expect.any(String), request_id: expect.stringMatching(/^req_[0-9a-z]{26}$/) },
  });
  expect(answer.headers.get("x-request-id")).toBe(error.request_id);
  expect(answer.headers.get("content-type")).toBe("application/json; charset=utf-8");
  expect(answer.headers.get("cache-control")).toBe("no-store");
}
