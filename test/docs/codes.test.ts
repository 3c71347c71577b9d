/** The documents' tables of codes are those of the catalogue. */

import { expect, test } from "vitest";
import { type ContractCode, contractCodes, Failure, type FailureCode } from "../../src/failures.ts";
import { readPage } from "./pages.ts";

/** The lines of a table whose first cell is as given. */
const rowsOf = (file: string, first: RegExp) =>
  readPage(file)
    .prose.split("\n")
    .map((line) => line.split("|").map((cell) => cell.trim()))
    .filter(([, cell = ""]) => first.test(cell));

test("those that merchants meet, by their status", () => {
  const told = rowsOf("docs/idempotency-and-errors.md", /^[45]\d\d$/)
    .filter(([, , codes = ""]) => /^(`[a-z_]+`(, )?)+$/.test(codes))
    .flatMap(([, status, codes = ""]) =>
      [...codes.matchAll(/`(\w+)`/g)].map(([, code = ""]) => [code, Number(status)]),
    );
  const kept = contractCodes.map((code) => [code, new Failure(code).status]);
  expect(Object.fromEntries(told)).toEqual(Object.fromEntries(kept));
});

test("those that administration alone meets, by their gRPC status", () => {
  const kept: Record<Exclude<FailureCode, ContractCode>, true> = {
    not_found: true,
    number_exists: true,
    number_pending: true,
    too_many_api_keys: true,
    webhook_disabled: true,
  };
  const told = rowsOf("docs/grpc.md", /^`[a-z]+_[a-z_]+`$/).map(([, code = "", status = ""]) => [
    code.replaceAll("`", ""),
    status.replaceAll("`", "").toLowerCase(),
  ]);
  expect(Object.fromEntries(told)).toEqual(
    Object.fromEntries(Object.keys(kept).map((code) => [code, new Failure(code as FailureCode).grpc])),
  );
});
