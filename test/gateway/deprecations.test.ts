import { describe, expect, test } from "vitest";
import { type Deprecation, deprecations } from "../../src/gateway/deprecations.ts";
import { startTestService } from "../harness/service.ts";
import { type Answer, merchant } from "./merchant.ts";

const entries: readonly Deprecation[] = [
  {
    method: "POST",
    route: "/v1/verifications/:verification_id/cancel",
    since: new Date("2026-11-01T00:00:00.500Z"),
    sunset: new Date("2027-11-01T00:00:00Z"),
    instead: "https://phoneproof.example/cancel",
  },
  {
    method: "POST",
    route: "/v1/verifications",
    field: "return_url",
    since: new Date("2026-12-01T00:00:00Z"),
    sunset: new Date("2028-01-01T00:00:00Z"),
    instead: "https://phoneproof.example/return",
  },
  {
    method: "POST",
    route: "/v1/verifications",
    field: "mode",
    since: new Date("2026-11-15T00:00:00Z"),
    sunset: null,
    instead: "https://phoneproof.example/mode",
  },
];
const service = await startTestService({}, { deprecations: entries });
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);

const announced = ({ headers }: Answer) => ["deprecation", "sunset", "link"].map((name) => headers.get(name));

interface Document {
  paths: Record<string, { post: { deprecated?: boolean } }>;
  components: { schemas: { CreateVerification: { properties: Record<string, { deprecated?: boolean }> } } };
}

const nothing = [null, null, null];

describe("a deprecated route", () => {
  const headers = [
    "@1793491200",
    "Mon, 01 Nov 2027 00:00:00 GMT",
    '<https://phoneproof.example/cancel>; rel="deprecation"; type="text/html"',
  ];

  test("still works and announces its deprecation in headers", async () => {
    const { body } = await shop.create();
    const cancelled = await shop.cancel(body.id);
    expect(cancelled.body.status).toBe("cancelled");
    expect(announced(cancelled)).toEqual(headers);
  });

  test("announces it with a refusal too", async () => {
    expect(announced(await shop.cancel("vrf_none"))).toEqual(headers);
    expect(announced(await merchant(service.httpUrl, "pp_live_x").cancel("vrf_none"))).toEqual(headers);
  });

  test("is the only one that announces it", async () => {
    const created = await shop.create({ state: "mode" });
    expect(announced(created)).toEqual(nothing);
    expect(announced(await shop.read(created.body.id))).toEqual(nothing);
    expect(announced(await shop.call("GET", "/nowhere"))).toEqual(nothing);
  });
});

describe("a deprecated field", () => {
  const mode = '<https://phoneproof.example/mode>; rel="deprecation"; type="text/html"';
  const returnUrl = '<https://phoneproof.example/return>; rel="deprecation"; type="text/html"';

  test("is announced if it is sent, whatever the result of the call", async () => {
    expect(announced(await shop.create({ mode: "discover" }))).toEqual(["@1794700800", null, mode]);
    const refused = await shop.create({ return_url: 1 });
    expect(refused.status).toBe(422);
    expect(announced(refused)).toEqual(["@1796083200", "Sat, 01 Jan 2028 00:00:00 GMT", returnUrl]);
  });

  test("together with another announces the earlier dates and both pages", async () => {
    const answer = await shop.create({ mode: "discover", return_url: null });
    expect(announced(answer)).toEqual([
      "@1794700800",
      "Sat, 01 Jan 2028 00:00:00 GMT",
      `${returnUrl}, ${mode}`,
    ]);
  });

  test("is not announced for a body that is not an object", async () => {
    for (const body of ["null", "[]", '"mode"', "{"]) {
      expect(announced(await shop.create(body))).toEqual(nothing);
    }
  });
});

test("openapi.json marks deprecated routes and fields, and /docs links to their pages", async () => {
  const document = (await (await fetch(`${service.httpUrl}/openapi.json`)).json()) as Document;
  const operation = (path: string) => document.paths[path]?.post;
  expect(operation("/v1/verifications")?.deprecated).toBeUndefined();
  expect(operation("/v1/verifications/{verification_id}/cancel")?.deprecated).toBe(true);
  const { properties } = document.components.schemas.CreateVerification;
  const marked = Object.keys(properties).filter((field) => properties[field]?.deprecated);
  expect(marked).toEqual(["mode", "return_url"]);
  const html = await (await fetch(`${service.httpUrl}/docs`)).text();
  for (const { instead } of entries) expect(html).toContain(`href="${instead}"`);
});

test.for([
  {
    page: "/docs",
    items: [
      "POST /v1/verifications/:verification_id/cancel: since 2026-11-01, to be removed on 2027-11-01; what to use instead",
      "return_url in POST /v1/verifications: since 2026-12-01, to be removed on 2028-01-01; what to use instead",
      "mode in POST /v1/verifications: since 2026-11-15; what to use instead",
    ],
  },
  {
    page: "/docs/ko",
    items: [
      "POST /v1/verifications/:verification_id/cancel: 2026-11-01부터, 2027-11-01에 없어집니다; 대신 사용할 것",
      "return_url in POST /v1/verifications: 2026-12-01부터, 2028-01-01에 없어집니다; 대신 사용할 것",
      "mode in POST /v1/verifications: 2026-11-15부터; 대신 사용할 것",
    ],
  },
])("$page lists what is deprecated, since when and until when", async ({ page, items }) => {
  const html = await (await fetch(service.httpUrl + page)).text();
  const [, section = ""] = /<h2 id="deprecated">([\s\S]*?)<\/ul>/.exec(html) ?? [];
  const listed = [...section.matchAll(/<li>(.*?)<\/li>/g)].map(([, item = ""]) =>
    item.replace(/<[^>]+>/g, ""),
  );
  expect(listed).toEqual(items);
});

test("every current deprecation names an existing route, and its dates are in order", () => {
  const routes = [
    "POST /v1/verifications",
    "GET /v1/verifications/:verification_id",
    "POST /v1/verifications/:verification_id/cancel",
  ];
  for (const { method, route, since, sunset, instead } of deprecations) {
    expect(routes).toContain(`${method} ${route}`);
    expect(sunset?.getTime() ?? Number.POSITIVE_INFINITY).toBeGreaterThan(since.getTime());
    expect(URL.canParse(instead)).toBe(true);
  }
});
