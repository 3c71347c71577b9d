/** The package as it would be published: its files, its size, the runtimes it works in. */

import { execFile, execFileSync } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { createContext, runInContext } from "node:vm";
import { gzipSync } from "node:zlib";
import { rolldown } from "rolldown";
import { expect, test } from "vitest";
import { startTestService } from "../harness/service.ts";
import { startFaultyProxy } from "./faulty-proxy.ts";

const execute = promisify(execFile);
const root = path.join(import.meta.dirname, "../..");
const folder = path.join(root, "packages/client");
const entry = path.join(folder, "dist/index.js");

const service = await startTestService();
const { liveKey } = await service.createProject();
const proxy = await startFaultyProxy(service.httpUrl, 500);

async function bundle(format: "esm" | "iife"): Promise<string> {
  const build = await rolldown({ input: entry });
  const { output } = await build.generate({ format, minify: true, name: "phoneproofClient" });
  await build.close();
  return output[0].code;
}

test("the minified bundle of all exports is smaller than 6 KiB, and with gzip than 3 KiB", async () => {
  const code = await bundle("esm");
  expect(Buffer.byteLength(code)).toBeLessThan(6 * 1024);
  expect(gzipSync(code).length).toBeLessThan(3 * 1024);
});

test("contains only the necessary files and has no dependencies", async () => {
  const { stdout } = await execute("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], {
    cwd: folder,
  });
  const files = (JSON.parse(stdout)[0] as { files: { path: string }[] }).files.map(({ path: name }) => name);
  const modules = ["call", "error", "index", "phoneproof", "verification", "webhook"];
  expect(files.sort()).toEqual(
    [
      "README.ko.md",
      "README.md",
      ...modules.flatMap((name) => [`dist/${name}.d.ts`, `dist/${name}.js`]),
      "package.json",
    ].sort(),
  );
  const { default: manifest } = await import(path.join(folder, "package.json"), { with: { type: "json" } });
  expect(Object.keys(manifest).filter((name) => /dependencies/i.test(name))).toEqual([]);
});

const seen = {
  created: "pending",
  cancelled: "cancelled",
  finished: "cancelled",
  missing: "verification_not_found",
  aborted: ["aborted", "enough", "string"],
  event: "verification.expired",
  bytes: "verification.expired",
  forged: "webhook_not_authentic",
};

/** The pinned Node, and the runtimes that are installed. */
const runtimes = [
  { name: "node (pinned)", command: process.execPath, options: [] },
  ...onThePath("node").map((command) => ({ name: command, command, options: [] })),
  ...onThePath("bun").map((command) => ({ name: command, command, options: [] })),
  ...onThePath("deno").map((command) => ({
    name: command,
    command,
    options: ["run", "--no-config", "--allow-net", "--allow-read"],
  })),
];

function onThePath(name: string): string[] {
  const found = (process.env.PATH ?? "")
    .split(path.delimiter)
    .filter((bin) => !bin.includes("node_modules"))
    .map((bin) => path.join(bin, name))
    .filter((file) => existsSync(file))
    .map((file) => realpathSync(file));
  return [...new Set(found)].filter((file) => name !== "node" || versionOf(file) >= 20);
}

function versionOf(node: string): number {
  return Number.parseInt(execFileSync(node, ["--version"], { encoding: "utf8" }).slice(1), 10);
}

test.for(runtimes)("behaves the same in $name", async ({ command, options }) => {
  proxy.meet("cut after", "half");
  const script = path.join(import.meta.dirname, "runtime-check.mjs");
  const given = [...options, script, pathToFileURL(entry).href, proxy.url, liveKey];
  const { stdout } = await execute(command, given);
  expect(JSON.parse(stdout)).toEqual(seen);
});

test("needs only globals and options that every web-compatible runtime has", async () => {
  const { AbortController, Blob, URL, atob, btoa, crypto, performance } = globalThis;
  // Where a Request has no option `cache`, fetch rejects it.
  const fetch = (url: string, init: RequestInit) =>
    "cache" in init ? Promise.reject(new TypeError("cache")) : globalThis.fetch(url, init);
  const context = createContext({
    ...{ AbortController, Blob, URL, atob, btoa, crypto, fetch, performance },
    ...{ clearTimeout, setTimeout },
    settings: { baseUrl: service.httpUrl, apiKey: liveKey },
  });
  runInContext(await bundle("iife"), context);
  const created = await runInContext("phoneproofClient.createPhoneproof(settings).create()", context);
  expect(created).toMatchObject({ status: "pending" });
  // Bytes of another realm than this one's Blob, as in some test runners. The signature is that of runtime-check.mjs.
  const event = await runInContext(
    `const bytes = Uint8Array.from('{"type":"verification.expired"}', (character) => character.charCodeAt(0));
    const headers = {
      "webhook-id": "evt_1",
      "webhook-timestamp": "1700000000",
      "webhook-signature": "v1,hg6TS8Wc5fWiVIsoBjsuMo+GWlfgzsB1N3J5ElUpMV8=",
    };
    const secret = "whsec_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const lenient = { toleranceSeconds: Number.MAX_SAFE_INTEGER };
    Promise.all([bytes, bytes.buffer].map((body) => phoneproofClient.verifyWebhook(body, headers, secret, lenient)))`,
    context,
  );
  expect(event).toMatchObject([{ type: "verification.expired" }, { type: "verification.expired" }]);
});
