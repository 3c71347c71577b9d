/** The Korean pages mirror the English ones: the same headings, code, tables, lists and links. */

import path from "node:path";
import { describe, expect, test } from "vitest";
import { isKorean, type Page, pages, readPage } from "./pages.ts";

const pairs = pages()
  .map(({ file }) => file)
  .filter(isKorean)
  .map((korean) => {
    const english = korean.replace(".ko.md", ".md").replace("/ko/", "/");
    return { korean, english: english === "docs/README.md" ? "README.md" : english };
  });

const count = ({ prose }: Page, pattern: RegExp) => [...prose.matchAll(pattern)].length;

const linksOf = ({ prose }: Page) => [...prose.matchAll(/\]\(([^)\s]+)\)/g)].map(([, link = ""]) => link);
const fileOf = ({ file }: Page, link: string) =>
  path.posix.join(path.posix.dirname(file), link.replace(/#.*/, ""));

/** The targets of a page's links; the two language versions of a page count as one target. */
function targets(page: Page): string[] {
  const { file } = page;
  return (
    linksOf(page)
      .map((link) => {
        if (/^[a-z]+:/.test(link)) return link;
        // The anchors are in each page's own language.
        if (link.startsWith("#")) return "#";
        const target = fileOf(page, link);
        return (
          pairs.find(({ korean, english }) => target === korean || target === english)?.english ?? target
        );
      })
      // Without the link to the page's other language version.
      .filter(
        (target) =>
          target !== pairs.find(({ korean, english }) => file === korean || file === english)?.english,
      )
      .sort()
  );
}

test("the pages for merchants have Korean versions", () => {
  expect(pairs.map(({ english }) => english).sort()).toEqual([
    "README.md",
    "docs/concepts.md",
    "docs/idempotency-and-errors.md",
    "docs/quick-start.md",
    "docs/sandbox.md",
    "docs/webhooks.md",
    "docs/window.md",
    "packages/client/README.md",
  ]);
});

describe.for(pairs)("$korean", ({ korean, english }) => {
  const [there, here] = [readPage(english), readPage(korean)];

  test("has the heading levels of the English page", () => {
    expect(here.headings.map(({ level }) => level)).toEqual(there.headings.map(({ level }) => level));
  });

  test("has its code blocks, unchanged, and its diagrams", () => {
    // A block without a language is a diagram, whose text is translated.
    const codes = ({ blocks }: Page) => blocks.map(({ language, code }) => (language === "" ? "" : code));
    expect(codes(here)).toEqual(codes(there));
  });

  test("has as many table rows, list items and bold marks", () => {
    for (const pattern of [/^\|/gm, /^ *- /gm, /^ *\d+\. /gm, /\*\*/g]) {
      expect(count(here, pattern), String(pattern)).toBe(count(there, pattern));
    }
  });

  test("has its links, to Korean pages where they exist", () => {
    expect(targets(here)).toEqual(targets(there));
    const astray = linksOf(here).filter((link) =>
      pairs.some((pair) => pair.korean !== korean && pair.english === fileOf(here, link)),
    );
    expect(astray).toEqual([]);
  });

  test("is written in Korean", () => {
    expect((here.prose.match(/[가-힣]/g) ?? []).length).toBeGreaterThan(300);
    expect(here.prose).toMatch(/(습니다|십시오)\./);
  });
});
