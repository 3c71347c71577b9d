/** What is waited out, and what would only be met again. */

import { create, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { AnySchema, anyPack } from "@bufbuild/protobuf/wkt";
import { Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { isPermanent, pauseMs } from "../../src/cli/reconnect.ts";
import { failureCodes } from "../../src/failures.ts";
import { ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";

/** An error of a call, as grpc-js tells it; with a code, the service's own. */
function errorOf(grpcCode: status, code?: string): ServiceError {
  const metadata = new Metadata();
  if (code !== undefined) {
    const detail = anyPack(ErrorDetailSchema, create(ErrorDetailSchema, { code }));
    // google.rpc.Status: 1 code, 2 message, 3 details.
    const bytes = new BinaryWriter()
      .tag(1, 0)
      .int32(grpcCode)
      .tag(3, 2)
      .bytes(toBinary(AnySchema, detail))
      .finish();
    metadata.set("grpc-status-details-bin", Buffer.from(bytes));
  }
  return Object.assign(new Error("failed"), { code: grpcCode, details: "failed", metadata });
}

test("of what the service says, it is waited out that it has no time, that it failed and that it was asked too often", () => {
  const waitedOut = failureCodes.filter((code) => !isPermanent(errorOf(status.UNAVAILABLE, code)));
  expect(waitedOut.toSorted()).toEqual(["internal_error", "rate_limited", "service_unavailable"]);
});

test("of what is between, whatever a connection may do", () => {
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

test("pauses double up to a second, each shortened by up to a half", () => {
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
