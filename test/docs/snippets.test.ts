/** Runs the programs in the docs as they are printed. */

import { execFile, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import path from "node:path";
import { promisify } from "node:util";
import { Script } from "node:vm";
import { Webhook } from "standardwebhooks";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { type Running, startProgram } from "../cli/command.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { pages, readPage, root } from "./pages.ts";

const service = await startTestService();
const project = await service.createProject();
const clientPage = readPage("packages/client/README.md");
const programs = clientPage.blocks.filter(({ language }) => language === "ts").map(({ code }) => code);

/** Inside the project, so that the package is found, but outside node_modules, where Node does not run TypeScript. */
let directory: string;

beforeAll(async () => {
  await mkdir(path.join(root, ".cache"), { recursive: true });
  directory = await mkdtemp(path.join(root, ".cache/snippets-"));
  await Promise.all(programs.map((code, index) => writeFile(path.join(directory, `${index}.ts`), code)));
  await writeFile(
    path.join(directory, "tsconfig.json"),
    JSON.stringify({ extends: "../../tsconfig.json", include: ["*.ts"] }),
  );
});

afterAll(() => rm(directory, { recursive: true }));

const secret = `whsec_${Buffer.alloc(32, 3).toString("base64")}`;

function start(index: number, more: Record<string, string> = {}): Running {
  return startProgram([process.execPath, path.join(directory, `${index}.ts`)], {
    PHONEPROOF_URL: service.httpUrl,
    PHONEPROOF_API_KEY: project.liveKey,
    ...more,
  });
}

describe("packages/client/README.md", () => {
  test("its programs pass the type checker", async () => {
    await promisify(execFile)(path.join(root, "node_modules/.bin/tsc"), ["--noEmit", "-p", directory]);
    expect(programs).toHaveLength(4);
  });

  test("the first program waits for the SMS", async () => {
    const running = start(0);
    const [line = ""] = await running.lines(1);
    const [, text = "", to = ""] = /^Send "(.*)" to (\d+)$/s.exec(line) ?? [];
    await service.sms({ text, to, from: "01012345678" });
    expect((await running.finished).stdout).toBe(`${line}\nverified 01012345678\n`);
  });

  test("the second creates one verification with a repeated key", async () => {
    expect(await start(1).finished).toEqual({ code: 0, stdout: "true\n", stderr: "" });
  });

  test("the third prints which field is invalid", async () => {
    const { stdout } = await start(2).finished;
    expect(stdout).toBe("expected_phone must be a 010 mobile number, such as 010-1234-5678\n");
  });

  test("the fourth, a webhook receiver, handles a signed event once and refuses a forged one", async () => {
    const [port = 0] = await freePorts(1);
    const running = start(3, { PORT: String(port), PHONEPROOF_WEBHOOK_SECRETS: secret });
    await expectReceiver(port);
    running.child.kill();
    const { stdout } = await running.finished;
    expect(stdout).toBe("verification.verified vrf_1 01012345678\n");
  });
});

const jackson = ["databind", "core", "annotations"].map((part) => `/usr/share/java/jackson-${part}.jar`);

/** How to run the receiver in each language; only those whose tools are installed. */
const languages = [
  { language: "ts", command: process.execPath, asked: "--version", file: "receiver.ts" },
  { language: "python", command: "python3", asked: "--version", file: "receiver.py" },
  { language: "python", command: "/usr/bin/python3", asked: "--version", file: "receiver.py" },
  { language: "go", command: "go", asked: "version", file: "receiver.go" },
  { language: "java", command: "javac", asked: "--version", file: "Receiver.java", needs: jackson },
  { language: "php", command: "php", asked: "--version", file: "receiver.php" },
]
  .filter(({ command, asked }) => spawnSync(command, [asked]).status === 0)
  .filter(({ needs = [] }) => needs.every((file) => existsSync(file)))
  .filter(({ language }, index, there) => there.findIndex((other) => other.language === language) === index);

type Language = (typeof languages)[number];

/** The command that runs the receiver on the port. */
async function programOf({ language, command, file, needs }: Language, port: number): Promise<string[]> {
  const [code = ""] = readPage("docs/webhooks.md")
    .blocks.filter((block) => block.language === language)
    .map((block) => block.code);
  const source = path.join(directory, file);
  await writeFile(source, code);
  if (language === "java") {
    // Compiled once: `java Receiver.java` would compile it at each start.
    const classes = path.join(directory, "java");
    await promisify(execFile)(command, ["-cp", (needs ?? []).join(":"), "-d", classes, source]);
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", [...(needs ?? []), classes].join(":"), "Receiver"];
  }
  if (language === "php") return [command, "-S", `127.0.0.1:${port}`, source];
  if (language !== "go") return [command, source];
  expect(spawnSync("gofmt", ["-l", source], { encoding: "utf8" })).toMatchObject({ status: 0, stdout: "" });
  // Not `go run`, which does not end the program when it is ended itself.
  const program = path.join(directory, "receiver");
  const env = { ...process.env, GOCACHE: path.join(directory, "go"), GOTOOLCHAIN: "local", GOFLAGS: "" };
  await promisify(execFile)(command, ["build", "-o", program, source], { cwd: directory, env });
  return [program];
}

test.for(languages)(
  "docs/webhooks.md: the receiver in $language handles a signed event once, and refuses truncated secrets",
  { timeout: 180_000 },
  async (language) => {
    const [port = 0] = await freePorts(1);
    const program = await programOf(language, port);
    const seen = path.join(directory, `seen-${language.language}`);
    await mkdir(seen);
    const startWith = (secrets: string) =>
      startProgram(program, {
        PORT: String(port),
        PHONEPROOF_WEBHOOK_SECRETS: secrets,
        // PHP keeps no state between requests: the receiver stores the ids it has seen here.
        TMPDIR: seen,
      });
    // An empty key, or the placeholder of the docs, would let anybody sign.
    for (const cut of ["whsec_", "whsec_…", `${secret} whsec_AAAA`, " "]) {
      const running = startWith(cut);
      if (language.language === "php") {
        // PHP reads its settings at each request.
        await vi.waitUntil(async () => (await post(port, event())) === 500, { timeout: 45_000 });
        running.child.kill();
      }
      const { code, stdout, stderr } = await running.finished;
      if (language.language !== "php") expect(code).toBe(1);
      expect(stdout).toBe("");
      expect(stderr).not.toContain("AAAA");
    }
    const receiver = startWith(secret);
    await expectReceiver(port)
      // PHP's built-in server reads the body before it runs the program.
      .then(() => (language.language === "php" ? undefined : sendOversized(port)))
      .finally(() => receiver.child.kill());
    expect((await receiver.finished).stdout).toBe("verification.verified vrf_1 01012345678\n");
  },
);

test("JSON blocks are valid JSON, and scripts for browsers can be parsed", () => {
  const blocks = pages().flatMap((page) => page.blocks);
  for (const { language, code } of blocks) {
    if (language === "json") JSON.parse(code);
    if (language === "js" && !code.startsWith("import ")) new Script(`async () => {${code}}`);
  }
  expect(blocks.filter(({ language }) => language === "js" || language === "json").length).toBeGreaterThan(5);
});

const eventBody = '{"type":"verification.verified","data":{"id":"vrf_1","phone":"01012345678"}}';

/** A request with the same event each time, signed now. */
function event(): RequestInit {
  const now = new Date();
  const headers = {
    "webhook-id": "evt_1",
    "webhook-timestamp": String(Math.floor(now.getTime() / 1000)),
    "webhook-signature": new Webhook(secret).sign("evt_1", now, eventBody),
  };
  return { method: "POST", body: eventBody, headers };
}

/** The status of the answer; 0 if there is none. */
const post = (port: number, request: RequestInit) =>
  fetch(`http://127.0.0.1:${port}/`, request).then(
    ({ status }) => status,
    () => 0,
  );

/** Sends a forged request, one that breaks off, and the same signed event twice. */
async function expectReceiver(port: number): Promise<void> {
  const forged = { ...event(), body: `${eventBody} ` };
  await vi.waitUntil(async () => (await post(port, forged)) === 401, { timeout: 45_000 });
  await breakOff(port);
  expect([await post(port, event()), await post(port, event())]).toEqual([204, 204]);
}

/** Announces 300 MB and sends one: a receiver that waits for the rest would read any amount, signed or not. */
async function sendOversized(port: number): Promise<void> {
  const socket = connect(port, "127.0.0.1");
  socket.on("error", () => {});
  socket.write("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\n\r\n");
  socket.write(Buffer.alloc(1_000_000, "x"));
  let answer = "";
  socket.on("data", (bytes) => {
    answer += bytes;
  });
  socket.on("end", () => socket.destroy());
  await new Promise((resolve) => socket.on("close", resolve));
  expect(answer).not.toContain(" 204 ");
}

/** Announces a body and disconnects in the middle of it. */
async function breakOff(port: number): Promise<void> {
  const socket = connect(port, "127.0.0.1");
  const begun = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
  socket.end(begun, () => socket.destroy());
  await once(socket, "close");
}
