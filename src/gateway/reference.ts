/**
 * The contract for people: `/openapi.json`, and pages made of the same document. They hold no script. Their links are
 * relative, so that they lead somewhere under whatever path a proxy puts in front.
 */

import type { FastifyInstance, FastifyReply } from "fastify";
import { contractCodes, Failure, type FailureCode } from "../failures.ts";
import type { Deprecation } from "./deprecations.ts";
import { errorExample, eventExample, openApiDocument } from "./openapi.ts";
import { apiError, createdVerification, createVerificationBody, verificationResult } from "./schemas.ts";

const contentSecurityPolicy =
  "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** Link checkers ask so. */
const withHead = { exposeHeadRoute: true };

/** A plugin; `publicBase` is known once the service listens. */
export function referenceRoutes(publicBase: { readonly url: string }, deprecations: readonly Deprecation[]) {
  return async (scope: FastifyInstance): Promise<void> => {
    scope.get("/openapi.json", withHead, async (_request, reply) => {
      reply.header("cache-control", "public, max-age=300").header("access-control-allow-origin", "*");
      return reply
        .type("application/json; charset=utf-8")
        .send(JSON.stringify(openApiDocument(publicBase.url, deprecations), null, 2));
    });
    scope.get("/docs", withHead, async (_request, reply) =>
      sendPage(reply, referencePage(publicBase.url, deprecations)),
    );
    scope.get("/docs/", withHead, async (_request, reply) => reply.redirect("../docs", 308));
    scope.get("/docs/style.css", withHead, async (_request, reply) =>
      reply.header("cache-control", "public, max-age=300").type("text/css; charset=utf-8").send(style),
    );
    scope.get<{ Params: { code: string } }>("/docs/errors/:code", withHead, async (request, reply) => {
      const code = contractCodes.find((known) => known === request.params.code);
      if (code === undefined) return reply.callNotFound();
      return sendPage(reply, errorPage(code));
    });
  };
}

function sendPage(reply: FastifyReply, html: string): FastifyReply {
  return reply
    .header("content-security-policy", contentSecurityPolicy)
    .header("x-content-type-options", "nosniff")
    .header("referrer-policy", "no-referrer")
    .header("cache-control", "public, max-age=300")
    .type("text/html; charset=utf-8")
    .send(html);
}

const escapes: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text: string) => text.replace(/[&<>"]/g, (character) => escapes[character] ?? character);

/** Escaped, with `code` in its marks. */
const prose = (text: string) => escaped(text).replace(/`([^`]+)`/g, "<code>$1</code>");

/** `root` leads from the page to where `docs` is. */
function page(title: string, root: "" | "../../", body: string): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escaped(title)}</title>
<link rel="stylesheet" href="${root}docs/style.css">
</head>
<body>
<main>
${body}
</main>
</body>
</html>
`;
}

interface Schema {
  readonly type?: string | readonly string[];
  readonly enum?: readonly (string | null)[];
  readonly maxLength?: number;
  readonly default?: unknown;
  readonly description?: string;
}

function fieldTable(properties: Readonly<Record<string, Schema>>): string {
  const rows = Object.entries(properties).map(([name, schema]) => {
    const { enum: values, maxLength, description = "", default: standard } = schema;
    const types = [schema.type ?? "any"].flat().join(" or ");
    const limits = [
      types,
      ...(values
        ? [values.map((value) => `<code>${value === null ? "null" : escaped(value)}</code>`).join(" ")]
        : []),
      ...(maxLength === undefined ? [] : [`at most ${maxLength} characters`]),
      ...(standard === undefined ? [] : [`by default <code>${escaped(JSON.stringify(standard))}</code>`]),
    ];
    return `<tr><th scope="row"><code>${name}</code></th><td>${limits.join("; ")}</td><td>${prose(description)}</td></tr>`;
  });
  return `<div class="wide"><table>
<thead><tr><th scope="col">Field</th><th scope="col">Value</th><th scope="col">Meaning</th></tr></thead>
<tbody>
${rows.join("\n")}
</tbody></table></div>`;
}

function errorTable(): string {
  const rows = contractCodes.map((code) => {
    const { status, message } = new Failure(code);
    return `<tr><td>${status}</td><th scope="row"><a href="docs/errors/${code}"><code>${code}</code></a></th><td>${prose(message)}</td></tr>`;
  });
  return `<div class="wide"><table>
<thead><tr><th scope="col">Status</th><th scope="col">Code</th><th scope="col">Message</th></tr></thead>
<tbody>
${rows.join("\n")}
</tbody></table></div>`;
}

function deprecationList(deprecations: readonly Deprecation[]): string {
  if (deprecations.length === 0) return "";
  const items = deprecations.map(({ method, route, field, since, sunset, instead }) => {
    const what = field === undefined ? `${method} ${route}` : `${field} in ${method} ${route}`;
    const until = sunset === null ? "" : `, to go on ${day(sunset)}`;
    return `<li><code>${escaped(what)}</code>: since ${day(since)}${until}; <a href="${escaped(instead)}">what to use instead</a></li>`;
  });
  return `
<h2 id="deprecated">Deprecated</h2>
<p>Answers to calls that use these have the headers <code>Deprecation</code> and <code>Sunset</code>.</p>
<ul>
${items.join("\n")}
</ul>
`;
}

const day = (date: Date) => date.toISOString().slice(0, "2026-11-21".length);

function referencePage(base: string, deprecations: readonly Deprecation[]): string {
  return page(
    "phoneproof API",
    "",
    `<h1>phoneproof API</h1>
<p>Does this person hold this phone? They send an SMS with a given text to a given number, and the network's word for
the sender is the proof. For machines: <a href="openapi.json">openapi.json</a>.</p>
<p>Every call is made by your server, with its secret key: <code>Authorization: Bearer &lt;API_KEY&gt;</code>. The key says which
project and environment it is.</p>

<h2 id="create">Create a verification</h2>
<pre><code>curl ${escaped(base)}/v1/verifications \\
  -H 'Authorization: Bearer &lt;API_KEY&gt;' \\
  -H 'Idempotency-Key: &lt;new for each attempt&gt;' \\
  -H 'Content-Type: application/json' \\
  -d '{}'</code></pre>
<p>Answers 201. Show the person <code>destination</code> and <code>sms_text</code>, or open <code>verification_url</code>. Where the answer is lost,
repeat the request with the same key and body: the first answer comes again, with <code>Idempotent-Replayed: true</code>. A key
is kept for 24 hours; with another body it answers 409.</p>
<h3>Body</h3>
${fieldTable(createVerificationBody.properties)}
<h3>Answer</h3>
${fieldTable(createdVerification.properties)}

<h2 id="read">Read a verification</h2>
<pre><code>curl ${escaped(base)}/v1/verifications/&lt;id&gt; -H 'Authorization: Bearer &lt;API_KEY&gt;'</code></pre>
${fieldTable(verificationResult.properties)}

<h2 id="cancel">Cancel a verification</h2>
<pre><code>curl -X POST ${escaped(base)}/v1/verifications/&lt;id&gt;/cancel -H 'Authorization: Bearer &lt;API_KEY&gt;'</code></pre>
<p>Answers as a read does. Only a pending verification can be cancelled; cancelling a cancelled one changes nothing.</p>

<h2 id="headers">Headers of every answer</h2>
<p><code>X-Request-ID</code> names the request, also in the error object. <code>X-Usage-Calls</code> and <code>X-Usage-Limit</code> say how many calls
the project has made in this calendar month (Asia/Seoul) and how many it may make, where the call was counted.
<code>RateLimit-Policy</code> and <code>RateLimit</code> say what is left of this minute; with 429 and 503, <code>Retry-After</code> says when to try again.</p>

<h2 id="webhooks">Webhooks</h2>
<p>A verification ends once, and one event says so to the webhook that was set for the project when the verification was
created: a POST, signed as <a href="https://www.standardwebhooks.com">Standard Webhooks</a> has it.</p>
<pre><code>${escaped(JSON.stringify(eventExample("verified"), null, 2))}</code></pre>
<p><code>type</code> is <code>verification.verified</code>, <code>verification.expired</code> or <code>verification.cancelled</code>; <code>data</code> is what a read
answered at that instant.</p>
<div class="wide"><table>
<thead><tr><th scope="col">Header</th><th scope="col">Meaning</th></tr></thead>
<tbody>
<tr><th scope="row"><code>webhook-id</code></th><td>The event, <code>evt_…</code>: the same whenever it is sent again. Work on each once.</td></tr>
<tr><th scope="row"><code>webhook-timestamp</code></th><td>When this attempt was made, in seconds since 1970. Refuse what is more than five minutes off.</td></tr>
<tr><th scope="row"><code>webhook-signature</code></th><td><code>v1,</code> and the base64 of an HMAC-SHA256; two with a space between them while the secret is changed. One that
verifies is enough.</td></tr>
</tbody></table></div>
<p>Signed is <code>{webhook-id}.{webhook-timestamp}.{body}</code>, the body as it was received, with what follows <code>whsec_</code> in your secret, decoded
from base64. Where it does not verify, answer 401. Answer 2xx within 15 seconds, and work then: anything else is sent again,
up to ten times in some three days. 410 disables the webhook.</p>
${deprecationList(deprecations)}
<h2 id="errors">Errors</h2>
<pre><code>${escaped(JSON.stringify(errorExample("validation_failed"), null, 2))}</code></pre>
${fieldTable(apiError.properties.error.properties)}
${errorTable()}`,
  );
}

/** What to do about it, where the message does not say it all. */
const advice: Partial<Record<FailureCode, string>> = {
  malformed_request:
    "It was refused before anything of it was looked at: what sent it is no working HTTP client, stopped amid its request, or sent an id or a header that is far too long.",
  unsupported_content_type:
    "Parameters such as `charset=utf-8` may follow; the body is read as UTF-8 whatever they say.",
  idempotency_key_required:
    "Make it when the person begins, and store it with the body before you send them: then a creation whose answer was lost can be repeated, also by a process that comes after yours.",
  invalid_api_key:
    "A key is shown once, when it is made, and has a checksum: one that was cut or mistyped never works. `npx phoneproof key list` shows which are active, `npx phoneproof key create` makes another.",
  missing_api_key:
    "Calls are made by your server only: a page or an app that held the key would give it away.",
  insufficient_scope:
    "Over REST only API keys of a project are taken, `pp_live_…` or `pp_test_…`. Tokens of internal services, `pp_svc_…`, are for gRPC, each for its scope.",
  idempotency_conflict:
    "A key belongs to one attempt. Store key and body together before you send them, and make a new key when the person tries again.",
  verification_not_cancellable:
    "It ended before the cancel came. Your person may just have sent the SMS: read the verification, and go by its `status`.",
  rate_limited:
    "Wait, then go on. The limit is for the project and the kind of call; an administrator can raise it.",
  usage_limit_exceeded:
    "The limit is the project's own, for a calendar month in Seoul. An administrator can raise it.",
  no_receiving_number:
    "A new project needs a number in each environment that it uses: `npx phoneproof number add NUMBER --environment live`. One that has numbers has too many pending verifications for them.",
  service_unavailable:
    "A creation may have been made though its answer was lost: repeat it with the same Idempotency-Key and body, and it is made once.",
  internal_error:
    "A creation may have been made though its answer was lost: repeat it with the same Idempotency-Key and body, and it is made once. Tell us the request_id if it stays so.",
  verification_not_found:
    "A test key does not see live verifications, nor a project those of another: that is answered as if there were none.",
  validation_failed: "`fields` names every field that is wrong, once each, and says what was expected.",
};

function errorPage(code: FailureCode): string {
  const { status, message } = new Failure(code);
  const more = advice[code];
  return page(
    `${code} - phoneproof API`,
    "../../",
    `<p><a href="../../docs#errors">All errors</a></p>
<h1><code>${code}</code></h1>
<p>Status ${status}. ${prose(message)}</p>
${more === undefined ? "" : `<p>${prose(more)}</p>\n`}<pre><code>${escaped(JSON.stringify(errorExample(code), null, 2))}</code></pre>`,
  );
}

const style = `:root{color-scheme:light dark;--text:#1c1c1e;--quiet:#56565b;--line:#d5d5da;--back:#fff;--code:#f3f3f5;--link:#0a58ca}
@media(prefers-color-scheme:dark){:root{--text:#f0f0f2;--quiet:#b3b3ba;--line:#3c3c42;--back:#161618;--code:#232327;--link:#8ab8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.6 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.8rem;line-height:1.25}
h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1.5rem}
a{color:var(--link)}
code{font:.875em/1.5 ui-monospace,monospace;background:var(--code);padding:.1em .3em;border-radius:.25em}
pre{background:var(--code);padding:1rem;border-radius:.5rem;overflow-x:auto}
pre code{padding:0;background:none}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9375rem}
th,td{text-align:left;vertical-align:top;padding:.5rem .75rem .5rem 0;border-bottom:1px solid var(--line)}
thead th{color:var(--quiet);font-weight:600}
th[scope=row]{font-weight:400}
`;
