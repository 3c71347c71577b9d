/** The excerpts of docs/operations.md for nginx and Caddy before the gRPC port, as far as the programs are installed. */
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { findProgram } from "../../deploy/cluster/programs.ts";
import { readPage } from "../docs/pages.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { connectPlain } from "../rpc/plain-calls.ts";
import { connectRaw } from "../rpc/raw-grpc.ts";

const service = await startTestService();
const blocks = readPage("docs/operations.md").blocks;

/** The page's excerpt, before this service in the place of both processes. */
function excerptFor(language: string): string {
  const [excerpt, ...others] = blocks.filter((block) => block.language === language);
  if (excerpt === undefined || others.length > 0) throw new Error(`not one excerpt of ${language}`);
  return excerpt.code
    .replaceAll(/10\.0\.0\.1[01]:8080/g, new URL(service.httpUrl).host)
    .replaceAll(/10\.0\.0\.1[01]:50051/g, service.grpcAddress)
    .replace("health_port 9464", `health_port ${new URL(service.opsUrl).port}`);
}

interface Ports {
  readonly http: number;
  readonly grpc: number;
}

interface Proxy {
  readonly name: string;
  readonly program: string;
  readonly args: (folder: string) => string[];
  readonly files: (folder: string, ports: Ports) => Record<string, string>;
}

const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];

const proxies: readonly Proxy[] = [
  {
    name: "nginx",
    program: "nginx",
    args: (folder) => ["-p", folder, "-c", "nginx.conf", "-e", "stderr"],
    files: (folder, { http, grpc }) => ({
      "nginx.conf": [
        `daemon off; worker_processes 1; pid nginx.pid; events {}`,
        `http { access_log off; error_log stderr crit;`,
        ...temporary.map((kind) => `${kind}_temp_path ${path.join(folder, kind)};`),
        excerptFor("nginx")
          .replace("server {   # merchants", `server { listen 127.0.0.1:${http}; # merchants`)
          .replace("server {   # gRPC", `server { listen 127.0.0.1:${grpc} http2; # gRPC`),
        "}",
      ].join("\n"),
    }),
  },
  {
    name: "Caddy",
    program: "caddy",
    args: () => ["run", "--config", "Caddyfile", "--adapter", "caddyfile"],
    files: (_folder, { http, grpc }) => ({
      Caddyfile: [
        "{\nadmin off\nauto_https off\nservers {\nprotocols h1 h2 h2c\n}\n}",
        excerptFor("caddyfile")
          .replace("verify.example.com {", `http://:${http} {\nbind 127.0.0.1`)
          .replace("grpc.example.com {", `http://:${grpc} {\nbind 127.0.0.1`),
      ].join("\n"),
    }),
  },
];

/** Resolves once the proxy listens; it ends with the test. */
async function start({ program, args, files }: Proxy): Promise<Ports> {
  const [http = 0, grpc = 0] = await freePorts(2);
  const folder = await mkdtemp(path.join(os.tmpdir(), "phoneproof-proxy-"));
  for (const [name, text] of Object.entries(files(folder, { http, grpc }))) {
    await writeFile(path.join(folder, name), text);
  }
  const child = spawn(findProgram(program) ?? program, args(folder), {
    cwd: folder,
    env: { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder },
    stdio: ["ignore", "ignore", "pipe"],
  });
  let said = "";
  child.stderr.on("data", (text) => {
    said += text;
  });
  const exited = new Promise<void>((resolve) => child.once("close", () => resolve()));
  onTestFinished(async () => {
    child.kill("SIGTERM");
    await exited;
    await rm(folder, { recursive: true, force: true });
  });
  for (const port of [http, grpc]) {
    await vi.waitUntil(
      () => {
        if (child.exitCode !== null) throw new Error(said);
        return listensOn(port);
      },
      { timeout: 45_000 },
    );
  }
  return { http, grpc };
}

function listensOn(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1");
    socket.once("error", () => resolve(false)).once("connect", () => resolve(true));
    socket.once("connect", () => socket.destroy());
  });
}

const check = "grpc.health.v1.Health/Check";

test.for(proxies)("the page's excerpt for $name leads to both ports, and to its own examples only", ({
  files,
}) => {
  const [written = ""] = Object.values(files("/nowhere", { http: 1, grpc: 2 }));
  expect(written).toContain(new URL(service.httpUrl).host);
  expect(written).toContain(service.grpcAddress);
  expect(written).toMatch(/127\.0\.0\.1[: ]|bind 127\.0\.0\.1/);
  expect(written).toMatch(/:1\b/);
  expect(written).toMatch(/:2\b/);
  expect(written).not.toContain("10.0.0.");
});

for (const proxy of proxies) {
  if (findProgram(proxy.program) === undefined) {
    noteAbsence(proxy.program, `the excerpts for ${proxy.name}`);
    continue;
  }
  describe(`behind ${proxy.name}, as the docs have it,`, () => {
    test.for<{ name: string; path?: string; headers?: Record<string, string> }>([
      { name: "a header that HTTP/2 forbids", headers: { "proxy-connection": "close" } },
      { name: "a body longer than their Content-Length", headers: { "content-length": "1" } },
      { name: "a body shorter than their Content-Length", headers: { "content-length": "100" } },
      { name: "a path that cannot be decoded", path: "%ff" },
      { name: "an unknown Expect", headers: { expect: "a miracle" } },
    ])("one client's calls with $name leave those of others alone", async ({
      path: called = check,
      headers = {},
    }) => {
      const { http, grpc } = await start(proxy);
      const address = `127.0.0.1:${grpc}`;
      // At least one for each process.
      for (let calls = 0; calls < 4; calls++) {
        const connection = await connectPlain(address);
        await connection.untilEnded(connection.call(1, called, headers, { message: Buffer.of() }));
        connection.destroy();
      }
      const others = connectRaw(address);
      onTestFinished(() => others.destroy());
      for (let calls = 0; calls < 4; calls++) {
        const call = others.call(check);
        await call.send(Buffer.of());
        call.halfClose();
        expect(await call.next()).toEqual(Buffer.of(8, 1));
        expect((await call.status).code).toBe(0);
      }
      expect((await fetch(`http://127.0.0.1:${http}/v1/verifications/vrf_none`)).status).toBe(401);
    });
  });
}
