import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmod, copyFile, mkdir, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { createServer as createHttpServer } from "node:http";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import tls from "node:tls";
import type { Command } from "commander";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import manifest from "../../package.json" with { type: "json" };
import { buildProgram } from "../../src/cli/program.ts";
import { displayWidth } from "../../src/cli/terminal.ts";
import { deadAddress } from "../harness/ports.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { type Finished, launcher, run, runProcess, startNode, startProgram, towards } from "./command.ts";

const root = path.resolve(import.meta.dirname, "../..");

let service: TestService;
let environment: Record<string, string>;
let directory: string;

// Takes as long as the deadline, so it runs in parallel with everything else.
let unanswered: Promise<Finished>;
const sockets: Socket[] = [];
const silent = createServer((socket) => {
  sockets.push(socket.on("error", () => {}));
});

beforeAll(async () => {
  service = await startTestService();
  environment = towards(service);
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  const { port } = silent.address() as { port: number };
  unanswered = run(["project", "list", "--address", `127.0.0.1:${port}`], environment);
  directory = await mkdtemp(path.join(tmpdir(), "phoneproof-usage-"));
});

afterAll(async () => {
  for (const socket of sockets) socket.destroy();
  silent.close();
  await rm(directory, { recursive: true, force: true });
});

const commands = {
  project: ["create", "list", "show", "usage", "update", "suspend", "resume"],
  key: ["create", "list", "rotate", "revoke"],
  number: ["add", "list", "remove"],
  token: ["create", "list", "revoke"],
  verification: ["create", "list", "show", "watch", "cancel"],
  sms: ["send", "stream"],
  audit: ["list"],
  webhook: ["set", "show", "rotate-secret", "remove", "disable", "deliveries", "resend", "test"],
};

/** The help that the command would print, without starting a process for each of the forty commands. */
function helpOf(group: string, name: string): string {
  const command = buildProgram()
    .commands.find((known) => known.name() === group)
    ?.commands.find((known) => known.name() === name);
  return command === undefined ? "" : printedHelp(command);
}

/** As in a terminal of 80 columns. */
function printedHelp(command: Command): string {
  let printed = "";
  command.configureOutput({
    getOutHelpWidth: () => 80,
    writeOut: (text) => {
      printed += text;
    },
  });
  command.outputHelp();
  return printed;
}

/** `sms stream` in a process of its own, for its standard input, and all other commands without. */
function runWithInput(args: readonly string[], given: Record<string, string>, input: string) {
  return args[1] === "stream" ? runProcess(args, given, { input }) : run(args, given);
}

const dead = await deadAddress();

describe("help", () => {
  test("phoneproof --help lists every group, the exit codes and the environment variables", async () => {
    const { code, stdout, stderr } = await run(["--help"], {});
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    for (const group of Object.keys(commands)) expect(stdout).toMatch(new RegExp(`^  ${group} `, "m"));
    for (const exitCode of [0, 1, 2, 3, 130]) expect(stdout).toMatch(new RegExp(`^  ${exitCode} `, "m"));
    expect(stdout).toMatch(/PHONEPROOF_ADDRESS[\s\S]*PHONEPROOF_TOKEN[\s\S]*PHONEPROOF_TLS_CA/);
  });

  test.for(Object.entries(commands))("%s and each command below it have help with examples", async ([
    group,
    names,
  ]) => {
    const own = await run([group, "--help"], {});
    expect({ code: own.code, stderr: own.stderr }).toEqual({ code: 0, stderr: "" });
    for (const name of names) {
      expect(own.stdout).toMatch(new RegExp(`^  ${name} `, "m"));
      const stdout = helpOf(group, name);
      expect(stdout).toContain(`Usage: phoneproof ${group} ${name}`);
      expect(stdout).toMatch(new RegExp(`Examples:\n  # .*\n  \\$ phoneproof ${group} ${name}\\b`));
      expect(stdout).toContain("--json");
    }
  });

  test.for([
    [["help", "project", "create"], "project create --name NAME"],
    [["project", "help", "create"], "project create --name NAME"],
    [["project", "help"], "project <command>"],
    [["help", "project"], "project <command>"],
    [["help", "stats"], "stats --project ID"],
    [["help", "--json"], "<command>"],
    [["--json", "project", "--help"], "project <command>"],
  ] as const)("%j shows the help of the named command", async ([args, usage]) => {
    const { code, stdout, stderr } = await run(args, {});
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(stdout.startsWith(`Usage: phoneproof ${usage} [options]\n`)).toBe(true);
  });

  test("fits in a terminal of 80 columns, at every level", () => {
    const wide: string[] = [];
    const widest = (command: Command, path: string) => {
      const help = printedHelp(command);
      expect(help).toContain(`Usage: ${path} `);
      wide.push(...help.split("\n").filter((line) => displayWidth(line) > 80));
      for (const below of command.commands) widest(below, `${path} ${below.name()}`);
    };
    widest(buildProgram(), "phoneproof");
    expect(wide).toEqual([]);
  });

  test("an example of several lines is one command for a shell", async () => {
    const help = helpOf("webhook", "set");
    const [, example = ""] = /^ {2}\$ (phoneproof (?:.*\\\n)+.*)$/m.exec(help) ?? [];
    const { stdout } = spawnSync("sh", ["-c", `phoneproof() { echo "$*"; }; ${example}`], {
      encoding: "utf8",
    });
    expect(stdout).toBe(
      "webhook set --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment live --url https://shop.example/phoneproof\n",
    );
  });

  test("--version prints the package's version", async () => {
    expect(await run(["--version"], {})).toEqual({
      code: 0,
      stdout: `${manifest.version}\n`,
      stderr: "",
    });
  });
});

describe("wrong usage: exit code 2, one line on stderr that says what and where, nothing on stdout", () => {
  const project = "prj_01kaex4mpyf2xbtyt1s6vdr4e9";

  test.for([
    [["projct"], /unknown command 'projct' \(Did you mean project\?\); see phoneproof --help/],
    [["bogus", "--help"], /unknown command 'bogus'; see phoneproof --help/],
    [["help", "bogus"], /unknown command 'bogus'; see phoneproof --help/],
    [["help", "project", "shw"], /project: unknown command 'shw' \(Did you mean show\?\)/],
    [["project", "help", "shw"], /project: unknown command 'shw' \(Did you mean show\?\)/],
    [["project", "shw", "--help"], /project: unknown command 'shw' \(Did you mean show\?\)/],
    [["project"], /project: missing command, one of create, list, .*; see phoneproof project --help/],
    [["project", "shw", "x"], /project: unknown command 'shw' .*; see phoneproof project --help/],
    [
      ["project", "create"],
      /project create: required option '--name <name>' .*; see phoneproof project create --help/,
    ],
    [["project", "show"], /project show: missing required argument 'id'/],
    [["project", "show", "a", "b"], /project show: too many arguments/],
    [["project", "list", "--colour"], /project list: unknown option '--colour'/],
    [["project", "create", "--nam", "A"], /project create: unknown option '--nam' \(Did you mean --name\?\)/],
    [["project", "list", "--jsn"], /project list: unknown option '--jsn' \(Did you mean --json\?\)/],
    [
      ["--adress", "127.0.0.1:1", "project", "list"],
      /unknown option '--adress' \(Did you mean --address\?\)/,
    ],
    [["project", "update", project], /project update: nothing to change/],
    [
      ["project", "create", "--name", "x", "--code-length", "8.5"],
      /'--code-length <n>' argument '8.5' is invalid/,
    ],
    [
      ["project", "create", "--name", "x", "--validity", "99999999999"],
      /'--validity <seconds>'.* whole number, at most 2147483647/,
    ],
    [
      ["project", "create", "--name", "x", "--usage-limit", "-1"],
      /'--usage-limit <n>' argument '-1' is invalid/,
    ],
    [
      ["project", "create", "--name", "x", "--usage-limit", "99999999999999999999"],
      /a whole number, at most 9007199254740991, or unlimited/,
    ],
    [
      ["project", "create", "--name", "x", "--code-format", "hex"],
      /Allowed choices are numeric, alphanumeric/,
    ],
    [
      ["project", "create", "--name", "x", "--return-url", ""],
      /'--return-url <url>'.* must not be empty; see/,
    ],
    [
      ["project", "update", project, "--return-url", ""],
      /must not be empty\. To clear the setting, write none; see/,
    ],
    [
      ["project", "update", project, "--parent-origin="],
      /must not be empty\. To clear the setting, write none; see/,
    ],
    [
      ["project", "update", project, "--sms-template", ""],
      /must not be empty\. To clear the setting, write default; see/,
    ],
    [
      ["verification", "create", "--expected-phone", "01000001234"],
      /--expected-phone requires --mode match; see/,
    ],
    [
      ["verification", "create", "--mode", "discover", "--expected-phone", ""],
      /--expected-phone requires --mode match; see/,
    ],
    [["key", "create", "--project", project], /required option '--environment <environment>'/],
    [["key", "create", "--project", project, "--environment", "prod"], /Allowed choices are live, test/],
    [["key", "create", "--project", project, "--environment", "live", "--expires-in", "30"], /30d/],
    [
      ["key", "rotate", "key_x", "--overlap", "three days"],
      /'--overlap <duration>' argument 'three days' is invalid/,
    ],
    [["token", "create", "--scope", "root"], /Allowed choices are ingest, read, write, admin/],
    [["verification", "list", "--project", project, "--status", "done"], /Allowed choices are pending/],
    [["verification", "list", "--project", project, "--created-from", "14:00"], /2026-11-21T15:41:00\+09:00/],
    [
      ["verification", "list", "--project", project, "--created-from", "2026-02-30T00:00:00Z"],
      /'2026-02-30T00:00:00Z' is invalid\. Write an RFC 3339 time with its zone/,
    ],
    [
      ["verification", "list", "--project", project, "--created-before", "2026-02-28T24:00:00Z"],
      /is invalid\. Write an RFC 3339 time with its zone/,
    ],
    [
      ["stats", "--project", project, "--since", "2026-11-31T00:00:00+09:00"],
      /is invalid\. Write an RFC 3339 time with its zone/,
    ],
    [["verification", "list", "--project", project, "--limit", "0"], /'--limit <n>'/],
    [["sms", "send", "--to", "1", "--from", "2"], /required option '--text <text>'/],
    [["sms", "send", "--to", "--from", "2", "--text", "3"], /'--to <dest>' argument missing before --from/],
    [["project", "create", "--name", "-h"], /'--name <name>' argument missing before -h/],
    [
      ["project", "--address", "--token", "x", "list"],
      /'--address <host:port>' argument missing before --token/,
    ],
    [
      ["token", "create", "--scope", "read", "--project", ""],
      /'--project <id>' argument '' is invalid\. It must not be empty/,
    ],
    [["number", "add", "0212345678", "--environment", "live", "--project="], /'--project <id>' argument ''/],
    [["webhook", "disable", "--project", project, "--environment", "live", "--url", ""], /'--url <url>'/],
    [["webhook", "deliveries", "--verification", ""], /'--verification <id>' argument ''/],
    [["verification", "list", "--project", project, "--client-reference", ""], /must not be empty/],
    [["verification", "list", "--project", project, "--phone", ""], /must not be empty/],
    [["audit", "list", "--actor", ""], /must not be empty/],
    [["webhook", "show", "", "--project", project, "--environment", "live"], /argument 'id' is empty/],
    [["sms", "stream", ""], /sms stream: argument 'file' is empty; see phoneproof sms stream --help/],
    [["sms", "stream", "/nowhere/messages.ndjson"], /sms stream: cannot read '\/nowhere\/messages.ndjson'/],
    [["sms", "stream", tmpdir()], /cannot read '.*': it is a directory/],
    [["project", "list", "--address", "nowhere"], /--address: 'nowhere' is not an address/],
    [["project", "list", "--address", "http://127.0.0.1:1/path"], /--address: .* is not an address/],
    [["project", "list", "--address", "127.0.0.1:99999"], /--address: .* is not an address/],
    [["project", "list", "--address", "http://root@127.0.0.1:1"], /--address: .* is not an address/],
    [["project", "list", "--address", "http://127.0.0.1:1/?x"], /--address: .* is not an address/],
  ] as const)("%j", async ([args, line]) => {
    const { code, stdout, stderr } = await run(args, environment);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(stderr).toMatch(/^phoneproof: [^\n]+\n$/);
    expect(stderr).toMatch(line);
  });

  test("phoneproof without arguments shows the help on stderr", async () => {
    const { code, stdout, stderr } = await run([], environment);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(stderr).toContain("Exit codes:");
  });

  test("phoneproof --json without a command prints a JSON error that says what is missing", async () => {
    const { code, stdout, stderr } = await run(["--json"], environment);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(JSON.parse(stderr)).toMatchObject({
      error: {
        code: "wrong_usage",
        message: expect.stringMatching(/^missing command, one of project, .*; see phoneproof --help$/),
      },
    });
  });

  test.for([
    "PHONEPROOF_TLS_CA",
    "PHONEPROOF_TLS_CERT",
    "PHONEPROOF_TLS_KEY",
  ])("%s with a file that is not PEM", async (setting) => {
    const file = path.join(directory, "not.pem");
    await writeFile(file, "nothing of the kind\n");
    const { code, stderr } = await run(["project", "list", "--address", "https://127.0.0.1:1"], {
      ...environment,
      [setting]: file,
    });
    expect({ code, stderr }).toEqual({ code: 2, stderr: `phoneproof: ${setting}: '${file}' is not PEM\n` });
  });

  test.for([
    { name: "does not exist", file: () => path.join(directory, "absent.pem"), reason: "ENOENT" },
    { name: "is a directory", file: () => directory, reason: "EISDIR" },
  ])("PHONEPROOF_TLS_CA with a file that $name", async ({ file, reason }) => {
    const { code, stderr } = await run(["project", "list", "--address", "https://127.0.0.1:1"], {
      ...environment,
      PHONEPROOF_TLS_CA: file(),
    });
    expect({ code, stderr }).toEqual({
      code: 2,
      stderr: `phoneproof: PHONEPROOF_TLS_CA: cannot read '${file()}' (${reason})\n`,
    });
  });

  test("a directory as standard input of sms stream", async () => {
    const command = [process.execPath, launcher, "sms", "stream"];
    const { finished } = startProgram(["sh", "-c", `"$@" < .`, "sh", ...command], environment);
    expect(await finished).toEqual({
      code: 2,
      stdout: "",
      stderr:
        "phoneproof: sms stream: cannot read standard input: it is a directory; see phoneproof sms stream --help\n",
    });
  });

  test("an option is not taken as the value of the one before it, unless written as --name=--json", async () => {
    const forgotten = await run(["project", "create", "--name", "--json"], environment);
    expect({ ...forgotten, stderr: JSON.parse(forgotten.stderr) }).toMatchObject({
      code: 2,
      stdout: "",
      stderr: { error: { code: "wrong_usage", message: expect.stringContaining("write --name=--json;") } },
    });
    const written = await run(["project", "create", "--name=--json", "--json"], environment);
    expect(JSON.parse(written.stdout)).toMatchObject({ name: "--json" });
  });

  test("with --json the error is a JSON object", async () => {
    const { code, stdout, stderr } = await run(["key", "list", "--json"], environment);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(JSON.parse(stderr)).toEqual({
      error: {
        code: "wrong_usage",
        message: "key list: required option '--project <id>' not specified; see phoneproof key list --help",
        request_id: null,
        fields: [],
      },
    });
  });
});

describe("a refusal: exit code 1, one line on stderr with the failure code, nothing on stdout", () => {
  test("the line says what is wrong with each field", async () => {
    const { code, stdout, stderr } = await run(
      ["project", "create", "--name", "", "--code-length", "5", "--validity", "1"],
      environment,
    );
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(
      /^phoneproof: validation_failed: (?=.*--name: )(?=.*--code-length: )(?=.*--validity: ).* \(req_\w+\)\n$/,
    );
  });

  test("if the name makes the default template's text too long, only the name is reported", async () => {
    const { code, stderr } = await run(["project", "create", "--name", "가".repeat(60)], environment);
    expect(code).toBe(1);
    expect(stderr).toMatch(
      /^phoneproof: validation_failed: --name: with the default template, results in a text of 1\d\d bytes [^;]+ holds 90: [^;]+\n$/,
    );
  });

  test("an empty name is reported as empty", async () => {
    const { stderr } = await run(["project", "create", "--name", ""], environment);
    expect(stderr).toMatch(/^phoneproof: validation_failed: --name: must not be empty \(/);
  });

  test("an unknown token is reported as an invalid key or token", async () => {
    const { stderr } = await run(["project", "list", "--token", "pp_svc_wrong"], environment);
    expect(stderr).toContain("The API key or token is not valid");
  });

  test("with --json the line is the API's error object", async () => {
    const { code, stdout, stderr } = await run(["project", "create", "--name", "", "--json"], environment);
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(JSON.parse(stderr)).toEqual({
      error: {
        code: "validation_failed",
        message: "The request has invalid fields: correct each field listed, and send it again.",
        request_id: expect.stringMatching(/^req_/),
        fields: [{ field: "name", message: expect.any(String) }],
      },
    });
  });

  test.for([
    [["project", "show", "prj_01kaex4mpyf2xbtyt1s6vdr4e9"], "not_found"],
    [["verification", "show", "nonsense"], "verification_not_found"],
    [["verification", "watch", "nonsense"], "verification_not_found"],
    [["verification", "cancel", "vrf_01kaex4mpyf2xbtyt1s6vdr4e9"], "verification_not_found"],
    [["key", "revoke", "key_01kaex4mpyf2xbtyt1s6vdr4e9"], "not_found"],
    [["project", "list", "--token", "pp_svc_wrong"], "invalid_api_key"],
    [
      ["sms", "send", "--to", "1", "--from", "1", "--text", "1", "--token", "pp_svc_wrong"],
      "invalid_api_key",
    ],
    [["sms", "stream", "--token", "pp_svc_wrong"], "invalid_api_key"],
  ] as const)("%j is %s", async ([args, refusal]) => {
    const { code, stdout, stderr } = await runWithInput(args, environment, '{"message_id":"x"}\n');
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toMatch(new RegExp(`^phoneproof: ${refusal}: [^\\n]+\\n$`));
  });
});

test("an unknown verification is explained to who sees all of them without a word of keys", async () => {
  const said = async (...args: string[]) => (await run(["verification", ...args], environment)).stderr;
  const unknown = "vrf_01kaex4mpyf2xbtyt1s6vdr4e9";
  for (const command of ["show", "watch", "cancel"]) {
    expect(await said(command, unknown)).toMatch(/: There is no such verification\. \(/);
    expect(await said(command, "evt_01kaex4mpyf2xbtyt1s6vdr4e9")).toMatch(/: give its id, vrf_… \(/);
  }
  const { liveKey } = await service.createProject();
  expect(await said("show", unknown, "--token", liveKey)).toMatch(/that the key belongs to the environment/);
});

test("who gives an id of another kind to an administrative command is told which is meant", async () => {
  const said = async (...args: string[]) => (await run(args, environment)).stderr;
  const unknown = "01kaex4mpyf2xbtyt1s6vdr4e9";
  for (const command of [
    ["erase", "--yes"],
    ["webhook", "deliveries"],
  ]) {
    const saidOf = (id: string) => said(...command, "--verification", id);
    expect(await saidOf(`vrf_${unknown}`)).toMatch(/: There is no such verification\. \(/);
    expect(await saidOf(`evt_${unknown}`)).toMatch(/: There is no such verification: give its id, vrf_… \(/);
  }
  expect(await said("webhook", "show", `whk_${unknown}`)).toMatch(/: There is no such webhook\. \(/);
  expect(await said("webhook", "show", `vrf_${unknown}`)).toMatch(/ webhook: give its id, whk_… \(/);
  expect(await said("webhook", "resend", `evt_${unknown}`)).toMatch(
    /: There is no such event, or no webhook /,
  );
  const noEvent = /: There is no such event: give its id, evt_…, from the list of deliveries\. \(/;
  expect(await said("webhook", "resend", `vrf_${unknown}`)).toMatch(noEvent);
  expect(await said("number", "remove", "1666-9999")).toMatch(/: There is no such number in use\. \(/);
  expect(await said("number", "remove", `prj_${unknown}`)).toMatch(/ in use: give the number itself\. \(/);
});

test("who gives a leaked key or token itself instead of its id is told so, not that it is inactive", async () => {
  const said = async (...args: string[]) => (await run(args, environment)).stderr;
  const { liveKey } = await service.createProject();
  for (const command of ["revoke", "rotate"]) {
    expect(await said("key", command, liveKey)).toMatch(/: give its id, key_…, not the key itself\. \(/);
  }
  const token = await service.createToken({ scope: "read" });
  expect(await said("token", "revoke", token)).toMatch(/: give its id, tok_…, not the token itself\. \(/);
  const unknown = "01kaex4mpyf2xbtyt1s6vdr4e9";
  expect(await said("key", "revoke", `key_${unknown}`)).toMatch(/: There is no such API key\. \(/);
  expect(await said("key", "rotate", `key_${unknown}`)).toMatch(/: There is no such active API key\. \(/);
  expect(await said("token", "revoke", `tok_${unknown}`)).toMatch(/: There is no such token\. \(/);
});

describe("no service or no token: exit code 3 and one line", () => {
  const messages = '{"message_id":"x","from":"01000000001","to":"1","text":"1"}\n';

  test.for([
    ["project", "list"],
    ["verification", "watch", "vrf_x"],
    ["sms", "send", "--to", "1", "--from", "01000000001", "--text", "1"],
    ["sms", "stream"],
  ])("%s %s: nothing listens at the address", async (args) => {
    const given = { ...environment, PHONEPROOF_ADDRESS: dead };
    const { code, stdout, stderr } = await runWithInput(args, given, messages);
    expect({ code, stdout }).toEqual({ code: 3, stdout: "" });
    expect(stderr).toMatch(
      /^phoneproof: no service answers at [\d.:]+ \(.*\); start it with npm start, or set its address with --address or PHONEPROOF_ADDRESS\n$/,
    );
    expect(stderr).toContain(dead);
  });

  test("something other than the gRPC port listens at the address", async () => {
    const { code, stdout, stderr } = await run(
      ["project", "list", "--address", service.httpUrl],
      environment,
    );
    expect({ code, stdout }).toEqual({ code: 3, stdout: "" });
    expect(stderr).toMatch(
      /^phoneproof: something listens at [^\n]+, but [^\n]+; use the service's gRPC port: 50051 unless GRPC_PORT sets another\n$/,
    );
  });

  test("a plaintext attempt at a service with TLS suggests the https:// address", async () => {
    const server = tls.createServer().listen(0, "127.0.0.1");
    onTestFinished(() => void server.close());
    await once(server, "listening");
    const address = `127.0.0.1:${(server.address() as { port: number }).port}`;
    const { code, stderr } = await run(["project", "list", "--address", address], environment);
    expect(code).toBe(3);
    expect(stderr).toMatch(/^phoneproof: something listens at [^\n]+; if the service uses TLS, [^\n]+\n$/);
    expect(stderr).toContain(`write https://${address}\n`);
  });

  test("a TLS attempt at a service without TLS suggests the http:// address", async () => {
    const address = service.grpcAddress;
    const { code, stderr } = await run(["project", "list", "--address", `https://${address}`], environment);
    expect(code).toBe(3);
    expect(stderr).toMatch(
      /^phoneproof: something listens at [^\n]+ \(TLS: wrong version number\); [^\n]+\n$/,
    );
    expect(stderr).toContain(`if the service does not use TLS, write http://${address}\n`);
  });

  test("if there is no token on this machine, the error names the missing file", async () => {
    const { code, stderr } = await run(["project", "list"], {
      PHONEPROOF_ADDRESS: service.grpcAddress,
      DATA_DIR: path.join(directory, "none"),
    });
    expect(code).toBe(3);
    expect(stderr).toMatch(/^phoneproof: no admin token for [^\n]*\/admin-token does not exist; [^\n]+\n$/);
    expect(stderr).toContain("unless DATABASE_URL is set: then it uses PHONEPROOF_ADMIN_TOKEN");
    expect(stderr).toContain(path.join(directory, "none"));
  });

  test.for([
    "phoneproof.invalid:50051",
    "localhost.invalid:50051",
    "127.0.0.1.invalid:50051",
  ])("this machine's token is not sent to another machine: %s", async (address) => {
    await writeFile(path.join(directory, "admin-token"), `${service.adminToken}\n`);
    const { code, stderr } = await run(["project", "list", "--address", address], {
      DATA_DIR: directory,
      PHONEPROOF_ADMIN_TOKEN: service.adminToken,
    });
    expect(code).toBe(3);
    expect(stderr).toBe(`phoneproof: no token for ${address}; give one with --token or PHONEPROOF_TOKEN\n`);
  });

  test.for([
    "localhost:1",
    "127.0.0.2:1",
    "[::1]:1",
    "0.0.0.0:1",
  ])("this machine's token is for every address of this machine: %s", async (address) => {
    const { code, stderr } = await run(["project", "list", "--address", address], {
      PHONEPROOF_ADMIN_TOKEN: service.adminToken,
    });
    expect(code).toBe(3);
    expect(stderr).toContain(`no service answers at ${address}`);
  });

  test.for([
    "two words",
    "exclamation!",
    "",
    "=",
  ])("a token that cannot be sent in a header is refused: %j", async (token) => {
    const { code, stderr } = await run(["project", "list", "--token", token], environment);
    expect(code).toBe(3);
    expect(stderr).toBe(
      "phoneproof: --token contains no token: it is empty or has characters that tokens never have; give one with --token or PHONEPROOF_TOKEN\n",
    );
  });

  test("a service that accepts connections but does not answer within 10 s", async () => {
    const { code, stderr } = await unanswered;
    expect(code).toBe(3);
    expect(stderr).toMatch(
      /^phoneproof: the service at 127\.0\.0\.1:\d+ did not answer within 10 s; [^\n]+\n$/,
    );
  });
});

describe("address and token", () => {
  const port = () => service.grpcAddress.replace(/^.*:/, "");
  const list = ["project", "list", "--json"];

  test("default to GRPC_PORT and DATA_DIR/admin-token on this machine", async () => {
    const dataDirectory = await mkdtemp(path.join(directory, "data-"));
    await writeFile(path.join(dataDirectory, "admin-token"), `${service.adminToken}\n`);
    await chmod(path.join(dataDirectory, "admin-token"), 0o600);
    const given = { GRPC_PORT: port(), DATA_DIR: dataDirectory };
    expect(await run(list, given)).toMatchObject({ code: 0, stderr: "" });
    const relative = { ...given, DATA_DIR: path.basename(dataDirectory) };
    expect(await run(list, relative, directory)).toMatchObject({ code: 0, stderr: "" });
  });

  test.for([
    { name: "a file", given: { DATA_DIR: "." }, source: "{}/admin-token" },
    {
      name: "a variable",
      given: { PHONEPROOF_ADMIN_TOKEN: "pp_svc_wrong" },
      source: "PHONEPROOF_ADMIN_TOKEN",
    },
  ])("a refused token that was read from $name: the error names that, and where it was sent, but not the token", async ({
    given,
    source,
  }) => {
    const folder = await mkdtemp(path.join(directory, "data-"));
    await writeFile(path.join(folder, "admin-token"), "pp_svc_wrong\n");
    const { code, stderr } = await run(["project", "list"], { GRPC_PORT: port(), ...given }, folder);
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: expect.stringContaining(
        ` It is the one in ${source.replace("{}", folder)}, sent to 127.0.0.1:${port()}. (req_`,
      ),
    });
    expect(stderr).not.toContain("pp_svc_wrong");
  });

  test("a token that may not do what was asked: the error names where it was read from", async () => {
    const { testKey } = await service.createProject();
    const { code, stderr } = await run(["project", "list"], { ...environment, PHONEPROOF_TOKEN: testKey });
    expect({ code, stderr }).toEqual({
      code: 1,
      stderr: expect.stringMatching(
        /^phoneproof: insufficient_scope: .* It is the one in PHONEPROOF_TOKEN, sent to [\d.:]+\. \(req_/,
      ),
    });
  });

  test("a token file that cannot be read is not said to be missing", async () => {
    const dataDirectory = await mkdtemp(path.join(directory, "data-"));
    await mkdir(path.join(dataDirectory, "admin-token"));
    const { code, stderr } = await run(["project", "list"], { GRPC_PORT: port(), DATA_DIR: dataDirectory });
    expect({ code, stderr }).toEqual({
      code: 3,
      stderr: expect.stringContaining(` cannot be read from ${dataDirectory}/admin-token (EISDIR); `),
    });
  });

  test("options take precedence over PHONEPROOF_ADDRESS and PHONEPROOF_TOKEN, and those over the defaults", async () => {
    expect(await run(list, { ...environment, GRPC_PORT: "1", DATA_DIR: "/nowhere" })).toMatchObject({
      code: 0,
    });
    const options = ["--address", service.grpcAddress, "--token", service.adminToken];
    const wrong = { PHONEPROOF_ADDRESS: dead, PHONEPROOF_TOKEN: "pp_svc_wrong" };
    expect(await run([...list, ...options], wrong)).toMatchObject({ code: 0 });
    expect(await run(list, { GRPC_PORT: port(), PHONEPROOF_ADMIN_TOKEN: service.adminToken })).toMatchObject({
      code: 0,
    });
  });

  test("options are accepted at any level, and the innermost one counts", async () => {
    const options = ["--address", service.grpcAddress, "--token", service.adminToken, "--json"];
    expect(await run([...options, "project", "list"], {})).toMatchObject({ code: 0 });
    expect(await run(["project", ...options, "list"], {})).toMatchObject({ code: 0 });
    expect(await run(["--address", "127.0.0.1:1", "project", "list", ...options], {})).toMatchObject({
      code: 0,
    });
  });

  test.for([
    { name: "a line break at the end", around: ["", "\n"] },
    { name: "a line break of Windows", around: ["", "\r\n"] },
    { name: "spaces", around: [" ", " "] },
  ])("a token with $name is the same token", async ({ around: [before = "", after = ""] }) => {
    const token = `${before}${service.adminToken}${after}`;
    const at = { PHONEPROOF_ADDRESS: service.grpcAddress };
    expect(await run(list, { ...at, PHONEPROOF_TOKEN: token })).toMatchObject({ code: 0, stderr: "" });
    expect(await run(list, { ...at, PHONEPROOF_ADMIN_TOKEN: token })).toMatchObject({ code: 0, stderr: "" });
    expect(await run([...list, "--token", token], at)).toMatchObject({ code: 0, stderr: "" });
  });

  test.for([
    "http://HOST",
    "http://HOST/",
    "HOST",
    "localhost:PORT",
  ])("an address may be written %s", async (form) => {
    const address = form.replace("HOST", service.grpcAddress).replace("PORT", port());
    expect(await run([...list, "--address", address], environment)).toMatchObject({ code: 0, stderr: "" });
  });

  test.for([
    { address: "https://127.0.0.1", called: "127.0.0.1:443" },
    { address: "http://127.0.0.1:80", called: "127.0.0.1:80" },
    { address: "https://127.0.0.1:443/", called: "127.0.0.1:443" },
  ])("$address is $called", async ({ address, called }) => {
    const { code, stderr } = await run([...list, "--address", address], environment);
    expect(code).toBe(3);
    expect(JSON.parse(stderr).error.message).toContain(` at ${called}`);
  });

  test("proxy variables in the environment are ignored for a service on this machine", async () => {
    const proxy = `http://${dead}`;
    const proxied = { ...environment, http_proxy: proxy, https_proxy: proxy, grpc_proxy: proxy };
    expect(await run(list, proxied)).toMatchObject({ code: 0, stderr: "" });
    const { stderr } = await run([...list, "--address", dead], proxied);
    expect(JSON.parse(stderr).error.message).toMatch(
      new RegExp(`^no service answers at ${dead} \\((?!.*proxy)`),
    );
  });

  // In processes of their own: grpc-js does not say which client a fault concerns, and a closed one may still report one.
  describe("a proxy for a service on another machine", () => {
    const elsewhere = ["project", "list", "--address", "phoneproof.invalid:50051"];

    test.for([
      {
        name: "cannot be reached",
        address: "[2001:db8::1]:50051",
        proxied: { grpc_proxy: "", http_proxy: `http://${dead}`, no_grpc_proxy: "shop.invalid" },
        why: new RegExp(
          `\\(Failed to connect to proxy ${dead} .*ECONNREFUSED.*\\); check the proxy in http_proxy,`,
        ),
        advice: "add 2001:db8::1 to no_grpc_proxy",
      },
      {
        name: "has another protocol than http",
        address: "phoneproof.invalid:50051",
        proxied: { http_proxy: `http://${dead}`, https_proxy: "socks5://127.0.0.1:1" },
        why: /\(.*; "socks5:" scheme not supported in proxy URI\); check the proxy in https_proxy,/,
        advice: "add phoneproof.invalid to no_proxy",
      },
    ])("that $name is named in the error, which is the only line", async ({
      address,
      proxied,
      why,
      advice,
    }) => {
      const args = ["project", "list", "--address", address];
      const { code, stdout, stderr } = await runProcess(args, { ...environment, ...proxied });
      expect({ code, stdout }).toEqual({ code: 3, stdout: "" });
      expect(stderr.startsWith(`phoneproof: no service answers at ${address} (`)).toBe(true);
      expect(stderr.indexOf("\n")).toBe(stderr.length - 1);
      expect(stderr).toMatch(why);
      expect(stderr.endsWith(`, or ${advice}\n`)).toBe(true);
    });

    test("that refuses the connection is named in the error, which is JSON with --json", async () => {
      const proxy = createHttpServer().on("connect", (_request, socket) => {
        socket.end("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
      });
      onTestFinished(() => void proxy.close());
      await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
      const at = `127.0.0.1:${(proxy.address() as { port: number }).port}`;
      const proxied = { ...environment, grpc_proxy: `http://${at}`, https_proxy: `http://${dead}` };
      const { code, stderr } = await runProcess([...elsewhere, "--json"], proxied);
      expect({ code, error: JSON.parse(stderr).error }).toMatchObject({
        code: 3,
        error: {
          code: "service_unreachable",
          message: `no service answers at phoneproof.invalid:50051 (Failed to connect to phoneproof.invalid:50051 through proxy ${at} with status 407); check the proxy in grpc_proxy, or add phoneproof.invalid to no_proxy`,
        },
      });
    });
  });
});

test("TZ decides in which time zone times are shown", async () => {
  const created = async (TZ: string) => {
    const { stdout } = await runProcess(["project", "create", "--name", "Zone"], { ...environment, TZ });
    return /^created .* (\S+)$/m.exec(stdout)?.[1];
  };
  expect([await created("UTC"), await created("Asia/Seoul")]).toEqual(["+00:00", "+09:00"]);
});

test("NO_COLOR takes precedence over FORCE_COLOR, without a warning", async () => {
  const coloured = { ...environment, NO_COLOR: "1", FORCE_COLOR: "1" };
  const { code, stderr } = await runProcess(["project", "list"], coloured);
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
});

test("npx runs the command of this directory without the network and generates nothing again", async () => {
  // Regenerated files would have another inode or modification time.
  const made = () =>
    Promise.all(
      ["src/gen/proto", "src/gen/window/window.js"].map(async (name) => {
        const { ino, mtimeMs } = await stat(path.join(root, name));
        return { ino, mtimeMs };
      }),
    );
  const before = await made();
  const npx = spawn("npx", ["phoneproof", "--version"], {
    cwd: root,
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      npm_config_cache: path.join(directory, "npm"),
      npm_config_registry: `http://${dead}`,
    },
  });
  let stdout = "";
  npx.stdin.end();
  npx.stdout.setEncoding("utf8").on("data", (text: string) => {
    stdout += text;
  });
  const [code] = await once(npx, "close");
  expect({ code, stdout }).toEqual({ code: 0, stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) });
  expect(await made()).toEqual(before);
});

describe("an older Node", () => {
  const launcher = path.resolve(import.meta.dirname, "../../bin/phoneproof.mjs");
  /** Makes the launcher believe that it runs in an older Node. */
  const pretend = `data:text/javascript,${encodeURIComponent(`
    Object.defineProperty(process, "versions", { value: { ...process.versions, node: "20.1.0" } });
    Object.defineProperty(process, "execPath", { value: "/usr/bin/node" });
  `)}`;
  const started = (args: string[]) => startNode(["--import", pretend, launcher, ...args], environment);

  test("starts the pinned version and passes on arguments, output and exit code", async () => {
    expect(await started(["project", "list", "--json"]).finished).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^\{"projects":\[/),
      stderr: "",
    });
    expect(await started(["project", "lst"]).finished).toMatchObject({ code: 2 });
  });

  test.for([
    {
      name: "is missing",
      program: undefined,
      code: 3,
      signal: null,
      says: /needs Node 24 .* run npm ci in /,
    },
    {
      name: "does not start",
      program: "",
      mode: 0o644,
      code: 3,
      signal: null,
      says: /cannot start .* EACCES/,
    },
    { name: "is killed", program: "#!/bin/sh\nkill -KILL $$\n", code: null, signal: "SIGKILL", says: /^$/ },
  ])("ends as its shell expects if the pinned version $name", async ({
    program,
    mode = 0o755,
    says,
    ...ending
  }) => {
    const folder = await mkdtemp(path.join(tmpdir(), "phoneproof-launcher-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    for (const made of ["bin", "node_modules/node/bin"]) {
      await mkdir(path.join(folder, made), { recursive: true });
    }
    const copy = path.join(folder, "bin/phoneproof.mjs");
    await copyFile(launcher, copy);
    if (program !== undefined)
      await writeFile(path.join(folder, "node_modules/node/bin/node"), program, { mode });
    const { child, finished } = startNode(["--import", pretend, copy, "project", "list"], environment);
    const { code, stderr } = await finished;
    expect(ending).toMatchObject({ code, signal: child.signalCode });
    expect(stderr.trim()).toMatch(says);
  });

  test("passes on a signal and ends with the command's exit code", async () => {
    const watching = started(["sms", "stream", "--json"]);
    watching.child.stdin?.write('{"message_id":"old-node","from":"01000000001","to":"1","text":"1"}\n');
    await watching.lines(1);
    watching.child.kill("SIGINT");
    expect(await watching.finished).toMatchObject({ code: 130, stderr: "" });
  });
});
