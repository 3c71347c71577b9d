/** The page's style sheet, script and icon: read at start, compressed at the first request. */

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

/** Relative to `/v/`; the window puts the path of PUBLIC_BASE_URL in front. */
export interface AssetPaths {
  readonly style: string;
  readonly script: string;
  readonly icon: string;
}

export interface Assets {
  readonly paths: AssetPaths;
  /** By file name, which includes a digest of the content. */
  readonly byName: ReadonlyMap<string, Asset>;
}

const folder = path.join(import.meta.dirname, "browser");
/** The compiled script: stripping types with Node would cost each process 17 MiB of memory and 0.1 s of CPU time. */
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
