/** The docs: every Markdown file that no package brought. */

import { globSync, readFileSync } from "node:fs";
import path from "node:path";

export const root = path.join(import.meta.dirname, "../..");

export interface Block {
  readonly language: string;
  readonly code: string;
  /** The last line of text before the block. */
  readonly lead: string;
}

export interface Page {
  /** Relative to the root. */
  readonly file: string;
  readonly text: string;
  /** The text without code blocks. */
  readonly prose: string;
  readonly blocks: readonly Block[];
  readonly headings: readonly Heading[];
}

export interface Heading {
  readonly level: number;
  readonly title: string;
  /** As GitHub generates it. */
  readonly anchor: string;
}

const fence = /^( *)```(\w*)\n([\s\S]*?)^\1```$/gm;

export function pages(): Page[] {
  const exclude = (found: string) => /^(node_modules|\..+)$/.test(path.basename(found));
  return globSync("**/*.md", { cwd: root, exclude }).sort().map(readPage);
}

/** Those in docs/ko, and the one that is packed with the client, beside the English one. */
export const isKorean = (file: string) => file.startsWith("docs/ko/") || file.endsWith(".ko.md");

export function readPage(file: string): Page {
  const text = readFileSync(path.join(root, file), "utf8");
  const prose = text.replace(fence, "");
  return { file, text, prose, blocks: blocksOf(text), headings: headingsOf(prose) };
}

/** In a list, a block is indented like its item. */
function blocksOf(text: string): Block[] {
  return [...text.matchAll(fence)].map(({ 1: indent = "", 2: language = "", 3: code = "", index }) => ({
    language,
    code: code.replaceAll(new RegExp(`^${indent}`, "gm"), ""),
    lead: text.slice(0, index).trimEnd().split("\n").at(-1) ?? "",
  }));
}

function headingsOf(prose: string): Heading[] {
  const taken = new Map<string, number>();
  return [...prose.matchAll(/^(#+) (.+)$/gm)].map(([, marks = "", title = ""]) => {
    const plain = title
      .replace(/[`*]/g, "")
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, "")
      .replace(/\s/g, "-");
    const before = taken.get(plain) ?? 0;
    taken.set(plain, before + 1);
    return { level: marks.length, title, anchor: before === 0 ? plain : `${plain}-${before}` };
  });
}
