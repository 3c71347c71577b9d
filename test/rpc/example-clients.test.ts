/** Runs examples/grpc, which docs/grpc.md recommends to build on, against the service over connections that break. */

import { spawnSync } from "node:child_process";
import { cp, glob, mkdtemp, readFile, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { releases } from "../../releases/release.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { type Running, startProgram } from "../cli/command.ts";
import { type Cut, startCuttingProxy } from "../cli/cutting-proxy.ts";
import { merchant } from "../gateway/merchant.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { startTestService } from "../harness/service.ts";

const service = await startTestService();
const root = path.join(import.meta.dirname, "../..");
const folder = path.join(root, "examples/grpc");

const inTypescript = (name: string) => [process.execPath, path.join(folder, "typescript", `${name}.ts`)];
const inPython = (python: string, name: string) => [python, path.join(folder, "python", `${name}.py`)];

/** The first Python that has the libraries: Debian's is not always the first on the PATH. */
const python = ["python3", "/usr/bin/python3"].find(
  (command) => spawnSync(command, ["-c", "import grpc, google.protobuf"]).status === 0,
);
if (python === undefined) noteAbsence("Python with grpcio and protobuf", "the Python examples");

const clients = [
  { name: "Connect", watch: inTypescript("connect-watch"), ingest: inTypescript("connect-ingest") },
  { name: "@grpc/grpc-js", watch: inTypescript("grpc-js-watch"), ingest: inTypescript("grpc-js-ingest") },
  ...(python === undefined
    ? []
    : [{ name: "Python", watch: inPython(python, "watch"), ingest: inPython(python, "ingest") }]),
];

/** Lines that cannot be sent. They contain phone numbers, so the output must not repeat them. */
const unsendable = [
  '{"message_id":"cut off","from":"01098765432"',
  '["01098765432"]',
  '{"message_id":"of another type","from":1098765432,"to":"1","text":"01098765432"}',
  JSON.stringify({ message_id: "too long", from: "01098765432", to: "1", text: "x".repeat(70_000) }),
  JSON.stringify({
    message_id: "too long in bytes",
    from: "01098765432",
    to: "1",
    text: "가".repeat(30_000),
  }),
  // Its receipt would have only the beginning of the id.
  JSON.stringify({ message_id: "i".repeat(1_100), from: "01098765432", to: "1", text: "x" }),
];

async function start(command: readonly string[], token: string, cuts: readonly Cut[]) {
  const proxy = await startCuttingProxy(() => service.grpcAddress, cuts);
  const running = startProgram(command, {
    PHONEPROOF_ADDRESS: proxy.address,
    PHONEPROOF_TOKEN: token,
    PHONEPROOF_DESCRIPTORS: path.join(root, "releases", releases().at(-1) ?? "", "protobuf.binpb"),
    PYTHONDONTWRITEBYTECODE: "1",
  });
  onTestFinished(async () => {
    running.child.kill();
    await running.finished;
    await proxy.close();
  });
  return { proxy, running };
}

async function succeeded({ finished }: Running): Promise<string[]> {
  const { code, stdout, stderr } = await finished;
  expect(code, stderr).toBe(0);
  return stdout.trim().split("\n");
}

describe.for(clients)("$name", ({ watch, ingest }) => {
  test("creates once and watches to the end over connections that break", async () => {
    const { projectId } = await service.createProject();
    const token = await service.createToken({ scope: "write", projectId });
    // During the answer to the creation, and during the watch.
    const cuts: Cut[] = [
      { from: "server", bytes: 120 },
      { from: "server", bytes: 700 },
    ];
    const { proxy, running } = await start([...watch, projectId], token, cuts);
    const [pending = ""] = await running.lines(1);
    const [, id, destination, text] = /^pending (\S+) (\S+) (.*)$/s.exec(pending) ?? [];
    await service.sms({ to: destination ?? "", text: text ?? "", from: "01012345678" });
    expect((await succeeded(running)).at(-1)).toBe("verified 01012345678");
    expect(proxy.cuts()).toBeGreaterThan(0);
    expect((await running.finished).stderr).toMatch(/^trying again: ./);
    const { rows } = await service.db.query("SELECT id FROM verification WHERE destination = $1", [
      destination,
    ]);
    expect(rows).toHaveLength(1);
    expect(id).toMatch(/^vrf_/);
  });

  test("gives up on a code that another attempt does not change, although the status is UNAVAILABLE", async () => {
    const { project } = await service.client(ProjectService).createProject({ name: "No numbers" });
    const token = await service.createToken({ scope: "write" });
    const { running } = await start([...watch, project?.id ?? ""], token, []);
    const { code, stderr } = await running.finished;
    expect(code).not.toBe(0);
    // Going by its status, UNAVAILABLE, it would retry forever.
    expect(stderr).toMatch(/^no_receiving_number: .+ \(req_\w+, try again in \d+ s\)\n$/);
  });

  test("prints each invalid field of a refused call", async () => {
    const { running } = await start([...watch, ""], await service.createToken({ scope: "write" }), []);
    const { code, stdout, stderr } = await running.finished;
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(/^validation_failed: .+ \(req_\w+\)\n {2}project_id: is required [^\n]+\n$/);
  });

  test.for(["watch", "ingest"] as const)("prints its usage if its arguments are wrong: %s", async (kind) => {
    const { program, usage } = {
      watch: { program: watch, usage: / PROJECT_ID$/ },
      ingest: { program: [...ingest, "messages.ndjson"], usage: / < messages.ndjson$/ },
    }[kind];
    const { running } = await start(program, "pp_svc_none", []);
    const { code, stdout, stderr } = await running.finished;
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    const [line = "", ...more] = stderr.split("\n");
    expect(line).toMatch(/^usage: (npx node|python3) [\w-]+\.(ts|py) /);
    expect(line).toMatch(usage);
    expect(more).toEqual([""]);
  });

  test("delivers every message once and in order over connections that break", async () => {
    const project = await service.createProject();
    const shop = merchant(service.httpUrl, project.testKey);
    const token = await service.createToken({
      scope: "ingest",
      source: `gateway-${project.projectId.slice(-8)}`,
      environment: Environment.TEST,
    });
    const { body: created } = await shop.create();
    const messages = Array.from({ length: 600 }, (_, index) => ({
      message_id: `sms-${index}`,
      from: `0100${String(index).padStart(7, "0")}`,
      to: created.destination,
      // JSON strings may contain Unicode's line separators.
      text: index === 450 ? created.sms_text : "감사합니다\u2028고맙습니다\u2029",
      carrier: "KT",
    }));
    const cuts: Cut[] = [
      { from: "client", bytes: 9_000 },
      { from: "server", bytes: 400 },
      { from: "client", bytes: 15_000 },
      { from: "server", bytes: 250 },
    ];
    const { proxy, running } = await start(ingest, token, cuts);
    // Invalid lines do not affect the others.
    const lines = messages.map((message) => JSON.stringify(message));
    for (const [index, bad] of unsendable.entries()) lines.splice(100 * (index + 1), 0, bad);
    running.child.stdin?.end(`${lines.join("\n")}\n`);
    const { code, stdout, stderr } = await running.finished;
    expect(code, stderr).toBe(1);
    for (const index of unsendable.keys()) {
      expect(stderr).toContain(`line ${100 * (index + 1) + 1} was not sent: `);
    }
    expect(stderr.match(/was not sent/g)).toHaveLength(unsendable.length);
    expect(stderr).not.toContain("01098765432");
    expect(proxy.cuts()).toBe(cuts.length);
    expect(stdout.trim().split("\n")).toEqual(
      messages.map(({ message_id: id }, index) => `${id} ${index === 450 ? "VERIFIED" : "NO_MATCH"}`),
    );
    expect((await shop.read(created.id)).body).toMatchObject({ status: "verified", phone: "01000000450" });
    const { rows } = await service.db.query(
      "SELECT count(*)::int AS taken FROM inbound_message WHERE destination = $1",
      [created.destination],
    );
    expect(rows[0]?.taken).toBe(messages.length);
  });

  test.for(["watch", "ingest"] as const)("gives up if its token is invalid: %s", async (kind) => {
    const program = { watch: [...watch, "prj_01kaex4mpyf2xbtyt1s6vdr4e9"], ingest }[kind];
    const { running } = await start(program, "pp_svc_none", []);
    running.child.stdin?.end('{"message_id":"1","from":"01012345678","to":"1","text":"1"}\n');
    const { code, stdout, stderr } = await running.finished;
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(/^invalid_api_key: The API key or token is not valid: .+ \(req_\w+\)\n$/);
  });
});

test("the Go examples import every package that they use", async () => {
  for (const file of await Array.fromAsync(glob(path.join(folder, "go/**/*.go")))) {
    const source = await readFile(file, "utf8");
    const imported = [...source.matchAll(/^\t(?:(\w+) )?"(?:[^"]*\/)?([^"/]+)"$/gm)].map(
      ([, alias, name]) => alias ?? name,
    );
    expect(imported.length).toBeGreaterThan(1);
    const code = source.replace(/\/\/.*$|"(?:[^"\\]|\\.)*"|`[^`]*`/gm, "");
    const selected = new Set(
      [...code.matchAll(/(?<![\w.)\]])([a-z]\w*)\.[A-Z]/g)].map(([, name = ""]) => name),
    );
    // A name that is declared in the file also occurs without a selector: it is not a package.
    const packages = [...selected].filter((name) => !new RegExp(`(?<![\\w."/])${name}\\b(?!\\.)`).test(code));
    expect(
      packages.filter((name) => !imported.includes(name)),
      file,
    ).toEqual([]);
  }
});

/** Go is not installed everywhere, and the modules that the examples need are hardly ever available: stubs replace them. */
const goFound = spawnSync("go", ["version"]).status === 0 ? ["go"] : [];
if (goFound.length === 0) noteAbsence("Go", "the Go examples");

test.for(goFound)("the Go examples are formatted and pass go vet against stubs of gRPC", async (go) => {
  const source = path.join(folder, "go");
  const stubs = path.join(import.meta.dirname, "go-stubs");
  const module = await mkdtemp(path.join(os.tmpdir(), "phoneproof-go-"));
  onTestFinished(() => rm(module, { recursive: true }));
  await cp(source, module, { recursive: true, filter: (file) => file !== path.join(source, "gen") });
  await cp(path.join(stubs, "gen"), path.join(module, "gen"), { recursive: true });
  const run = (...args: string[]) => {
    const env = { ...process.env, GOFLAGS: "-mod=mod", GOPROXY: "off", GOTOOLCHAIN: "local" };
    const { status, stdout, stderr } = spawnSync(go, args, { cwd: module, env, encoding: "utf8" });
    expect(status, stderr).toBe(0);
    return stdout;
  };
  run("mod", "edit", `-replace=google.golang.org/grpc=${path.join(stubs, "grpc")}`);
  run("mod", "edit", "-droprequire=google.golang.org/protobuf", "-go=1.19");
  run("vet", "./...");
  expect(spawnSync("gofmt", ["-l", source, stubs], { encoding: "utf8" })).toMatchObject({
    status: 0,
    stdout: "",
  });
});
