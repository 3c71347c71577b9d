/** What `npm run check` reports about a later OpenAPI document. */

import { describe, expect, test } from "vitest";
import { openApiBreaks } from "../../releases/openapi-changes.ts";
import { currentOpenApi, readOpenApi, releases } from "../../releases/release.ts";

// biome-ignore lint/suspicious/noExplicitAny: each test changes another part of the document.
type Document = any;

const verifications = "/v1/verifications";
const one = "/v1/verifications/{verification_id}";

/** The current document, with an optional body, which none of its operations has. */
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

describe("a change is reported as breaking if", () => {
  test.for<[what: string, change: (document: Document) => void]>([
    ["an operation is removed", (d) => delete d.paths[one].get],
    ["a path is removed", (d) => delete d.paths[one]],
    [
      "a header becomes required",
      (d) => d.paths[one].get.parameters.push({ name: "X-New", in: "header", required: true }),
    ],
    ["a parameter is removed", (d) => d.paths[verifications].post.parameters.pop()],
    [
      "a parameter gets another pattern",
      (d) => {
        d.paths[verifications].post.parameters[0].schema.pattern = "^[0-9]{8,128}$";
      },
    ],
    ["a field of the request is removed", (d) => delete creation(d).state],
    [
      "a field of the request becomes required",
      (d) => {
        schemas(d).CreateVerification.required = ["state"];
      },
    ],
    [
      "a field of the request becomes shorter",
      (d) => {
        creation(d).state.maxLength = 255;
      },
    ],
    [
      "a field of the request no longer accepts null",
      (d) => {
        creation(d).return_url.type = "string";
      },
    ],
    ["a value of the request is removed", (d) => creation(d).mode.enum.pop()],
    [
      "a default changes",
      (d) => {
        creation(d).mode.default = "match";
      },
    ],
    [
      "a status is added",
      (d) => {
        d.paths[one].get.responses["402"] = d.paths[one].get.responses["403"];
      },
    ],
    [
      "a header of an answer is removed",
      (d) => delete d.paths[one].get.responses["200"].headers["X-Request-ID"],
    ],
    [
      "the authentication scheme changes",
      (d) => {
        d.components.securitySchemes.apiKey.scheme = "basic";
      },
    ],
    ["a success status is removed", (d) => delete d.paths[verifications].post.responses["200"]],
    [
      "a body becomes required",
      (d) => {
        d.paths[`${one}/cancel`].post.requestBody.required = true;
      },
    ],
    [
      "an operation's authentication changes",
      (d) => {
        d.paths[one].get.security = [{ apiKey: ["admin"] }];
      },
    ],
    [
      "a parameter's minimum length grows",
      (d) => {
        d.paths[verifications].post.parameters[0].schema.minLength = 9;
      },
    ],
    [
      "an accepted answer to a webhook is removed",
      (d) => delete d.webhooks["verification.expired"].post.responses["410"],
    ],
    [
      "a webhook's body becomes optional",
      (d) => {
        d.webhooks["verification.expired"].post.requestBody.required = false;
      },
    ],
    [
      "a header of a webhook becomes optional",
      (d) => {
        d.webhooks["verification.expired"].post.parameters[0].required = false;
      },
    ],
    [
      "a header of an answer becomes optional",
      (d) => {
        const header = d.components.headers["X-Request-ID"];
        d.paths[one].get.responses["200"].headers["X-Request-ID"] = { ...header, required: false };
      },
    ],
    ["a webhook is removed", (d) => delete d.webhooks["verification.expired"]],
    ["a header of a webhook is removed", (d) => d.webhooks["verification.expired"].post.parameters.pop()],
  ])("%s", ([, change]) => {
    expect(breaksAfter(change)).toHaveLength(1);
  });

  test.for<[what: string, change: (document: Document) => void]>([
    ["is removed", (d) => delete schemas(d).VerificationResult.properties.carrier],
    ["becomes optional", (d) => schemas(d).VerificationResult.required.shift()],
    [
      "may become null",
      (d) => {
        schemas(d).VerificationResult.properties.status.type = ["string", "null"];
      },
    ],
    ["gets a new value", (d) => schemas(d).VerificationResult.properties.status.enum.push("paused")],
    ["may get any value", (d) => delete schemas(d).VerificationResult.properties.status.enum],
  ])("a field of an answer %s: reported for each answer and webhook with it", ([, change]) => {
    const breaks = breaksAfter(change);
    for (const where of [`GET ${one} 200`, `POST ${one}/cancel 200`, "webhook verification.expired"]) {
      expect(breaks.filter((line) => line.startsWith(where))).toHaveLength(1);
    }
  });
});

test("a kind in a webhook's body without a webhook of that name is reported as breaking", () => {
  const breaks = breaksAfter((d) => schemas(d).WebhookEvent.properties.type.enum.push("verification.paused"));
  expect(breaks).toHaveLength(3);
});

describe("not breaking:", () => {
  test.for<[what: string, change: (document: Document) => void]>([
    [
      "a new operation",
      (d) => {
        d.paths["/v1/reports"] = d.paths[one];
      },
    ],
    [
      "a new optional field of a request",
      (d) => {
        creation(d).locale = { type: "string" };
      },
    ],
    ["a new value of a request", (d) => creation(d).mode.enum.push("guess")],
    [
      "a longer field of a request",
      (d) => {
        creation(d).state.maxLength = 512;
      },
    ],
    [
      "a new field of an answer",
      (d) => {
        schemas(d).VerificationResult.properties.region = { type: "string" };
      },
    ],
    [
      "a new header of an answer",
      (d) => {
        d.paths[one].get.responses["200"].headers["X-New"] = { schema: { type: "string" } };
      },
    ],
    [
      "a new webhook",
      (d) => {
        d.webhooks["verification.created"] = d.webhooks["verification.expired"];
      },
    ],
    [
      "a new webhook, also in the list of kinds",
      (d) => {
        d.webhooks["verification.created"] = d.webhooks["verification.expired"];
        schemas(d).WebhookEvent.properties.type.enum.push("verification.created");
      },
    ],
    [
      "other descriptions",
      (d) => {
        d.info.description = "";
        creation(d).state.description = "Other words.";
      },
    ],
    [
      "a deprecation",
      (d) => {
        d.paths[one].get.deprecated = true;
      },
    ],
  ])("%s", ([, change]) => {
    expect(breaksAfter(change)).toEqual([]);
  });
});

const withNull = { type: ["string", "null"], enum: ["a", null] };
const alternatives = (...values: string[]) => ({
  anyOf: [{ type: "string", enum: values }, { type: "null" }],
});

const textOrNull = { anyOf: [{ type: "string", maxLength: 10 }, { type: "null" }] };
const odd = { type: ["string", "null"], allOf: [{ type: "string" }] };

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

test.for<[what: string, before: object, now: object]>([
  ["that excludes null, by a keyword beside the types", { anyOf: [odd, { type: "null" }] }, odd],
  ["without a value that is named like null", alternatives("a", "null"), alternatives("a")],
])("alternatives that become a schema %s are a break in both directions", ([, before, now]) => {
  const breaks = openApiBreaks(document(before) as never, document(now) as never);
  for (const where of ["POST / body", "GET / 200"]) {
    expect(breaks.filter((line) => line.startsWith(where)).length).toBeGreaterThan(0);
  }
});

/** Whether a change of a field's schema is compatible for a field that clients send, and for one that they receive. */
describe("a change of a field is judged for requests and answers: its", () => {
  test.for<[what: string, before: object, now: object, sent: boolean, got: boolean]>([
    ["constant changes", { const: "a" }, { const: "b" }, false, false],
    ["constant becomes a list that contains it", { const: "a" }, { enum: ["a", "b"] }, true, false],
    ["list becomes one of its values", { enum: ["a", "b"] }, { const: "a" }, false, true],
    ["constant is removed", { const: "a" }, {}, true, false],
    ["constant is added", {}, { const: "a" }, false, true],
    ["format changes", { format: "uuid" }, { format: "uri" }, false, false],
    ["format is added", {}, { format: "uuid" }, false, true],
    ["format is removed", { format: "uuid" }, {}, true, false],
    ["pattern changes", { pattern: "a" }, { pattern: "b" }, false, false],
    ["pattern is added", {}, { pattern: "a" }, false, true],
    ["pattern is removed", { pattern: "a" }, {}, true, false],
    ["minimum rises", { minimum: 1 }, { minimum: 2 }, false, true],
    ["minimum falls", { minimum: 2 }, { minimum: 1 }, true, false],
    ["maximum rises", { maximum: 1 }, { maximum: 2 }, true, false],
    ["maximum falls", { maximum: 2 }, { maximum: 1 }, false, true],
    ["exclusive maximum rises", { exclusiveMaximum: 1 }, { exclusiveMaximum: 2 }, true, false],
    ["exclusive minimum is added", {}, { exclusiveMinimum: 0 }, false, true],
    ["minimum of items falls", { minItems: 2 }, { minItems: 1 }, true, false],
    ["maximum of items rises", { maxItems: 1 }, { maxItems: 2 }, true, false],
    ["items no longer have to be unique", { uniqueItems: true }, {}, true, false],
    ["step becomes smaller", { multipleOf: 10 }, { multipleOf: 5 }, true, false],
    ["length gets a limit", {}, { maxLength: 10 }, false, true],
    ["alternatives change", { anyOf: [{ const: 1 }] }, { anyOf: [{ const: 2 }] }, false, false],
    ["null among the values becomes an alternative", withNull, alternatives("a"), true, true],
    ["alternative null becomes one of the values", alternatives("a"), withNull, true, true],
    ["alternative beside null gets a value", alternatives("a"), alternatives("a", "b"), true, false],
    ["alternative beside null gets a limit", textOrNull, { ...textOrNull, maxLength: 3 }, false, true],
    ["required field becomes optional", { required: ["a"] }, {}, true, false],
    ["optional field becomes required", {}, { required: ["a"] }, false, true],
    ["type gets an alternative", { type: "string" }, { type: ["string", "null"] }, true, false],
    ["description changes", { description: "a" }, { description: "b" }, true, true],
  ])("%s", ([, before, now, sent, got]) => {
    const breaks = openApiBreaks(document(before) as never, document(now) as never);
    expect(breaks.filter((line) => line.startsWith("POST / body")).length).toBe(sent ? 0 : 1);
    expect(breaks.filter((line) => line.startsWith("GET / 200")).length).toBe(got ? 0 : 1);
  });
});

test("the current API breaks no recorded release", () => {
  expect(releases().length).toBeGreaterThan(0);
  for (const version of releases()) expect(openApiBreaks(readOpenApi(version), currentOpenApi())).toEqual([]);
});
