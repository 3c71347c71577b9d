import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { Validator } from "@seriousme/openapi-schema-validator";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { contractCodes, Failure } from "../../src/failures.ts";
import { payloadOf } from "../../src/webhooks/payload.ts";
import { undescribed } from "../harness/contract.ts";
import { startTestService } from "../harness/service.ts";
import { merchant } from "./merchant.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);

const get = (path: string) => fetch(`${service.httpUrl}${path}`);

interface Document {
  openapi: string;
  servers: { url: string }[];
  components: {
    schemas: Record<string, { required?: string[]; properties?: Record<string, { format?: string }> }>;
  };
  paths: Record<string, Record<string, { responses: Record<string, { content: Record<string, Media> }> }>>;
  webhooks: Record<string, { post: { requestBody: { content: Record<string, { example: unknown }> } } }>;
}
interface Media {
  schema: unknown;
  example?: unknown;
  examples?: Record<string, { value: { error: { code: string } } }>;
}

describe("/openapi.json", () => {
  test("is a valid OpenAPI 3.1 document", async () => {
    const response = await get("/openapi.json");
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toBe("application/json; charset=utf-8");
    expect(response.headers.get("x-request-id")).toMatch(/^req_/);
    const document = (await response.json()) as Document;
    expect(document.openapi).toBe("3.1.0");
    const result = await new Validator().validate(
      structuredClone<object>(document) as Record<string, unknown>,
    );
    expect(result).toMatchObject({ valid: true });
    expect(new URL(document.servers[0]?.url ?? "").port).toBe(new URL(service.httpUrl).port);
  });

  test("is generated at most once, however often it is requested", async () => {
    const made = vi.spyOn(JSON, "stringify");
    onTestFinished(() => made.mockRestore());
    const texts = await Promise.all(
      Array.from({ length: 5 }, async () => (await get("/openapi.json")).text()),
    );
    expect(new Set(texts).size).toBe(1);
    expect(made.mock.calls.filter(([value]) => value?.openapi).length).toBeLessThanOrEqual(1);
  });

  test("passes a linter's recommended rules", async () => {
    const folder = await mkdtemp(path.join(os.tmpdir(), "phoneproof-openapi-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    await writeFile(path.join(folder, "openapi.json"), await (await get("/openapi.json")).text());
    // No licence has been chosen, and the service under test is on localhost.
    const rules = ["--extends=recommended", "--skip-rule=info-license", "--skip-rule=no-server-example.com"];
    const cli = path.join(import.meta.dirname, "../../node_modules/.bin/redocly");
    const { stdout } = await promisify(execFile)(cli, ["lint", "openapi.json", ...rules, "--format=json"], {
      cwd: folder,
      env: { ...process.env, REDOCLY_TELEMETRY: "off", REDOCLY_SUPPRESS_UPDATE_NOTICE: "true" },
    }).catch((error: { stdout: string }) => error);
    expect(JSON.parse(stdout)).toMatchObject({
      totals: { errors: 0, warnings: 0, ignored: 0 },
      problems: [],
    });
  });

  test("has the contract's three operations, each with the contract's statuses", async () => {
    const { paths } = (await (await get("/openapi.json")).json()) as Document;
    const refusals = ["400", "401", "403", "404", "409", "422", "429", "503"];
    const operations = Object.entries(paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, { responses }]) => [`${method} ${path}`, Object.keys(responses)]),
    );
    expect(operations).toEqual([
      ["post /v1/verifications", ["200", "201", ...refusals]],
      ["get /v1/verifications/{verification_id}", ["200", ...refusals]],
      ["post /v1/verifications/{verification_id}/cancel", ["200", ...refusals]],
    ]);
  });

  test("has an example of every error code, and its examples match its schemas", async () => {
    const { paths } = (await (await get("/openapi.json")).json()) as Document;
    const codes = new Set<string>();
    for (const [template, methods] of Object.entries(paths)) {
      const path = template.replace("{verification_id}", "vrf_01kaex4mpyf2xbtyt1s6vdr4e9");
      for (const [method, { responses }] of Object.entries(methods)) {
        for (const [status, { content }] of Object.entries(responses)) {
          const { example, examples = {} } = content["application/json"] as Media;
          for (const { value } of Object.values(examples)) codes.add(value.error.code);
          for (const body of [example, ...Object.values(examples).map(({ value }) => value)]) {
            if (body === undefined) continue;
            const problems = undescribed(method, path, {
              status: Number(status),
              headers: new Headers(),
              body,
            });
            expect(problems.filter((problem) => !problem.startsWith("no header"))).toEqual([]);
          }
        }
      }
    }
    expect([...codes].sort()).toEqual([...contractCodes].sort());
    const codesOf = (path: string, method: string, status: string) =>
      Object.keys(paths[path]?.[method]?.responses[status]?.content["application/json"]?.examples ?? {});
    const one = "/v1/verifications/{verification_id}";
    expect(codesOf("/v1/verifications", "post", "404")).toEqual(["route_not_found"]);
    expect(codesOf(one, "get", "404")).toContain("verification_not_found");
    expect(codesOf(one, "get", "400")).toEqual(["malformed_request"]);
    expect(codesOf(`${one}/cancel`, "post", "400")).toContain("body_too_large");
  });

  test("requires the contract's fields in a read, and in a creation also the carrier", async () => {
    const { components } = (await (await get("/openapi.json")).json()) as Document;
    const { CreatedVerification: created, VerificationResult: read } = components.schemas;
    const alone = ["verification_url", "destination", "sms_text", "carrier"];
    expect(created?.required).toContain("carrier");
    expect(read?.required).toEqual(created?.required?.filter((name) => !alone.includes(name)));
  });

  test("has no list of values with null in it, for which generators make types without null", async () => {
    const { components } = (await (await get("/openapi.json")).json()) as Document;
    const text = JSON.stringify(components.schemas);
    const lists = [...text.matchAll(/"enum":\[[^\]]*\]/g)].map(([list]) => list);
    expect(lists).toContain('"enum":["SKT","KT","LGU+"]');
    expect(lists.filter((list) => list.includes("null"))).toEqual([]);
    expect(components.schemas.VerificationResult?.properties?.carrier).toMatchObject({
      anyOf: [{ type: "string" }, { type: "null" }],
    });
  });

  test("says which fields are timestamps", async () => {
    const { components } = (await (await get("/openapi.json")).json()) as Document;
    const timestampsOf = (name: string) =>
      Object.entries(components.schemas[name]?.properties ?? {})
        .filter(([, { format }]) => format === "date-time")
        .map(([property]) => property);
    const ofVerification = ["created_at", "expires_at", "verified_at", "server_time"];
    expect(timestampsOf("CreatedVerification")).toEqual(ofVerification);
    expect(timestampsOf("VerificationResult")).toEqual(ofVerification);
    expect(timestampsOf("WebhookEvent")).toEqual(["timestamp"]);
  });

  test("describes the three webhooks as they are sent", async () => {
    const { webhooks } = (await (await get("/openapi.json")).json()) as Document;
    const sent = JSON.parse(
      payloadOf({
        type: "verification.verified",
        occurredAt: 0,
        verification: {
          id: "01919108-9f21-7a3c-8b1e-000000000001",
          projectId: "01919108-9f21-7a3c-8b1e-000000000002",
          environment: "live",
          mode: "discover",
          status: "verified",
          phone: "01012345678",
          carrier: "SKT",
          clientReference: "",
          state: "",
          createdAt: 0,
          expiresAt: 1,
          verifiedAt: 0,
          serverTime: 0,
        },
      } as Parameters<typeof payloadOf>[0]),
    );
    expect(Object.keys(webhooks)).toEqual([
      "verification.verified",
      "verification.expired",
      "verification.cancelled",
    ]);
    for (const [kind, { post }] of Object.entries(webhooks)) {
      const example = post.requestBody.content["application/json"]?.example as typeof sent;
      expect(Object.keys(example)).toEqual(Object.keys(sent));
      expect(Object.keys(example.data)).toEqual(Object.keys(sent.data));
      expect([example.type, `verification.${example.data.status}`]).toEqual([kind, kind]);
      expect(example.timestamp).toBe(example.data.server_time);
      expect(example.data.verified_at).toBe(kind === "verification.verified" ? example.timestamp : null);
      expect(example.timestamp > example.data.expires_at).toBe(kind === "verification.expired");
    }
  });
});

describe("an answer that the document does not describe is detected:", () => {
  const body = { error: { code: "x", message: "y" } };
  const headers = new Headers({ "x-request-id": "req_01kaex4mpyf2xbtyt1s6vdr4e9" });

  test.for<[what: string, answer: { status: number; headers: Headers; body: unknown }]>([
    ["another status", { status: 418, headers, body }],
    ["another body", { status: 404, headers, body: { error: { code: 1, message: "y" } } }],
    ["a missing header", { status: 404, headers: new Headers(), body }],
    ["a header's value", { status: 404, headers: new Headers({ "x-request-id": "7" }), body }],
    ["a further header", { status: 404, headers: new Headers([...headers, ["x-more", "1"]]), body }],
  ])("%s", ([, answer]) => {
    expect(undescribed("GET", "/v1/verifications/x", answer)).toHaveLength(1);
  });

  test("a described answer is not reported", () => {
    expect(undescribed("GET", "/v1/verifications/x", { status: 404, headers, body })).toEqual([]);
  });
});

interface Components {
  schemas: {
    CreateVerification: {
      properties: Record<string, { enum?: string[]; maxLength?: number; default: unknown }>;
    };
  };
}

describe("/docs", () => {
  const pages = ["/docs", "/docs/errors/invalid_json", "/docs/ko", "/docs/ko/errors/invalid_json"];

  /** The paths of a page's links and style sheet if a proxy serves everything under `prefix`. */
  async function linksOf(page: string, prefix = ""): Promise<string[]> {
    const base = new URL(prefix + page, "https://docs.example");
    const hrefs = [...(await (await get(page)).text()).matchAll(/href="([^"]*)"/g)];
    const urls = hrefs.map(([, href = ""]) => new URL(href, base));
    return urls.filter(({ host }) => host === base.host).map(({ pathname }) => pathname);
  }

  test("and the files that belong to it answer HEAD like GET, without a body", async () => {
    for (const path of [...pages, "/docs/style.css", "/openapi.json"]) {
      const [asked, got] = [await fetch(`${service.httpUrl}${path}`, { method: "HEAD" }), await get(path)];
      expect([asked.status, asked.headers.get("content-type"), await asked.text()]).toEqual([
        200,
        got.headers.get("content-type"),
        "",
      ]);
    }
  });

  test.for([
    ["/docs/", "/docs"],
    ["/docs/ko/", "/docs/ko"],
    ["/docs/errors", "/docs#errors"],
    ["/docs/errors/", "/docs#errors"],
    ["/docs/ko/errors", "/docs/ko#errors"],
    ["/docs/ko/errors/", "/docs/ko#errors"],
  ])("%s redirects to %s, also under a proxy's path", async ([asked = "", wanted]) => {
    const { status, headers } = await fetch(`${service.httpUrl}${asked}`, { redirect: "manual" });
    const { pathname, hash } = new URL(headers.get("location") ?? "", `https://docs.example/phone${asked}`);
    expect([status, pathname + hash]).toEqual([308, `/phone${wanted}`]);
    const [page = "", id] = `${wanted}`.split("#");
    if (id) expect(await (await get(page)).text()).toContain(`id="${id}"`);
  });

  test("is a page with a strict content security policy that loads nothing from other hosts", async () => {
    const response = await get("/docs");
    const html = await response.text();
    expect(response.status).toBe(200);
    expect(response.headers.get("content-type")).toBe("text/html; charset=utf-8");
    expect(response.headers.get("content-security-policy")).toContain("default-src 'none'");
    expect(html).not.toMatch(/<script|style=|<style|\bon\w+=/);
    const loaded = [...html.matchAll(/(?:src|rel="(?:stylesheet|icon)" href)="([^"]+)"/g)].map(
      ([, url]) => url,
    );
    // An empty icon: without one, browsers ask for /favicon.ico, and Firefox complains that the policy forbids it.
    expect(loaded).toEqual(["docs/style.css", "data:,"]);
    expect(response.headers.get("content-security-policy")).toContain("img-src data:;");
    expect((await get("/docs/style.css")).status).toBe(200);
  });

  test("and the files that belong to it may be kept for five minutes; scripts of any site may read openapi.json alone", async () => {
    const headersOf = async (path: string) => (await get(path)).headers;
    for (const path of [...pages, "/docs/style.css", "/openapi.json"])
      expect((await headersOf(path)).get("cache-control"), path).toBe("public, max-age=300");
    for (const page of pages) {
      const headers = await headersOf(page);
      expect(headers.get("x-content-type-options")).toBe("nosniff");
      expect(headers.get("referrer-policy")).toBe("no-referrer");
      expect(headers.get("access-control-allow-origin")).toBeNull();
    }
    expect((await headersOf("/openapi.json")).get("access-control-allow-origin")).toBe("*");
  });

  test.for([
    "/docs",
    "/docs/ko",
  ])("%s links to a page for each error code, and every link works", async (page) => {
    const links = await linksOf(page);
    expect(links.filter((url) => url.startsWith(`${page}/errors/`))).toHaveLength(contractCodes.length);
    for (const link of links) expect((await get(link)).status).toBe(200);
  });

  test.for([
    "/docs",
    ...contractCodes.map((code) => `/docs/errors/${code}`),
  ])("%s has a Korean translation, and the two link to each other", async (english) => {
    const korean = english.replace("/docs", "/docs/ko");
    expect(await linksOf(english)).toContain(korean);
    expect(await linksOf(korean)).toContain(english);
    const [one, other] = await Promise.all([english, korean].map(async (page) => (await get(page)).text()));
    const skeleton = (html = "") => [...html.matchAll(/<(h[1-3]|pre|tr|td|p)\b/g)].map(([, tag]) => tag);
    expect(skeleton(other)).toEqual(skeleton(one));
    expect(other).toContain('<html lang="ko">');
    expect(one).toContain('<link rel="alternate" hreflang="ko"');
    expect(other).toContain('<link rel="alternate" hreflang="en"');
    const hangul = /[가-힣]/;
    expect(one?.replace(/<a lang="ko".*?<\/a>/, "")).not.toMatch(hangul);
    // Each sentence and each heading, except the product's name and the codes.
    const sentences = [
      ...(other ?? "").matchAll(/<(?:p|h2|h3|th scope="col")\b[^>]*>(.*?)<\/(?:p|h2|h3|th)>/gs),
    ];
    expect(sentences.length).toBeGreaterThan(2);
    for (const [, text = ""] of sentences) {
      if (!text.includes(">English<")) expect(text).toMatch(hangul);
    }
    // The meaning of each field that has one in English.
    const meanings = (html = "") =>
      [...html.matchAll(/<td>([^<]*(?:<(?!\/td).[^<]*)*)<\/td><\/tr>/g)].map(([, text = ""]) => text);
    meanings(one).forEach((meaning, row) => {
      if (meaning !== "") expect(meanings(other)[row], meaning).toMatch(hangul);
    });
  });

  test.for(pages)("the links of %s also work under a proxy's path", async (page) => {
    const links = await linksOf(page, "/phone");
    expect(links.length).toBeGreaterThan(1);
    for (const link of links) {
      expect(link).toMatch(/^\/phone\//);
      expect((await get(link.slice("/phone".length))).status).toBe(200);
    }
  });

  test.for([
    { page: "/docs", atMost: "at most # characters", byDefault: "by default #" },
    { page: "/docs/ko", atMost: "최대 #자", byDefault: "기본값 #" },
  ])("$page tells what each field of a request may be", async ({ page, atMost, byDefault }) => {
    const html = (await (await get(page)).text()).replaceAll("<wbr>", "");
    const document = (await (await get("/openapi.json")).json()) as { components: Components };
    const { properties } = document.components.schemas.CreateVerification;
    expect(Object.keys(properties).length).toBeGreaterThan(4);
    for (const [name, { enum: values = [], maxLength, default: standard }] of Object.entries(properties)) {
      const row = new RegExp(`<tr><th scope="row"><code>${name}</code></th><td>(.*?)</td>`);
      const [, told] = row.exec(html) ?? [];
      for (const value of values) expect(told).toContain(`<code>${value}</code>`);
      if (maxLength !== undefined) expect(told).toContain(atMost.replace("#", String(maxLength)));
      const written = JSON.stringify(standard).replaceAll('"', "&quot;");
      expect(told).toContain(byDefault.replace("#", `<code>${written}</code>`));
    }
  });

  test.for([
    "/docs",
    "/docs/ko",
  ])("%s has a row for each error code, which names it, with its status", async (page) => {
    const html = (await (await get(page)).text()).replaceAll("<wbr>", "");
    const rows = /<tr><td>(\d+)<\/td><th scope="row"><a href="[^"]+"><code>(\w+)<\/code><\/a><\/th>/g;
    expect([...html.matchAll(rows)].map(([, status, code]) => [Number(status), code])).toEqual(
      contractCodes.map((code) => [new Failure(code).status, code]),
    );
  });

  test("describes the kinds and headers of webhooks", async () => {
    const html = await (await get("/docs")).text();
    const { webhooks } = (await (await get("/openapi.json")).json()) as Document;
    const [, section = ""] = /<h2 id="webhooks">([\s\S]*?)<h2/.exec(html) ?? [];
    for (const kind of Object.keys(webhooks)) expect(section).toContain(`<code>${kind}</code>`);
    for (const header of ["webhook-id", "webhook-timestamp", "webhook-signature"]) {
      expect(section).toContain(`<code>${header}</code>`);
    }
  });

  test("has no page for something that is not an error code", async () => {
    const response = await get("/docs/errors/not_found");
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({ error: { code: "route_not_found" } });
  });

  test("needs no key, does not use a rate limit and is not counted", async () => {
    await get("/docs");
    const { headers } = await shop.create();
    expect(headers.get("x-usage-calls")).toBe("1");
    expect((await get("/docs")).headers.has("ratelimit")).toBe(false);
  });
});
