/** What npm run check says of a document that a later release would serve. */

import { describe, expect, test } from "vitest";
import { openApiBreaks } from "../../releases/openapi-changes.ts";
import { currentOpenApi, readOpenApi, releases } from "../../releases/release.ts";

// biome-ignore lint/suspicious/noExplicitAny: each test reaches for another corner of the document.
type Document = any;

const verifications = "/v1/verifications";
const one = "/v1/verifications/{verification_id}";

function breaksAfter(change: (document: Document) => void): string[] {
  const later = currentOpenApi();
  change(later);
  return openApiBreaks(currentOpenApi(), later);
}

const schemas = (document: Document) => document.components.schemas;
const creation = (document: Document) => schemas(document).CreateVerification.properties;

describe("a client of today would break", () => {
  test.for<[what: string, change: (document: Document) => void]>([
    ["an operation is gone", (d) => delete d.paths[one].get],
    ["a path is gone", (d) => delete d.paths[one]],
    [
      "a header is demanded",
      (d) => d.paths[one].get.parameters.push({ name: "X-New", in: "header", required: true }),
    ],
    ["a parameter is gone", (d) => d.paths[verifications].post.parameters.pop()],
    [
      "a parameter has another pattern",
      (d) => {
        d.paths[verifications].post.parameters[0].schema.pattern = "^[0-9]{8,128}$";
      },
    ],
    ["a field of the request is gone", (d) => delete creation(d).state],
    [
      "a field of the request is demanded",
      (d) => {
        schemas(d).CreateVerification.required = ["state"];
      },
    ],
    [
      "a field of the request is shorter",
      (d) => {
        creation(d).state.maxLength = 255;
      },
    ],
    [
      "a field of the request takes no null",
      (d) => {
        creation(d).return_url.type = "string";
      },
    ],
    ["a value of the request is gone", (d) => creation(d).mode.enum.pop()],
    [
      "a default is another",
      (d) => {
        creation(d).mode.default = "match";
      },
    ],
    [
      "a status is new",
      (d) => {
        d.paths[one].get.responses["402"] = d.paths[one].get.responses["403"];
      },
    ],
    [
      "a header of an answer is gone",
      (d) => delete d.paths[one].get.responses["200"].headers["X-Request-ID"],
    ],
    [
      "calls authenticate otherwise",
      (d) => {
        d.components.securitySchemes.apiKey.scheme = "basic";
      },
    ],
    ["a webhook is gone", (d) => delete d.webhooks["verification.expired"]],
    ["a header of a webhook is gone", (d) => d.webhooks["verification.expired"].post.parameters.pop()],
  ])("%s", ([, change]) => {
    expect(breaksAfter(change)).toHaveLength(1);
  });

  test.for<[what: string, change: (document: Document) => void]>([
    ["is gone", (d) => delete schemas(d).VerificationResult.properties.carrier],
    ["may be missing", (d) => schemas(d).VerificationResult.required.shift()],
    [
      "may be null",
      (d) => {
        schemas(d).VerificationResult.properties.status.type = ["string", "null"];
      },
    ],
    ["has a new value", (d) => schemas(d).VerificationResult.properties.status.enum.push("paused")],
    ["has any value", (d) => delete schemas(d).VerificationResult.properties.status.enum],
  ])("a field of an answer %s: told wherever it is got", ([, change]) => {
    const breaks = breaksAfter(change);
    for (const where of [`GET ${one} 200`, `POST ${one}/cancel 200`, "webhook verification.expired"]) {
      expect(breaks.filter((line) => line.startsWith(where))).toHaveLength(1);
    }
  });
});

describe("growth is none", () => {
  test.for<[what: string, change: (document: Document) => void]>([
    [
      "another operation",
      (d) => {
        d.paths["/v1/reports"] = d.paths[one];
      },
    ],
    [
      "another field that may be sent",
      (d) => {
        creation(d).locale = { type: "string" };
      },
    ],
    ["another value that may be sent", (d) => creation(d).mode.enum.push("guess")],
    [
      "a longer field",
      (d) => {
        creation(d).state.maxLength = 512;
      },
    ],
    [
      "another field of an answer",
      (d) => {
        schemas(d).VerificationResult.properties.region = { type: "string" };
      },
    ],
    [
      "another header of an answer",
      (d) => {
        d.paths[one].get.responses["200"].headers["X-New"] = { schema: { type: "string" } };
      },
    ],
    [
      "another webhook",
      (d) => {
        d.webhooks["verification.created"] = d.webhooks["verification.expired"];
      },
    ],
    [
      "other words",
      (d) => {
        d.info.description = "";
        creation(d).state.description = "Other words.";
      },
    ],
    [
      "a mark that something is deprecated",
      (d) => {
        d.paths[one].get.deprecated = true;
      },
    ],
  ])("%s", ([, change]) => {
    expect(breaksAfter(change)).toEqual([]);
  });
});

test("every release that is kept can still be used", () => {
  expect(releases().length).toBeGreaterThan(0);
  for (const version of releases()) expect(openApiBreaks(readOpenApi(version), currentOpenApi())).toEqual([]);
});
