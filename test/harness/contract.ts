/** Checks the service's responses against the OpenAPI document. */

import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import { openApiDocument } from "../../src/gateway/openapi.ts";

interface Described {
  readonly paths: Record<string, Record<string, { responses: Record<string, DescribedResponse> }>>;
  readonly components: { readonly headers: Record<string, { required?: boolean; schema: object }> };
}

interface DescribedResponse {
  readonly headers: Record<string, unknown>;
  readonly content: { readonly "application/json": { readonly schema: { readonly $ref: string } } };
}

const document = openApiDocument("http://localhost", []) as Described;
const ajv = new Ajv2020({ strict: false, allErrors: true });
ajv.addFormat("date-time", /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
ajv.addSchema(document, "openapi");
const validators = new Map<string, ValidateFunction>();

function validatorOf(pointer: string): ValidateFunction {
  const known = validators.get(pointer) ?? ajv.compile({ $ref: `openapi${pointer}` });
  validators.set(pointer, known);
  return known;
}

/** What the OpenAPI document does not describe in a response; empty for paths that are not in the document. */
export function undescribed(
  method: string,
  path: string,
  answer: { readonly status: number; readonly headers: Headers; readonly body: unknown },
): string[] {
  const { pathname } = new URL(path, "http://localhost");
  const template = Object.keys(document.paths).find((known) =>
    new RegExp(`^${known.replace(/\{\w+\}/g, "[^/]+")}$`).test(pathname),
  );
  const operation = template === undefined ? undefined : document.paths[template]?.[method.toLowerCase()];
  if (operation === undefined) return [];
  const response = operation.responses[answer.status];
  if (response === undefined) return [`status ${answer.status}`];
  const problems: string[] = [];
  const bodyIsDescribed = validatorOf(response.content["application/json"].schema.$ref);
  if (!bodyIsDescribed(answer.body)) problems.push(ajv.errorsText(bodyIsDescribed.errors));
  for (const name of Object.keys(response.headers)) {
    const value = answer.headers.get(name);
    const described = document.components.headers[name];
    if (value === null && described?.required) problems.push(`no header ${name}`);
    if (value !== null && !validatorOf(`#/components/headers/${name}/schema`)(value)) {
      problems.push(`header ${name}: ${value}`);
    }
  }
  const standard = new Set([
    "connection",
    "content-length",
    "content-type",
    "date",
    "keep-alive",
    "transfer-encoding",
  ]);
  const described = new Set(Object.keys(response.headers).map((name) => name.toLowerCase()));
  for (const name of answer.headers.keys()) {
    if (!standard.has(name) && !described.has(name)) problems.push(`header ${name} is not described`);
  }
  return problems;
}
