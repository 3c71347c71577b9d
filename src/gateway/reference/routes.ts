/** The contract for people: `/openapi.json`, and pages made of the same schemas, in English and in Korean. */

import type { FastifyInstance, FastifyReply } from "fastify";
import { contractCodes } from "../../failures.ts";
import type { Deprecation } from "../deprecations.ts";
import { openApiDocument } from "../openapi.ts";
import { english } from "./english.ts";
import { korean } from "./korean.ts";
import { errorPage, referencePage } from "./pages.ts";
import { style } from "./style.ts";

const contentSecurityPolicy =
  "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** Link checkers send HEAD. */
const withHead = { exposeHeadRoute: true };

/**
 * A plugin; `publicBase` is known once the service listens. Anybody may send requests, as often as they like: what
 * takes milliseconds to build is built once, and all responses share its bytes.
 */
export function referenceRoutes(publicBase: { readonly url: string }, deprecations: readonly Deprecation[]) {
  function madeOnce(make: (baseUrl: string) => string): () => Buffer {
    let made: { readonly of: string; readonly bytes: Buffer } | undefined;
    return () => {
      const { url } = publicBase;
      if (made?.of !== url) made = { of: url, bytes: Buffer.from(make(url)) };
      return made.bytes;
    };
  }

  return async (scope: FastifyInstance): Promise<void> => {
    const document = madeOnce((baseUrl) => JSON.stringify(openApiDocument(baseUrl, deprecations), null, 2));
    scope.get("/openapi.json", withHead, async (_request, reply) => {
      reply.header("cache-control", "public, max-age=300").header("access-control-allow-origin", "*");
      return reply.type("application/json; charset=utf-8").send(document());
    });
    scope.get("/docs/style.css", withHead, async (_request, reply) =>
      reply.header("cache-control", "public, max-age=300").type("text/css; charset=utf-8").send(style),
    );
    for (const texts of [english, korean]) {
      const { path } = texts;
      const page = madeOnce((baseUrl) => referencePage(texts, baseUrl, deprecations));
      scope.get(path, withHead, async (_request, reply) => sendPage(reply, page()));
      const name = path.slice(path.lastIndexOf("/"));
      // Relative, like the pages' links.
      for (const [parent, target] of [
        [`${path}/`, `..${name}`],
        [`${path}/errors`, `..${name}#errors`],
        [`${path}/errors/`, `../..${name}#errors`],
      ] as const) {
        scope.get(parent, withHead, async (_request, reply) => reply.redirect(target, 308));
      }
      scope.get<{ Params: { code: string } }>(`${path}/errors/:code`, withHead, async (request, reply) => {
        const code = contractCodes.find((known) => known === request.params.code);
        if (code === undefined) return reply.callNotFound();
        return sendPage(reply, errorPage(texts, code));
      });
    }
  };
}

function sendPage(reply: FastifyReply, html: string | Buffer): FastifyReply {
  return reply
    .header("content-security-policy", contentSecurityPolicy)
    .header("x-content-type-options", "nosniff")
    .header("referrer-policy", "no-referrer")
    .header("cache-control", "public, max-age=300")
    .type("text/html; charset=utf-8")
    .send(html);
}
