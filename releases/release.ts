/** Releases as they are kept here: a folder each, named by its version, with what clients hold on to. */

import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { deprecations } from "../src/gateway/deprecations.ts";
import { openApiDocument } from "../src/gateway/openapi.ts";

export const root = path.join(import.meta.dirname, "..");

export const buf = path.join(root, "node_modules/.bin/buf");

export const openApiFile = "openapi.json";
export const protobufFile = "protobuf.binpb";

/** Folders of releases, the latest last. */
export function releases(): string[] {
  return readdirSync(import.meta.dirname, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && /^\d+\.\d+\.\d+$/.test(entry.name))
    .map(({ name }) => name)
    .sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
}

export function folderOf(version: string): string {
  return path.join(import.meta.dirname, version);
}

export function readOpenApi(version: string) {
  return JSON.parse(readFileSync(path.join(folderOf(version), openApiFile), "utf8"));
}

/** Where the service runs is no part of the contract. */
export function currentOpenApi() {
  return JSON.parse(JSON.stringify(openApiDocument("http://localhost:8080", deprecations)));
}
