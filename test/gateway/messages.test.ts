/** The texts of error messages. */

import { describe, expect, test } from "vitest";
import { contractCodes, Failure } from "../../src/failures.ts";
import { startTestService } from "../harness/service.ts";
import { merchant } from "./merchant.ts";

const service = await startTestService();
const parentOrigin = "https://shop.example";
const shop = merchant(service.httpUrl, (await service.createProject({ parentOrigin })).testKey);

test.for(contractCodes)("the message of %s says what was wrong and, after a colon, what to do", (code) => {
  expect(new Failure(code).message).toMatch(/^[A-Z][^:]{10,}: .{10,}/s);
});

describe("the message for an invalid field:", () => {
  test.for<[body: object, field: string, message: string]>([
    [
      { phone: "010-1234-5678" },
      "phone",
      "is not a field of this request: leave it out; the valid fields are mode, expected_phone, client_reference, state, parent_origin, return_url",
    ],
    [{ mode: "guess" }, "mode", "must be one of discover, match"],
    [{ state: 1 }, "state", "must be a string"],
    [
      { mode: "match" },
      "expected_phone",
      "is required if mode is match: a 010 mobile number, such as 010-1234-5678",
    ],
    [
      { mode: "match", expected_phone: "02-123-4567" },
      "expected_phone",
      "must be a 010 mobile number, such as 010-1234-5678",
    ],
    [
      { parent_origin: "https://elsewhere.example" },
      "parent_origin",
      "must equal the origin registered for the project, https://shop.example",
    ],
    [
      { return_url: "https://shop.example/back" },
      "return_url",
      "must be left out: the project has no URL registered",
    ],
  ])("%j", async ([body, field, message]) => {
    const answer = await shop.create(body);
    expect(answer.body.error.fields).toEqual([{ field, message }]);
  });
});
