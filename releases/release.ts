/** The recorded releases: one folder per version, with the API descriptions that clients depend on. */

import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { deprecations } from "../src/gateway/deprecations.ts";
import { openApiDocument } from "../src/gateway/openapi.ts";

export const root = path.join(import.meta.dirname, "..");

export const buf = path.join(root, "node_modules/.bin/buf");

export const openApiFile = "openapi.json";
export const protobufFile = "protobuf.binpb";

/** Versions of the recorded releases, in ascending order. */
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

/** Uses a fixed base URL, since the service's address is not part of the contract. */
export function currentOpenApi() {
  return JSON.parse(JSON.stringify(openApiDocument("http://localhost:8080", deprecations)));
}
