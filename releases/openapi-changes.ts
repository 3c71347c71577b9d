/**
 * Finds what a later OpenAPI document breaks for clients of an earlier one. Additions break nothing: operations, webhooks,
 * optional request fields, and fields and headers of responses.
 */

type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/** Whether a schema describes what clients send or what they receive: an addition to one may be a break in the other. */
type Direction = "sent" | "got";

interface Documents {
  readonly earlier: Json;
  readonly later: Json;
  /** Values that may be added to an enumeration: a client receives a new type of webhook only if it subscribes to it. */
  readonly newKinds?: ReadonlySet<string>;
}

/** One line per break; empty if every client keeps working. */
export function openApiBreaks(earlier: Json, later: Json): string[] {
  const documents = { earlier, later };
  const kinds = (document: Json) => new Set(operations(document, "webhooks").map(([name]) => name));
  const forWebhooks = { ...documents, newKinds: kinds(later).difference(kinds(earlier)) };
  return [
    ...(authentication(earlier) === authentication(later) ? [] : ["calls authenticate otherwise"]),
    ...operations(earlier, "paths").flatMap(([path, methods]) =>
      entries(methods).flatMap(([method, operation]) => {
        const now = at(later, "paths", path, method);
        return operationBreaks(documents, `${method.toUpperCase()} ${path}`, operation, now);
      }),
    ),
    ...operations(earlier, "webhooks").flatMap(([name, { post = null }]) => {
      const now = at(later, "webhooks", name, "post");
      const where = `webhook ${name}`;
      if (now === undefined) return [`${where}: is gone`];
      const schema = ["requestBody", "content", "application/json", "schema"];
      const bodyLost = isRequired(at(post, "requestBody")) && !isRequired(at(now, "requestBody"));
      // For a webhook, the client sends the responses.
      const answers = entries(at(post, "responses")).filter(
        ([status]) => at(now, "responses", status) === undefined,
      );
      return [
        ...parameterBreaks(where, post, now, "got"),
        ...(bodyLost ? [`${where}: body may be missing`] : []),
        ...schemaBreaks(forWebhooks, where, at(post, ...schema), at(now, ...schema), "got"),
        ...answers.map(([status]) => `${where}: may no longer be answered ${status}`),
      ];
    }),
  ];
}

function authentication(document: Json): string {
  const schemes = entries(at(document, "components", "securitySchemes")).map(([name, scheme]) => {
    return [name, at(scheme, "type"), at(scheme, "scheme")];
  });
  return JSON.stringify([at(document, "security"), schemes]);
}

function operations(document: Json, kind: string) {
  return entries(at(document, kind)).map(
    ([name, methods]) => [name, Object.fromEntries(entries(methods))] as const,
  );
}

function operationBreaks(documents: Documents, where: string, before: Json, now: Json | undefined): string[] {
  if (now === undefined) return [`${where}: is gone`];
  const schema = ["requestBody", "content", "application/json", "schema"];
  const bodyDemanded = !isRequired(at(before, "requestBody")) && isRequired(at(now, "requestBody"));
  const sameSecurity = JSON.stringify(at(before, "security")) === JSON.stringify(at(now, "security"));
  return [
    ...(sameSecurity ? [] : [`${where}: authenticates otherwise`]),
    ...parameterBreaks(where, before, now, "sent"),
    ...(bodyDemanded ? [`${where}: body is required`] : []),
    ...schemaBreaks(documents, `${where} body`, at(before, ...schema), at(now, ...schema), "sent"),
    ...responseBreaks(documents, where, before, now),
  ];
}

function parameterBreaks(where: string, before: Json, now: Json, direction: Direction): string[] {
  const named = (operation: Json) =>
    new Map(items(at(operation, "parameters")).map((one) => [`${at(one, "in")} ${at(one, "name")}`, one]));
  const [earlier, later] = [named(before), named(now)];
  const gone = [...earlier.keys()]
    .filter((name) => !later.has(name))
    .map((name) => `${where}: ${name} is gone`);
  const [stricter, looser] = direction === "sent" ? [later, earlier] : [earlier, later];
  const changes = [...stricter.keys()].filter(
    (name) => isRequired(stricter.get(name)) && !isRequired(looser.get(name)) && later.has(name),
  );
  const word = direction === "sent" ? "is required" : "may be missing";
  const changed = [...earlier].flatMap(([name, one]) => {
    const [was, is] = [at(one, "schema"), at(later.get(name), "schema")];
    return is === undefined
      ? []
      : schemaBreaks({ earlier: null, later: null }, `${where} ${name}`, was, is, direction);
  });
  return [...gone, ...changes.map((name) => `${where}: ${name} ${word}`), ...changed];
}

function responseBreaks(documents: Documents, where: string, before: Json, now: Json): string[] {
  const added = entries(at(now, "responses"))
    .filter(([status]) => at(before, "responses", status) === undefined)
    .map(([status]) => `${where}: may answer ${status}`);
  const changed = entries(at(before, "responses")).flatMap(([status, response]) => {
    const answer = `${where} ${status}`;
    const later = at(now, "responses", status);
    if (later === undefined) return [`${where}: no longer answers ${status}`];
    const headers = entries(at(response, "headers")).flatMap(([name, header]) => {
      const is = at(later, "headers", name);
      if (is === undefined) return [`${answer}: header ${name} is gone`];
      const [was, will] = [resolved(documents.earlier, header), resolved(documents.later, is)];
      const lost = isRequired(was) && !isRequired(will);
      return [
        ...(lost ? [`${answer}: header ${name} may be missing`] : []),
        ...schemaBreaks(documents, `${answer} header ${name}`, at(was, "schema"), at(will, "schema"), "got"),
      ];
    });
    const schema = ["content", "application/json", "schema"];
    return [
      ...headers,
      ...schemaBreaks(documents, answer, at(response, ...schema), at(later, ...schema), "got"),
    ];
  });
  return [...added, ...changed];
}

function schemaBreaks(
  documents: Documents,
  where: string,
  before: Json | undefined,
  now: Json | undefined,
  direction: Direction,
): string[] {
  if (before === undefined) return [];
  if (now === undefined) return [`${where}: is gone`];
  const was = withNullAsType(resolved(documents.earlier, before));
  const is = withNullAsType(resolved(documents.later, now));
  const breaks: string[] = [];
  const tell = (what: string) => breaks.push(`${where}: ${what}`);

  for (const [kind, had, has] of [
    ["type", at(was, "type"), at(is, "type")],
    ["value", valuesOf(was), valuesOf(is)],
  ] as const) {
    if (had === undefined && has === undefined) continue;
    const [wider, narrower] = direction === "got" ? [had, has] : [has, had];
    // Without this keyword, any value is allowed.
    if (wider === undefined) continue;
    const known = new Set([...list(wider), ...(documents.newKinds ?? [])]);
    const beyond =
      narrower === undefined ? ["anything"] : list(narrower).filter((value) => !known.has(value));
    if (beyond.length === 0) continue;
    tell(`${kind} ${direction === "got" ? "may be" : "may no longer be"} ${beyond.join(", ")}`);
  }
  for (const limit of [...limits, ...wholes]) {
    const [had, has] = [at(was, limit), at(is, limit)];
    if (JSON.stringify(had) === JSON.stringify(has) || isLooser(limit, had, has, direction)) continue;
    tell(`${limit} was ${JSON.stringify(had)} and is ${JSON.stringify(has)}`);
  }
  if (
    direction === "sent" &&
    at(is, "additionalProperties") === false &&
    at(was, "additionalProperties") !== false
  ) {
    tell("takes no further fields");
  }

  const [needed, needs] = [new Set(items(at(was, "required"))), new Set(items(at(is, "required")))];
  if (direction === "sent") for (const name of needs.difference(needed)) tell(`${name} is required`);
  else for (const name of needed.difference(needs)) tell(`${name} may be missing`);

  for (const [name, property] of entries(at(was, "properties"))) {
    const later = at(is, "properties", name);
    breaks.push(...schemaBreaks(documents, `${where} ${name}`, property, later, direction));
  }
  breaks.push(...schemaBreaks(documents, `${where}[]`, at(was, "items"), at(is, "items"), direction));
  return breaks;
}

const limits = [
  ...["minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
  ...["minItems", "maxItems", "minProperties", "maxProperties", "multipleOf", "uniqueItems"],
  ...["pattern", "format"],
];

/** Any change of these is reported: determining its direction would need further analysis, and only the first is in use. */
const wholes = ["default", "allOf", "anyOf", "oneOf", "not", "prefixItems", "patternProperties"];

/**
 * Whether a change of a limit is compatible: a limit on what clients send may be relaxed or removed, a limit on what they
 * receive may be tightened or added.
 */
function isLooser(
  limit: string,
  had: Json | undefined,
  has: Json | undefined,
  direction: Direction,
): boolean {
  if (wholes.includes(limit)) return false;
  const [wider, narrower] = direction === "sent" ? [has, had] : [had, has];
  if (wider === undefined) return true;
  if (typeof wider !== "number" || typeof narrower !== "number") return false;
  if (limit === "multipleOf") return narrower % wider === 0;
  return /max/i.test(limit) ? wider >= narrower : wider <= narrower;
}

function at(value: Json | undefined, ...path: readonly string[]): Json | undefined {
  let found: Json | undefined = value;
  for (const name of path) {
    if (typeof found !== "object" || found === null || Array.isArray(found)) return undefined;
    found = Object.hasOwn(found, name) ? (found as Record<string, Json>)[name] : undefined;
  }
  return found;
}

function entries(value: Json | undefined): [string, Json][] {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? Object.entries(value) : [];
}

function items(value: Json | undefined): readonly Json[] {
  return Array.isArray(value) ? value : [];
}

/** Whether a parameter, header or body is required. */
function isRequired(value: Json | undefined): boolean {
  return at(value, "required") === true;
}

/** The values that a schema allows: its enumeration, or its constant. */
function valuesOf(schema: Json): Json | undefined {
  const constant = at(schema, "const");
  return constant === undefined ? at(schema, "enum") : [constant];
}

/** `type` may be a single type or a list. */
function list(value: Json): string[] {
  return [value].flat().map(String);
}

/** Keywords that allow and forbid nothing. */
const annotations = ["title", "description", "deprecated", "examples"];

/**
 * Rewrites the alternatives of values of a type and null to a list of types and values, which means the same. Only of those: other
 * keywords within an alternative would then also bind null, or take the place of those beside it.
 */
function withNullAsType(schema: Json): Json {
  const { anyOf, ...others } = Object.fromEntries(entries(schema));
  const [one = null, other, ...more] = items(anyOf);
  const isNull = JSON.stringify(other) === '{"type":"null"}' && more.length === 0;
  const [type, values] = [at(one, "type"), items(at(one, "enum"))];
  const isPlain =
    Object.keys(others).every((name) => annotations.includes(name)) &&
    entries(one).length === 2 &&
    typeof type === "string" &&
    values.length > 0 &&
    // Values are compared as texts.
    !values.includes("null");
  return isNull && isPlain ? { ...others, type: [type, "null"], enum: [...values, null] } : schema;
}

/** Resolves a `$ref` within its own document. */
function resolved(document: Json, value: Json): Json {
  const reference = at(value, "$ref");
  return typeof reference === "string" ? (at(document, ...reference.split("/").slice(1)) ?? null) : value;
}
