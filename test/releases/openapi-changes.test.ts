/** What npm run check says of a document that a later release would serve. */

import { describe, expect, test } from "vitest";
import { openApiBreaks } from "../../releases/openapi-changes.ts";
import { currentOpenApi, readOpenApi, releases } from "../../releases/release.ts";

// biome-ignore lint/suspicious/noExplicitAny: each test reaches for another corner of the document.
type Document = any;

const verifications = "/v1/verifications";
const one = "/v1/verifications/{verification_id}";

/** Today's, with an optional body, which none of its operations has. */
function today(): Document {
  const document = currentOpenApi();
  document.paths[`${one}/cancel`].post.requestBody = {
    content: { "application/json": { schema: { type: "object" } } },
  };
  return document;
}

function breaksAfter(change: (document: Document) => void): string[] {
  const later = today();
  change(later);
  return openApiBreaks(today(), later);
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
    ["an answer of success is gone", (d) => delete d.paths[verifications].post.responses["200"]],
    [
      "a body is demanded",
      (d) => {
        d.paths[`${one}/cancel`].post.requestBody.required = true;
      },
    ],
    [
      "an operation authenticates otherwise",
      (d) => {
        d.paths[one].get.security = [{ apiKey: ["admin"] }];
      },
    ],
    [
      "a parameter is longer than it was",
      (d) => {
        d.paths[verifications].post.parameters[0].schema.minLength = 9;
      },
    ],
    [
      "what a webhook may be answered with is gone",
      (d) => delete d.webhooks["verification.expired"].post.responses["410"],
    ],
    [
      "a webhook's body may be missing",
      (d) => {
        d.webhooks["verification.expired"].post.requestBody.required = false;
      },
    ],
    [
      "a header of a webhook may be missing",
      (d) => {
        d.webhooks["verification.expired"].post.parameters[0].required = false;
      },
    ],
    [
      "a header of an answer may be missing",
      (d) => {
        const header = d.components.headers["X-Request-ID"];
        d.paths[one].get.responses["200"].headers["X-Request-ID"] = { ...header, required: false };
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

test("a kind in a webhook's body that is no webhook of its own is told", () => {
  const breaks = breaksAfter((d) => schemas(d).WebhookEvent.properties.type.enum.push("verification.paused"));
  expect(breaks).toHaveLength(3);
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
      "another webhook, among the kinds too",
      (d) => {
        d.webhooks["verification.created"] = d.webhooks["verification.expired"];
        schemas(d).WebhookEvent.properties.type.enum.push("verification.created");
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

/** What of a field's schema may become what, as the field is sent and as it is got. */
describe("a field's", () => {
  test.for<[what: string, before: object, now: object, sent: boolean, got: boolean]>([
    ["constant is another", { const: "a" }, { const: "b" }, false, false],
    ["constant is a list with it", { const: "a" }, { enum: ["a", "b"] }, true, false],
    ["list is one of its values", { enum: ["a", "b"] }, { const: "a" }, false, true],
    ["constant is gone", { const: "a" }, {}, true, false],
    ["constant is new", {}, { const: "a" }, false, true],
    ["format is another", { format: "uuid" }, { format: "uri" }, false, false],
    ["format is new", {}, { format: "uuid" }, false, true],
    ["format is gone", { format: "uuid" }, {}, true, false],
    ["pattern is another", { pattern: "a" }, { pattern: "b" }, false, false],
    ["pattern is new", {}, { pattern: "a" }, false, true],
    ["pattern is gone", { pattern: "a" }, {}, true, false],
    ["minimum is higher", { minimum: 1 }, { minimum: 2 }, false, true],
    ["minimum is lower", { minimum: 2 }, { minimum: 1 }, true, false],
    ["maximum is higher", { maximum: 1 }, { maximum: 2 }, true, false],
    ["maximum is lower", { maximum: 2 }, { maximum: 1 }, false, true],
    ["exclusive maximum is higher", { exclusiveMaximum: 1 }, { exclusiveMaximum: 2 }, true, false],
    ["exclusive minimum is new", {}, { exclusiveMinimum: 0 }, false, true],
    ["items may be fewer", { minItems: 2 }, { minItems: 1 }, true, false],
    ["items may be more", { maxItems: 1 }, { maxItems: 2 }, true, false],
    ["items may be equal", { uniqueItems: true }, {}, true, false],
    ["steps are smaller", { multipleOf: 10 }, { multipleOf: 5 }, true, false],
    ["length has a limit", {}, { maxLength: 10 }, false, true],
    ["alternatives are others", { anyOf: [{ const: 1 }] }, { anyOf: [{ const: 2 }] }, false, false],
    ["guarantee is gone", { required: ["a"] }, {}, true, false],
    ["demand is new", {}, { required: ["a"] }, false, true],
    ["type is one more", { type: "string" }, { type: ["string", "null"] }, true, false],
    ["words are others", { description: "a" }, { description: "b" }, true, true],
  ])("%s", ([, before, now, sent, got]) => {
    const document = (schema: object) => ({
      paths: {
        "/": {
          post: {
            requestBody: { content: { "application/json": { schema } } },
            responses: { 200: {} },
          },
          get: { responses: { 200: { content: { "application/json": { schema } } } } },
        },
      },
    });
    const breaks = openApiBreaks(document(before) as never, document(now) as never);
    expect(breaks.filter((line) => line.startsWith("POST / body")).length).toBe(sent ? 0 : 1);
    expect(breaks.filter((line) => line.startsWith("GET / 200")).length).toBe(got ? 0 : 1);
  });
});

test("every release that is kept can still be used", () => {
  expect(releases().length).toBeGreaterThan(0);
  for (const version of releases()) expect(openApiBreaks(readOpenApi(version), currentOpenApi())).toEqual([]);
});
