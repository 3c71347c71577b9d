/** Markup in which all interpolated values are escaped. */
export class Html {
  readonly markup: string;
  constructor(markup: string) {
    this.markup = markup;
  }
}

type Part = Html | string | number | null | undefined | false | readonly Part[];

/** Interpolated values are escaped, unless they are `Html`. Null, undefined and false render nothing. */
export function html(strings: TemplateStringsArray, ...parts: readonly Part[]): Html {
  let markup = strings[0] ?? "";
  for (const [index, part] of parts.entries()) markup += markupOf(part) + (strings[index + 1] ?? "");
  return new Html(markup);
}

function markupOf(part: Part): string {
  if (part instanceof Html) return part.markup;
  if (part === null || part === undefined || part === false) return "";
  if (Array.isArray(part)) return part.map(markupOf).join("");
  return escaped(String(part));
}

const entities: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => entities[character] ?? "");
}
