/** What the page is made of besides itself: read at the start, and compressed when first asked for. */

import { hash } from "node:crypto";
import { readFileSync } from "node:fs";
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
/** By the compiler: Node's own stripping of types is 17 MiB of memory and a tenth of a second of a processor, in each process. */
const compiled = path.join(import.meta.dirname, "../gen/window");

export const assets: Assets = load();

function load(): Assets {
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
    script: add("window", "js", "text/javascript; charset=utf-8", read("window.js", compiled)),
    icon: add("icon", "svg", "image/svg+xml", read("icon.svg")),
  };
  return { paths, byName };
}

function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | undefined;
  return () => {
    made ??= { value: make() };
    return made.value;
  };
}

function read(file: string, from = folder): string {
  return readFileSync(path.join(from, file), "utf8");
}
