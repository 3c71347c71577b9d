/**
 * Deprecated parts of v1: routes, and fields of the creation's body. Calls that use them are answered as usual, with
 * the headers Deprecation (RFC 9745) and Sunset (RFC 8594).
 */

import type { onRequestHookHandler, preHandlerHookHandler, RouteOptions } from "fastify";
import type { CreateVerificationBody } from "./create-request.ts";

export interface Deprecation {
  readonly method: "GET" | "POST";
  /** The route's pattern, such as `/v1/verifications/:verification_id`. */
  readonly route: string;
  /** Only calls whose body has this field; undefined: all calls. */
  readonly field?: keyof CreateVerificationBody;
  readonly since: Date;
  /** When it may stop working; null while undecided. Never before `since`. */
  readonly sunset: Date | null;
  /** A page that says what to use instead. */
  readonly instead: string;
}

/** Entries are added as docs/change-policy.md says. */
export const deprecations: readonly Deprecation[] = [];

/** A hook for the instance on which the routes are registered. Routes without an entry stay unchanged. */
export function announceDeprecations(entries: readonly Deprecation[]) {
  return (route: RouteOptions): void => {
    const own = entries.filter((entry) => entry.method === route.method && entry.route === route.url);
    const always = own.filter(({ field }) => field === undefined);
    if (always.length > 0) {
      // Before all other hooks, so that refusals carry the headers, too.
      const announce: onRequestHookHandler = (_request, reply, done) => {
        reply.headers(headersOf(always));
        done();
      };
      route.onRequest = [announce, ...[route.onRequest ?? []].flat()];
    }
    if (own.length === always.length) return;
    const announce: preHandlerHookHandler = (request, reply, done) => {
      const { body } = request;
      const used = own.filter(
        ({ field }) => field === undefined || (isObject(body) && Object.hasOwn(body, field)),
      );
      if (used.length > 0) reply.headers(headersOf(used));
      done();
    };
    route.preHandler = [announce, ...[route.preHandler ?? []].flat()];
  };
}

/** Where several apply, the earliest dates count. */
function headersOf(used: readonly Deprecation[]): Record<string, string> {
  const since = Math.min(...used.map((entry) => entry.since.getTime()));
  const sunsets = used.flatMap(({ sunset }) => (sunset === null ? [] : [sunset.getTime()]));
  return {
    deprecation: `@${Math.floor(since / 1000)}`,
    ...(sunsets.length > 0 && { sunset: new Date(Math.min(...sunsets)).toUTCString() }),
    link: used.map(({ instead }) => `<${instead}>; rel="deprecation"; type="text/html"`).join(", "),
  };
}

function isObject(body: unknown): body is object {
  return typeof body === "object" && body !== null;
}
