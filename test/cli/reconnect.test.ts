/** Which errors are retried, and which are permanent; and how a lost connection is reported. */

import { Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { isPermanent, lossLine, pauseMs } from "../../src/cli/reconnect.ts";
import { failureCodes } from "../../src/failures.ts";
import { statusDetails } from "./grpc-peer.ts";

/** An error of a call as grpc-js reports it; with `code`, a failure that the service returned. */
function errorOf(grpcCode: status, code?: string): ServiceError {
  const metadata = new Metadata();
  if (code !== undefined) metadata.set("grpc-status-details-bin", statusDetails(grpcCode, code));
  return Object.assign(new Error("failed"), { code: grpcCode, details: "failed", metadata });
}

test("of the service's failures, only internal_error, rate_limited and service_unavailable are retried", () => {
  const waitedOut = failureCodes.filter((code) => !isPermanent(errorOf(status.UNAVAILABLE, code)));
  expect(waitedOut.toSorted()).toEqual(["internal_error", "rate_limited", "service_unavailable"]);
});

test("of errors without a failure code, those that a broken connection can cause are retried", () => {
  const codes = Object.values(status).filter((code): code is status => typeof code === "number");
  expect(codes.filter((code) => !isPermanent(errorOf(code))).map((code) => status[code])).toEqual([
    "CANCELLED",
    "UNKNOWN",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "INTERNAL",
    "UNAVAILABLE",
  ]);
});

test("pauses between attempts double up to a second, each with a jitter of up to half its length", () => {
  for (const [attempts, longest] of [
    [1, 100],
    [2, 200],
    [4, 800],
    [5, 1_000],
    [50, 1_000],
  ] as const) {
    const pauses = Array.from({ length: 500 }, () => pauseMs(attempts));
    expect(Math.max(...pauses)).toBeLessThanOrEqual(longest);
    expect(Math.min(...pauses)).toBeGreaterThanOrEqual(longest / 2);
    expect(Math.max(...pauses) - Math.min(...pauses)).toBeGreaterThan(longest / 4);
  }
});

test.for([
  { isStill: false, json: false, line: "phoneproof: connection lost, trying again (3): \\x1b[2Jreset" },
  { isStill: true, json: false, line: "phoneproof: still no connection, trying again (3): \\x1b[2Jreset" },
  { isStill: false, json: true, line: undefined },
])("a lost connection, lasting: $isStill, with --json: $json, is reported as $line", ({
  isStill,
  json,
  line,
}) => {
  expect(lossLine({ reason: "\u001b[2Jreset", isStill }, json, " (3)")).toBe(line);
});

test("a lost connection that lasts is reported with --json as an error in JSON", () => {
  const line = lossLine({ reason: "reset", isStill: true }, true) ?? "";
  expect(JSON.parse(line).error).toMatchObject({ message: "reset" });
});
