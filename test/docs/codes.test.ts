/** The tables of failure codes in the docs match src/failures.ts. */

import { expect, test } from "vitest";
import { type ContractCode, contractCodes, Failure, type FailureCode } from "../../src/failures.ts";
import { readPage } from "./pages.ts";

/** The table rows of a page whose first cell matches. */
const rowsOf = (file: string, first: RegExp) =>
  readPage(file)
    .prose.split("\n")
    .map((line) => line.split("|").map((cell) => cell.trim()))
    .filter(([, cell = ""]) => first.test(cell));

test("docs/idempotency-and-errors.md has the failure codes of the REST API with their statuses", () => {
  const documented = rowsOf("docs/idempotency-and-errors.md", /^[45]\d\d$/)
    .filter(([, , codes = ""]) => /^(`[a-z_]+`(, )?)+$/.test(codes))
    .flatMap(([, status, codes = ""]) =>
      [...codes.matchAll(/`(\w+)`/g)].map(([, code = ""]) => [code, Number(status)]),
    );
  const kept = contractCodes.map((code) => [code, new Failure(code).status]);
  expect(Object.fromEntries(documented)).toEqual(Object.fromEntries(kept));
});

test("docs/grpc.md has the failure codes of administrative calls with their gRPC statuses", () => {
  const kept: Record<Exclude<FailureCode, ContractCode>, true> = {
    not_found: true,
    number_exists: true,
    number_pending: true,
    too_many_api_keys: true,
    webhook_disabled: true,
  };
  const documented = rowsOf("docs/grpc.md", /^`[a-z]+_[a-z_]+`$/).map(([, code = "", status = ""]) => [
    code.replaceAll("`", ""),
    status.replaceAll("`", "").toLowerCase(),
  ]);
  expect(Object.fromEntries(documented)).toEqual(
    Object.fromEntries(Object.keys(kept).map((code) => [code, new Failure(code as FailureCode).grpc])),
  );
});
