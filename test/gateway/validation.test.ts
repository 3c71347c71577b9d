import { gzipSync } from "node:zlib";
import { Ajv } from "ajv";
import { describe, expect, test } from "vitest";
import * as schemas from "../../src/gateway/schemas.ts";
import { startTestService } from "../harness/service.ts";
import { type Answer, merchant } from "./merchant.ts";

const service = await startTestService();
const origin = "https://shop.example.com";
const returnUrl = "https://shop.example.com/done?a=1";
const project = await service.createProject({ parentOrigin: origin, returnUrl });
const shop = merchant(service.httpUrl, project.testKey);
const bareProject = await service.createProject();
const bareShop = merchant(service.httpUrl, bareProject.testKey);

/** The fields that were refused, sorted; none if the creation was accepted. */
function complaintsOf(answer: Answer): string[] {
  if (answer.status === 201) return [];
  expect(answer.status).toBe(422);
  const { code, fields = [] } = answer.body.error;
  expect(code).toBe("validation_failed");
  for (const { message } of fields) expect(message).not.toBe("");
  return fields.map(({ field }) => field).sort();
}

test.for(Object.entries(schemas))("%s is a valid JSON Schema, which a start does not check", ([, schema]) => {
  const ajv = new Ajv();
  ajv.validateSchema(schema);
  expect(ajv.errors).toBe(null);
});

describe("an invalid field is the only one that the refusal names:", () => {
  test.for<{ name: string; body: unknown; field: string }>([
    { name: "an unknown field", body: { phone: "01012345678" }, field: "phone" },
    { name: "a field in another case", body: { State: "s" }, field: "State" },
    { name: "a field with an empty name", body: { "": 1 }, field: "" },
    { name: "a field named __proto__", body: '{"__proto__":{"mode":"match"}}', field: "__proto__" },
    { name: "a field named constructor", body: { constructor: { prototype: {} } }, field: "constructor" },
    { name: "a field named toString", body: { toString: null }, field: "toString" },
    { name: "a field named body", body: { body: {} }, field: "body" },
    { name: "an unknown mode", body: { mode: "guess" }, field: "mode" },
    { name: "a mode in another case", body: { mode: "Discover" }, field: "mode" },
    { name: "an empty mode", body: { mode: "" }, field: "mode" },
    { name: "null as mode", body: { mode: null }, field: "mode" },
    { name: "a number as mode", body: { mode: 1 }, field: "mode" },
    { name: "a list as mode", body: { mode: ["match"] }, field: "mode" },
    { name: "a number as phone", body: { expected_phone: 1012345678 }, field: "expected_phone" },
    { name: "false as phone", body: { expected_phone: false }, field: "expected_phone" },
    { name: "null as reference", body: { client_reference: null }, field: "client_reference" },
    { name: "a number as reference", body: { client_reference: 0 }, field: "client_reference" },
    { name: "an object as reference", body: { client_reference: {} }, field: "client_reference" },
    { name: "null as state", body: { state: null }, field: "state" },
    { name: "true as state", body: { state: true }, field: "state" },
    { name: "a list as state", body: { state: [] }, field: "state" },
    { name: "a list as origin", body: { parent_origin: [origin] }, field: "parent_origin" },
    { name: "an object as return URL", body: { return_url: {} }, field: "return_url" },
    { name: "a reference with NUL", body: { client_reference: "a\0b" }, field: "client_reference" },
    { name: "a state with NUL", body: { state: "\0" }, field: "state" },
    { name: "a phone with NUL", body: { expected_phone: "0101234\x005678" }, field: "expected_phone" },
    { name: "an origin with NUL", body: { parent_origin: `${origin}\0` }, field: "parent_origin" },
    { name: "a return URL with NUL", body: { return_url: `${returnUrl}\0` }, field: "return_url" },
    { name: "a state with a lone surrogate", body: '{"state":"\\ud83d"}', field: "state" },
    {
      name: "a reference with surrogates swapped",
      body: '{"client_reference":"\\ude00\\ud83d"}',
      field: "client_reference",
    },
    {
      name: "an ignored phone with a lone surrogate",
      body: '{"expected_phone":"\\udc00"}',
      field: "expected_phone",
    },
    {
      name: "an ignored phone that is too long",
      body: { expected_phone: "0".repeat(33) },
      field: "expected_phone",
    },
    { name: "another origin", body: { parent_origin: "https://shop.example.org" }, field: "parent_origin" },
    {
      name: "an origin of another scheme",
      body: { parent_origin: "http://shop.example.com" },
      field: "parent_origin",
    },
    { name: "an origin of another port", body: { parent_origin: `${origin}:8443` }, field: "parent_origin" },
    { name: "an origin with a path", body: { parent_origin: `${origin}/shop` }, field: "parent_origin" },
    {
      name: "an origin with a user",
      body: { parent_origin: "https://a@shop.example.com" },
      field: "parent_origin",
    },
    { name: "an empty origin", body: { parent_origin: "" }, field: "parent_origin" },
    {
      name: "a return URL that differs in its query",
      body: { return_url: `${returnUrl}&b=2` },
      field: "return_url",
    },
    {
      name: "a return URL in another spelling",
      body: { return_url: returnUrl.replace("shop.", "SHOP.") },
      field: "return_url",
    },
    { name: "an empty return URL", body: { return_url: "" }, field: "return_url" },
  ])("$name", async ({ body, field }) => {
    expect(complaintsOf(await shop.create(body))).toEqual([field]);
  });

  test.for([
    { name: "an origin", body: { parent_origin: origin }, field: "parent_origin" },
    { name: "a return URL", body: { return_url: returnUrl }, field: "return_url" },
  ])("$name if the project has none", async ({ body, field }) => {
    expect(complaintsOf(await bareShop.create(body))).toEqual([field]);
  });
});

describe("lengths are in code points:", () => {
  test.for([
    { field: "client_reference", limit: 160 },
    { field: "state", limit: 256 },
  ])("$field may have $limit and no more", async ({ field, limit }) => {
    for (const character of ["a", "한", "😀"]) {
      expect(complaintsOf(await shop.create({ [field]: character.repeat(limit) }))).toEqual([]);
      expect(complaintsOf(await shop.create({ [field]: character.repeat(limit + 1) }))).toEqual([field]);
    }
  });

  test("an ignored expected_phone may have 32", async () => {
    expect(complaintsOf(await shop.create({ expected_phone: "😀".repeat(32) }))).toEqual([]);
  });

  test.for(["parent_origin", "return_url"])("%s may have no more than 2048", async (field) => {
    const answer = await shop.create({ [field]: "a".repeat(2049) });
    expect(complaintsOf(answer)).toEqual([field]);
    expect(answer.body.error.fields?.[0]?.message).toContain("2048");
  });

  test("a return URL of 2048 is accepted if it is the project's", async () => {
    const longest = `https://shop.example.com/${"a".repeat(2048 - 25)}`;
    const { testKey } = await service.createProject({ returnUrl: longest });
    expect(complaintsOf(await merchant(service.httpUrl, testKey).create({ return_url: longest }))).toEqual(
      [],
    );
  });
});

describe("mode match", () => {
  test.for([
    "01012345678",
    "010-1234-5678",
    "010 1234 5678",
    "+82 10-1234-5678",
    "+821012345678",
  ])("accepts the 010 number %s", async (expected_phone) => {
    expect(complaintsOf(await shop.create({ mode: "match", expected_phone }))).toEqual([]);
  });

  test.for([
    { name: "absent", expected_phone: undefined },
    { name: "null", expected_phone: null },
    { name: "empty", expected_phone: "" },
    { name: "a landline", expected_phone: "02-123-4567" },
    { name: "an old mobile prefix", expected_phone: "011-123-4567" },
    { name: "one digit short", expected_phone: "0101234567" },
    { name: "one digit too long", expected_phone: "010123456789" },
    { name: "of another country", expected_phone: "+1 010 1234 5678" },
    { name: "partly letters", expected_phone: "010-ABCD-5678" },
    { name: "a number followed by more", expected_phone: "01012345678;ext=1" },
    { name: "a number of type number", expected_phone: 1012345678 },
    { name: "too long", expected_phone: `010${" ".repeat(30)}12345678` },
  ])("refuses a phone that is $name, and names the field once", async ({ expected_phone }) => {
    expect(complaintsOf(await shop.create({ mode: "match", expected_phone }))).toEqual(["expected_phone"]);
  });
});

describe("mode discover", () => {
  test.for(["", "not a phone", "011-123-4567"])("ignores the phone '%s'", async (expected_phone) => {
    expect(complaintsOf(await shop.create({ expected_phone }))).toEqual([]);
  });
});

test.for([
  `${origin}/`,
  "https://SHOP.example.com",
  `${origin}:443`,
])("the origin %s is accepted as another spelling of the project's", async (parent_origin) => {
  expect(complaintsOf(await shop.create({ parent_origin }))).toEqual([]);
});

test("an internationalized origin is accepted in Punycode and in its own script, and in no other form", async () => {
  const { liveKey } = await service.createProject({ parentOrigin: "https://xn--6q8b.example:8443" });
  const complaints = async (parent_origin: string) =>
    complaintsOf(await merchant(service.httpUrl, liveKey).create({ parent_origin }));
  for (const same of [
    "https://xn--6q8b.example:8443",
    "https://한.example:8443",
    "HTTPS://한.Example:8443/",
  ]) {
    expect(await complaints(same)).toEqual([]);
  }
  for (const other of [
    "https://한.example",
    "https://한국.example:8443",
    "https://\u1112\u1161\u11ab.example:8443",
  ]) {
    expect(await complaints(other)).toEqual(["parent_origin"]);
  }
});

test.for([
  "https:shop.example.com",
  "ht\ntps://shop.example.com",
  ` ${origin}`,
  `${origin}\\`,
  `${origin}/.`,
  "https://\u017fhop.example.com",
])("the origin %j is refused, although a URL parser would accept it", async (parent_origin) => {
  expect(complaintsOf(await shop.create({ parent_origin }))).toEqual(["parent_origin"]);
});

test("each of thousands of unknown fields is named, in an answer of limited length", async () => {
  const names = Array.from({ length: 5_000 }, (_, index) => `f${index}`);
  const answer = await shop.create(Object.fromEntries(names.map((name) => [name, 1])));
  expect(complaintsOf(answer)).toEqual(names.toSorted());
  expect(answer.text.length).toBeLessThan(400_000);
});

test("null means absent where the contract allows it", async () => {
  const body = { expected_phone: null, parent_origin: null, return_url: null };
  expect(complaintsOf(await bareShop.create(body))).toEqual([]);
});

test("all violations are reported at once, with one entry per field", async () => {
  const answer = await shop.create({
    mode: "match",
    expected_phone: "02-123-4567",
    client_reference: "a".repeat(161),
    state: 7,
    parent_origin: "https://elsewhere.example",
    return_url: "\0",
    extra: 1,
    more: { a: 1 },
  });
  expect(complaintsOf(answer)).toEqual(
    ["client_reference", "expected_phone", "extra", "more", "parent_origin", "return_url", "state"].sort(),
  );
  expect(Object.keys(answer.body.error)).toEqual(["code", "message", "request_id", "fields"]);
});

test("of two violations of a field the first is reported: a wrong type before a requirement of the mode", async () => {
  const { body } = await shop.create({ mode: "match", expected_phone: 1012345678 });
  expect(body.error.fields).toEqual([{ field: "expected_phone", message: "must be a string or null" }]);
});

test("each of two thousand unknown fields is named", async () => {
  const names = Array.from({ length: 2000 }, (_, index) => `field${index}`);
  const answer = await shop.create(Object.fromEntries(names.map((name) => [name, 0])));
  expect(complaintsOf(answer)).toEqual(names.sort());
});

describe("a JSON body that is not an object is refused as the field body:", () => {
  test.for(["null", "[]", "[{}]", '"text"', "0", "true"])("%s", async (body) => {
    expect(complaintsOf(await shop.create(body))).toEqual(["body"]);
  });
});

describe("a body", () => {
  const invalid: { name: string; body: string | Uint8Array<ArrayBuffer> }[] = [
    { name: "that is empty", body: "" },
    { name: "that is cut off", body: '{"state":' },
    { name: "of two objects", body: "{}{}" },
    { name: "with an extra comma", body: '{"state":"s",}' },
    { name: "with single quotes", body: "{'state':'s'}" },
    { name: "with a comment", body: "{/* */}" },
    { name: "of NaN", body: "NaN" },
    { name: "with a raw line break in a string", body: '{"state":"a\nb"}' },
    { name: "of 60,000 brackets", body: "[".repeat(60_000) },
    { name: "in Latin-1", body: Uint8Array.from(Buffer.from('{"state":"é"}', "latin1")) },
    { name: "in UTF-16", body: Uint8Array.from(Buffer.from("{}", "utf16le")) },
    {
      name: "with overlong UTF-8",
      body: Uint8Array.from([...Buffer.from('{"state":"'), 0xc0, 0x80, ...Buffer.from('"}')]),
    },
    {
      name: "with a surrogate in UTF-8",
      body: Uint8Array.from([...Buffer.from('{"state":"'), 0xed, 0xa0, 0x80, ...Buffer.from('"}')]),
    },
  ];
  test.for(invalid)("$name: invalid_json", async ({ body }) => {
    const answer = await shop.create(body);
    expect(answer).toMatchObject({ status: 400, body: { error: { code: "invalid_json" } } });
    expect(answer.body.error.fields).toBeUndefined();
    expect(answer.body.error.message).toMatch(/^The body is not JSON in UTF-8/);
  });

  test("with a byte order mark: invalid_json, whose message says so", async () => {
    const answer = await shop.create("\ufeff{}");
    expect(answer).toMatchObject({ status: 400, body: { error: { code: "invalid_json" } } });
    expect(answer.body.error.message).toMatch(/^The body begins with a byte order mark/);
  });

  test("that is compressed: invalid_json, whose message says so", async () => {
    const answer = await shop.create(Uint8Array.from(gzipSync("{}")), undefined, {
      "content-encoding": "gzip",
    });
    expect(answer).toMatchObject({ status: 400, body: { error: { code: "invalid_json" } } });
    expect(answer.body.error.message).toMatch(/^The body is compressed/);
  });

  test("with a field nested 30,000 deep: only that field is refused", async () => {
    const body = `{"state":${"[".repeat(30_000)}${"]".repeat(30_000)}}`;
    expect(complaintsOf(await shop.create(body))).toEqual(["state"]);
  });

  test("with duplicate members: the last one counts", async () => {
    const answer = await shop.create('{"state":1,"state":"last"}');
    expect(answer).toMatchObject({ status: 201, body: { state: "last" } });
  });

  test.for([
    { size: 65_536, status: 201 },
    { size: 65_537, status: 400 },
    { size: 3_000_000, status: 400 },
  ])("of $size bytes: $status", async ({ size, status }) => {
    const answer = await shop.create(`{}${" ".repeat(size - 2)}`);
    expect(answer.status).toBe(status);
    if (status === 400) expect(answer.body.error.code).toBe("body_too_large");
    const cancelled = await shop.cancel("vrf_none", { body: "x".repeat(size) });
    expect(cancelled.body.error.code).toBe(status === 400 ? "body_too_large" : "verification_not_found");
  });
});

describe("the content type", () => {
  test("is accepted with no content encoding but identity", async () => {
    const statuses = [];
    for (const coding of ["identity", "Identity, ,identity", "", "gzip", "br", "identity, gzip"]) {
      const answer = await shop.create({}, undefined, { "content-encoding": coding });
      statuses.push([answer.status, answer.body.error?.code]);
    }
    const refused = [400, "invalid_json"];
    const taken = [201, undefined];
    expect(statuses).toEqual([taken, taken, taken, refused, refused, refused]);
  });

  test.for([
    "application/json",
    "Application/JSON",
    "application/json;charset=utf-8",
    "application/json; charset=latin1; a=b",
  ])("%s is accepted", async (type) => {
    expect((await shop.create({}, undefined, { "content-type": type })).status).toBe(201);
  });

  test.for([
    "text/plain",
    "application/jsonp",
    "application/problem+json",
    "application/json, text/html",
    "text/json",
    "json",
    "*/*",
  ])("%s is refused", async (type) => {
    const answer = await shop.create({}, undefined, { "content-type": type });
    expect(answer).toMatchObject({ status: 400, body: { error: { code: "unsupported_content_type" } } });
  });
});

describe("an Idempotency-Key", () => {
  test.for(["a2345678", "A.b_C:d-", "0".repeat(128)])("%s is accepted", async (key) => {
    expect((await shop.create({}, key)).status).toBe(201);
  });

  test.for([
    "a234567",
    "0".repeat(129),
    "with space",
    "semi;colon",
    "käse-brot",
    "under/slash",
    "comma,comma",
  ])("%s is refused", async (key) => {
    const answer = await shop.create({}, key);
    expect(answer).toMatchObject({ status: 400, body: { error: { code: "idempotency_key_invalid" } } });
  });
});
