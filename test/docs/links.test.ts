import { existsSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { expect, test } from "vitest";
import { type Page, pages, readPage, root } from "./pages.ts";

const all = pages();

function linksOf({ prose }: Page): string[] {
  return [...prose.matchAll(/\]\(([^)\s]+)\)/g)].map(([, target = ""]) => target);
}

/** The problem of a link, if it has one. */
function problemOf(page: Page, link: string): string | undefined {
  if (/^[a-z]+:/.test(link)) return /^https:\/\/[\w.-]+(\/|$)/.test(link) ? undefined : "is no https URL";
  const [target = "", anchor] = link.split("#");
  const file = target === "" ? page.file : path.posix.join(path.posix.dirname(page.file), target);
  if (!existsSync(path.join(root, file))) return "leads nowhere";
  if (anchor === undefined) return undefined;
  if (!file.endsWith(".md") || statSync(path.join(root, file)).isDirectory()) return "has no headings";
  return readPage(file).headings.some((heading) => heading.anchor === anchor)
    ? undefined
    : "has no such heading";
}

test.for(all.map((page) => ({ page, file: page.file })))("every link in $file leads somewhere", ({
  page,
}) => {
  const problems = linksOf(page).map((link) => [link, problemOf(page, link)]);
  expect(problems.filter(([, problem]) => problem !== undefined)).toEqual([]);
});

test("the check sees links and detects broken ones", () => {
  expect(all.flatMap(linksOf).length).toBeGreaterThan(50);
  const page = readPage("README.md");
  for (const link of ["docs/none.md", "docs/window.md#none", "#none", "http://plain.example/"]) {
    expect(problemOf(page, link)).toBeDefined();
  }
});

test("every page can be reached from the README", () => {
  const reached = new Set<string>();
  const follow = (file: string) => {
    if (reached.has(file) || !file.endsWith(".md")) return;
    reached.add(file);
    for (const link of linksOf(readPage(file))) {
      if (!/^([a-z]+:|#)/.test(link))
        follow(path.posix.join(path.posix.dirname(file), link.replace(/#.*/, "")));
    }
  };
  follow("README.md");
  expect(all.map(({ file }) => file).filter((file) => !reached.has(file))).toEqual([]);
});

test("code below a link to an example is identical to that file", () => {
  const shown = all.flatMap(({ file, blocks }) =>
    blocks.flatMap(({ lead, code }) => {
      const link = /^\[(examples\/[^\]]+)\]\(([^)]+)\):$/.exec(lead);
      return link === null ? [] : [{ file, name: link[1] ?? "", link: link[2] ?? "", code }];
    }),
  );
  expect(shown.length).toBeGreaterThan(5);
  for (const { file, name, link, code } of shown) {
    expect(path.posix.join(path.posix.dirname(file), link)).toBe(name);
    expect(code, `${name} in ${file}`).toBe(readFileSync(path.join(root, name), "utf8"));
  }
});
