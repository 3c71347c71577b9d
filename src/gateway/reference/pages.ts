/**
 * The pages as HTML. They contain no script. Their links are relative, so that they work under any path that a proxy
 * puts in front.
 */

import { type ContractCode, contractCodes, Failure } from "../../failures.ts";
import type { Deprecation } from "../deprecations.ts";
import { errorExample, eventExample } from "../openapi.ts";
import { apiError, createdVerification, createVerificationBody, verificationResult } from "../schemas.ts";
import { english } from "./english.ts";
import { korean } from "./korean.ts";
import type { Prose, ReferenceTexts } from "./texts.ts";

const escapes: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text: string) => text.replace(/[&<>"]/g, (character) => escapes[character] ?? character);

/** A name, which may be broken after each `_`: as one word it would be wider than a phone, or leave no room for its meaning. */
const code = (text: string) => `<code>${escaped(text).replaceAll("_", "_<wbr>")}</code>`;

/** One of the pages; `root` is the relative path from it to the directory that contains `/docs`. */
interface Page {
  readonly texts: ReferenceTexts;
  readonly path: string;
  readonly root: string;
}

function pageAt(texts: ReferenceTexts, path: string): Page {
  return { texts, path, root: "../".repeat(path.split("/").length - 2) };
}

/** The relative link from the page to an address of this service. */
const linkTo = ({ root }: Page, address: string) =>
  address.startsWith("/") ? root + address.slice(1) : address;

/** Escapes the text, and turns its marks of `code` and of links into HTML. */
function prose(page: Page, text: Prose): string {
  return escaped(text)
    .replace(/`([^`]+)`/g, "<code>$1</code>")
    .replace(
      /\[([^\]]+)\]\(([^)]+)\)/g,
      (_link, name: string, address: string) => `<a href="${linkTo(page, address)}">${name}</a>`,
    );
}

function html(page: Page, title: string, body: string): string {
  const { texts, path } = page;
  const other = texts === english ? korean : english;
  const address = linkTo(page, path.replace(texts.path, other.path));
  return `<!doctype html>
<html lang="${texts.language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escaped(title)}</title>
<link rel="stylesheet" href="${linkTo(page, "/docs/style.css")}">
<link rel="icon" href="data:,">
<link rel="alternate" hreflang="${other.language}" href="${address}">
</head>
<body>
<main>
<p class="language"><a lang="${other.language}" hreflang="${other.language}" href="${address}">${other.otherLanguage}</a></p>
${body}
</main>
</body>
</html>
`;
}

/** A table of escaped HTML. `named` is the index of the column whose cells name their rows. */
function table(columns: readonly string[], rows: readonly (readonly string[])[], named = 0): string {
  const head = columns.map((column) => `<th scope="col">${column}</th>`).join("");
  const body = rows.map((cells) => {
    const row = cells.map((cell, index) =>
      index === named ? `<th scope="row">${cell}</th>` : `<td>${cell}</td>`,
    );
    return `<tr>${row.join("")}</tr>`;
  });
  return `<div class="wide"><table>
<thead><tr>${head}</tr></thead>
<tbody>
${body.join("\n")}
</tbody></table></div>`;
}

interface Schema {
  readonly type?: string | readonly string[];
  readonly enum?: readonly (string | null)[];
  readonly maxLength?: number;
  readonly default?: unknown;
}

function fieldTable(
  page: Page,
  properties: Readonly<Record<string, Schema>>,
  meanings: Readonly<Record<string, Prose>>,
): string {
  const { tables } = page.texts;
  const rows = Object.entries(properties).map(([name, schema]) => {
    const { type = "any", enum: values, maxLength, default: standard } = schema;
    const limits = [
      [type].flat().join(` ${tables.or} `),
      ...(values ? [values.map((value) => code(String(value))).join(" ")] : []),
      ...(maxLength === undefined ? [] : [tables.atMost(maxLength)]),
      ...(standard === undefined ? [] : [tables.byDefault(code(JSON.stringify(standard)))]),
    ];
    return [code(name), limits.join("; "), prose(page, meanings[name] ?? "")];
  });
  return table([tables.field, tables.value, tables.meaning], rows);
}

function headerTable(page: Page): string {
  const { tables, webhooks } = page.texts;
  const rows = Object.entries(webhooks.headers).map(([name, meaning]) => [
    `<code>${name}</code>`,
    prose(page, meaning),
  ]);
  return table([tables.header, tables.meaning], rows);
}

function errorTable(page: Page): string {
  const { tables, errors, path } = page.texts;
  const rows = contractCodes.map((name) => [
    String(new Failure(name).status),
    `<a href="${linkTo(page, `${path}/errors/${name}`)}">${code(name)}</a>`,
    prose(page, errors.byCode[name].meaning),
  ]);
  return table([tables.status, tables.code, tables.message], rows, 1);
}

const day = (date: Date) => date.toISOString().slice(0, "2026-11-21".length);

function deprecationList(page: Page, deprecations: readonly Deprecation[]): string {
  const { deprecated } = page.texts;
  if (deprecations.length === 0) return "";
  const items = deprecations.map(({ method, route, field, since, sunset, instead }) => {
    const what = field === undefined ? `${method} ${route}` : `${field} in ${method} ${route}`;
    const entry = deprecated.entry(what, day(since), sunset && day(sunset));
    return `<li>${prose(page, entry)}; <a href="${escaped(instead)}">${deprecated.instead}</a></li>`;
  });
  return `
<h2 id="deprecated">${deprecated.heading}</h2>
<p>${prose(page, deprecated.about)}</p>
<ul>
${items.join("\n")}
</ul>
`;
}

/** Errors' messages are in English in every language. */
const example = (value: object) =>
  `<pre lang="en"><code>${escaped(JSON.stringify(value, null, 2))}</code></pre>`;

/** `base` is the address merchants reach the service at. */
export function referencePage(
  texts: ReferenceTexts,
  base: string,
  deprecations: readonly Deprecation[],
): string {
  const page = pageAt(texts, texts.path);
  const { create, read, cancel, headers, webhooks, errors, fields } = texts;
  const paragraph = (text: Prose) => `<p>${prose(page, text)}</p>`;
  return html(
    page,
    texts.title,
    `<h1>${texts.title}</h1>
${texts.introduction.map(paragraph).join("\n")}

<h2 id="create">${create.heading}</h2>
<pre><code>curl ${escaped(base)}/v1/verifications \\
  -H 'Authorization: Bearer &lt;API_KEY&gt;' \\
  -H 'Idempotency-Key: ${escaped(create.newKey)}' \\
  -H 'Content-Type: application/json' \\
  -d '{}'</code></pre>
${paragraph(create.about)}
<h3>${create.body}</h3>
${fieldTable(page, createVerificationBody.properties, fields.request)}
<h3>${create.answer}</h3>
${fieldTable(page, createdVerification.properties, fields.verification)}

<h2 id="read">${read.heading}</h2>
<pre><code>curl ${escaped(base)}/v1/verifications/&lt;id&gt; -H 'Authorization: Bearer &lt;API_KEY&gt;'</code></pre>
${fieldTable(page, verificationResult.properties, fields.verification)}

<h2 id="cancel">${cancel.heading}</h2>
<pre><code>curl -X POST ${escaped(base)}/v1/verifications/&lt;id&gt;/cancel -H 'Authorization: Bearer &lt;API_KEY&gt;'</code></pre>
${paragraph(cancel.about)}

<h2 id="headers">${headers.heading}</h2>
${paragraph(headers.about)}

<h2 id="webhooks">${webhooks.heading}</h2>
${paragraph(webhooks.about)}
${example(eventExample("verified"))}
${paragraph(webhooks.event)}
${headerTable(page)}
${paragraph(webhooks.signature)}
${deprecationList(page, deprecations)}
<h2 id="errors">${errors.heading}</h2>
${example(errorExample("validation_failed"))}
${fieldTable(page, apiError.properties.error.properties, fields.error)}
${errorTable(page)}`,
  );
}

export function errorPage(texts: ReferenceTexts, name: ContractCode): string {
  const page = pageAt(texts, `${texts.path}/errors/${name}`);
  const { errors } = texts;
  const { meaning, advice } = errors.byCode[name];
  return html(
    page,
    `${name} - ${texts.title}`,
    `<p><a href="${linkTo(page, `${texts.path}#errors`)}">${errors.all}</a></p>
<h1>${code(name)}</h1>
<p>${errors.status(new Failure(name).status)} ${prose(page, meaning)}</p>
${advice === undefined ? "" : `<p>${prose(page, advice)}</p>\n`}${example(errorExample(name))}`,
  );
}
