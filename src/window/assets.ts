/**
 * What the page is made of besides itself: read and stripped of its types for the first page or a second after the start, of
 * which it would be a tenth, and compressed when first asked for.
 */

import { hash } from "node:crypto";
import { readFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import path from "node:path";
import { promisify } from "node:util";
import { brotliCompress, gzip } from "node:zlib";

export interface Asset {
  readonly type: string;
  readonly plain: Buffer;
  gzip(): Promise<Buffer>;
  brotli(): Promise<Buffer>;
}

/** Relative to a window's address, so that a prefix in PUBLIC_BASE_URL does not matter. */
export interface AssetPaths {
  readonly style: string;
  readonly script: string;
  readonly icon: string;
}

export interface Assets {
  readonly paths: AssetPaths;
  /** By file name, the digest of its content included. */
  readonly byName: ReadonlyMap<string, Asset>;
}

const folder = path.join(import.meta.dirname, "browser");

/** The same at every call. */
export const loadAssets = once((): Assets => {
  const byName = new Map<string, Asset>();
  const add = (name: string, extension: string, type: string, text: string): string => {
    const plain = Buffer.from(text);
    const fileName = `${name}-${hash("sha256", plain, "hex").slice(0, 16)}.${extension}`;
    byName.set(fileName, {
      type,
      plain,
      gzip: once(() => promisify(gzip)(plain)),
      brotli: once(() => promisify(brotliCompress)(plain)),
    });
    return `assets/${fileName}`;
  };
  const paths = {
    style: add("window", "css", "text/css; charset=utf-8", read("window.css")),
    script: add("window", "js", "text/javascript; charset=utf-8", stripped(read("window.ts"))),
    icon: add("icon", "svg", "image/svg+xml", read("icon.svg")),
  };
  return { paths, byName };
});

function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | undefined;
  return () => {
    made ??= { value: make() };
    return made.value;
  };
}

function read(file: string): string {
  return readFileSync(path.join(folder, file), "utf8");
}

/** Node's own stripping, the same that runs this file. Its warning that it may change would be read at every start. */
function stripped(typescript: string): string {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return stripTypeScriptTypes(typescript);
  } finally {
    process.emitWarning = emitWarning;
  }
}
