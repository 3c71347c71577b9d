/** Runs every command in the docs as printed, with only names, keys and addresses filled in. */

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import os from "node:os";
import path from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, describe, expect, test, vi } from "vitest";
import { parseOptions as parseBenchOptions } from "../../bench/options.ts";
import manifest from "../../package.json" with { type: "json" };
import { buildProgram } from "../../src/cli/program.ts";
import { decodeId } from "../../src/core/ids.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { launcher, run } from "../cli/command.ts";
import { faultNamed } from "../faults/faults.ts";
import { merchant } from "../gateway/merchant.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { startTestService } from "../harness/service.ts";
import { createPending, letExpire } from "../service/pending.ts";
import { startReceiver } from "../webhooks/receiver.ts";
import { isKorean, pages, readPage, root } from "./pages.ts";

const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
const receiver = await startReceiver();
const home = await mkdtemp(path.join(os.tmpdir(), "phoneproof-docs-"));
// Root's Postgres runs as another account where there are no user namespaces.
await chmod(home, 0o711);
afterAll(() => rm(home, { recursive: true, maxRetries: 3 }));

let lastCommand: Promise<unknown> = Promise.resolve();

/**
 * Runs commands for shells: a request has the directory, the environment and the arguments, an answer is for the shell's eval. One
 * after the other: for two at once, another process would be started.
 */
const commandServer = createServer(async (request, response) => {
  const [cwd = "", variables = "", ...args] = (await text(request)).split("\0").slice(0, -1);
  const environment = variables.split("\n").map((line) => line.split(/=(.*)/).slice(0, 2));
  const command = lastCommand.then(() => run(args, Object.fromEntries(environment), cwd));
  lastCommand = command.catch(() => {});
  const { code, stdout, stderr } = await command;
  const quoted = (output: string) => `'${output.replaceAll("'", "'\\''")}'`;
  response.end(`printf %s ${quoted(stdout)}; printf %s ${quoted(stderr)} >&2; exit ${code}`);
}).listen(0, "127.0.0.1");
await once(commandServer, "listening");
afterAll(() => void commandServer.close());

// Names on the PATH in place of `npx NAME`, because npx takes a second to start, and so does a process for each command. The
// command that reads its standard input has one.
await mkdir(path.join(home, "bin"));
await symlink(process.execPath, path.join(home, "bin/node"));
await symlink(launcher, path.join(home, "bin/phoneproof-process"));
await symlink(path.join(root, "node_modules/.bin/buf"), path.join(home, "bin/buf"));
await writeFile(
  path.join(home, "bin/phoneproof"),
  `#!/bin/sh
[ "$1 $2" = "sms stream" ] && exec phoneproof-process "$@"
answer=$(printf '%s\\0' "$PWD" "$(env)" "$@" |
  curl -sS --fail --data-binary @- http://127.0.0.1:${(commandServer.address() as AddressInfo).port}) || exit
eval "$answer"
`,
  { mode: 0o755 },
);
/** Commands are found by name, because the repository's path may contain any characters. */
const searchPath = `${path.join(home, "bin")}:${process.env.PATH ?? ""}`;

const everyPage = pages();
/** Without the Korean pages, whose code blocks are the same. */
const blocks = everyPage
  .filter(({ file }) => !isKorean(file))
  .flatMap(({ file, blocks: all }) =>
    all.filter(({ language }) => language === "sh").map(({ code }) => ({ file, code })),
  );

/** The first Python with the gRPC libraries: Debian's is not always the first on the PATH. */
const python = ["python3", "/usr/bin/python3"].find(
  (command) => spawnSync(command, ["-c", "import grpc, google.protobuf"]).status === 0,
);

/** Most of the commands need it, and here `npx phoneproof` does, too. */
const hasCurl = spawnSync("curl", ["--version"]).status === 0;
if (!hasCurl) noteAbsence("curl", "the commands of the docs, as printed");

/** The commands that are not run as printed, each with its reason. */
const notRun: readonly { readonly command: RegExp; readonly why: string }[] = [
  { command: /npm start$/m, why: "runs until it is stopped; one is started below" },
  {
    command: /npm start > /m,
    why: "runs until it is stopped; a service is there already, and starts are tested below",
  },
  { command: /npm test$/m, why: "runs this test" },
  { command: /node shop\.mjs$/m, why: "runs until it is stopped; tested below" },
  {
    command: /-watch\.ts prj_…$|watch\.py prj_…$/m,
    why: "runs until an SMS arrives; tested in test/rpc/example-clients.test.ts",
  },
  {
    command: /^go install /m,
    why: "downloads modules; test/rpc/example-clients.test.ts tests what it can without them",
  },
  ...(python === undefined
    ? [{ command: /python3 /, why: "needs the gRPC libraries for Python, which are not installed" }]
    : []),
  ...(spawnSync("openssl", ["version"]).status === 0
    ? []
    : [{ command: /^openssl /, why: "needs OpenSSL, which is not installed" }]),
  {
    command: /^npm install @bufbuild/,
    why: "installs packages into the reader's own project",
  },
  {
    command: /npm ci --omit=dev /,
    why: "removes the development tools that these tests need; test/deploy/files.test.ts checks that the rest suffices",
  },
  { command: /^kubectl --namespace phoneproof exec /m, why: "needs a Kubernetes cluster" },
  {
    command: /npm run start:cluster$/m,
    why: "needs installed programs; test/deploy/cluster.test.ts runs it where they are",
  },
  {
    command: /^pg_basebackup /m,
    why: "needs a server with a WAL archive, and programs of its version, which the embedded Postgres does not include",
  },
  {
    command: /^cp -aL \.data /m,
    why: "needs the directory of a stopped service; test/storage/embedded-postgres.test.ts starts on copies of one",
  },
  {
    command: /session_replication_role/,
    why: "needs psql, and an embedded database beside another one; test/docs/moving.test.ts runs it",
  },
  { command: /^read -rs /m, why: "waits for a token to be typed; here the environment has one" },
  {
    command: /^PGPASSWORD=.* psql /m,
    why: "opens a prompt, and needs psql, which the embedded Postgres does not include",
  },
  {
    command: /npm run test:faults/,
    why: "takes minutes; test/faults has a short version, and the command's options are checked below",
  },
  {
    command: /npm run bench|node bench\//,
    why: "takes minutes; the command's options are checked below",
  },
];

const isRun = ({ code }: { readonly code: string }) => !notRun.some(({ command }) => command.test(code));

/** The state that a page's commands share, and what to fill in for the page's placeholders. */
interface Known {
  directory: string;
  /** Shell variables set so far, as `declare -p` prints them. */
  variables: string;
  readonly words: Map<string, string>;
}

async function newKnown(number: string): Promise<Known> {
  const project = await service.createProject();
  const webhooks = service.client(WebhookService);
  const target = { projectId: project.projectId, environment: Environment.LIVE };
  await webhooks.setWebhook({ ...target, url: receiver.url });
  const answer = await fetch(`${service.httpUrl}/v1/verifications`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${project.liveKey}`,
      "content-type": "application/json",
      "idempotency-key": `docs-${number}`,
    },
    body: "{}",
  });
  const { id } = (await answer.json()) as { id: string };
  await fetch(`${service.httpUrl}/v1/verifications/${id}/cancel`, {
    method: "POST",
    headers: { authorization: `Bearer ${project.liveKey}` },
  });
  const { deliveries } = await webhooks.listWebhookDeliveries({ verificationId: id });
  return {
    directory: root,
    variables: "",
    words: new Map([
      ["pp_test_…", project.testKey],
      ["prj_…", project.projectId],
      ["vrf_…", id],
      ["evt_…", deliveries[0]?.eventId ?? ""],
      ["0212345678", number],
      ["http://localhost:8080", service.httpUrl],
      ["127.0.0.1:50051", service.grpcAddress],
      ["https://shop.example/phoneproof", receiver.url],
      ["http://localhost:3000/webhook", receiver.url],
      ["npx phoneproof", "phoneproof"],
      ["npx node", "node"],
      ["npx buf", "buf"],
      ["python3", python ?? "python3"],
    ]),
  };
}

/** Runs a block and returns what it prints; `signal` kills it with all processes that it has started. */
async function runBlock(code: string, known: Known, signal: AbortSignal): Promise<string> {
  const filled = [...known.words].reduce((text, [word, value]) => text.replaceAll(word, value), code);
  const state = await mkdtemp(path.join(home, "state-"));
  // Saves directory and variables for the next block, which a reader types into the same terminal.
  const names = [...filled.matchAll(/^(?:export )?([A-Z_]+)=/gm)].map(([, name = ""]) => name);
  const keep = `pwd > "$STATE/directory"\n${names.map((name) => `declare -p ${name}\n`).join("")}`;
  const script = `${known.variables}\n${filled}\n{ ${keep} } > "$STATE/variables"`;
  const shell = spawn("bash", ["-euo", "pipefail", "-c", script], {
    cwd: known.directory,
    env: {
      PATH: searchPath,
      HOME: home,
      STATE: state,
      PHONEPROOF_ADDRESS: service.grpcAddress,
      PHONEPROOF_TOKEN: service.adminToken,
      PHONEPROOF_API_KEY: known.words.get("pp_test_…") ?? "",
      // The package is already built; building it again could break a test that uses it at the same time.
      npm_config_ignore_scripts: "true",
      NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
      PYTHONDONTWRITEBYTECODE: "1",
    },
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  signal.addEventListener("abort", () => process.kill(-(shell.pid ?? 0), "SIGKILL"));
  let [printed, complaints] = ["", ""];
  shell.stdout.setEncoding("utf8").on("data", (text: string) => {
    printed += text;
  });
  shell.stderr.setEncoding("utf8").on("data", (text: string) => {
    complaints += text;
  });
  const [code_] = await once(shell, "close");
  expect(code_, `${filled}\n${printed}${complaints}`).toBe(0);
  known.directory = (await readFile(path.join(state, "directory"), "utf8")).trim();
  known.variables += await readFile(path.join(state, "variables"), "utf8");
  const created =
    /"destination":"([^"]+)","sms_text":"([^"]+)"/.exec(printed) ??
    /send to +(\S+)\nSMS text +(.+)/.exec(printed);
  if (created !== null) {
    known.words.set("DESTINATION", created[1] ?? "").set("SMS_TEXT", created[2] ?? "");
    known.words.set("vrf_…", /vrf_[0-9a-z]{26}/.exec(printed)?.[0] ?? "");
  }
  return printed;
}

const files = [...new Set(blocks.filter(isRun).map(({ file }) => file))].sort();

if (hasCurl)
  describe.concurrent("the commands run as printed in", () => {
    test.for(files.map((file, index) => ({ file, number: `0211${String(index).padStart(6, "0")}` })))(
      "$file",
      { timeout: 180_000 },
      async ({ file, number }, { signal }) => {
        const known = await newKnown(number);
        let printed = "";
        for (const block of blocks) {
          if (block.file === file && isRun(block)) printed += await runBlock(block.code, known, signal);
        }
        if (file === "README.md") expect(printed).toMatch(/VERIFIED[\s\S]*"status":"verified"/);
        if (file === "docs/grpc.md") {
          expect(printed).toMatch(/WatchVerification/);
          expect(printed.match(/^m1 NO_MATCH$/gm)).toHaveLength(python === undefined ? 2 : 3);
        }
        if (file === "docs/sandbox.md") expect(printed).toMatch(/"outcome":"VERIFIED"[\s\S]*pass 3\n/);
        if (file === "docs/statistics.md") expect(printed.split('"counted_until"')).toHaveLength(2);
      },
    );
  });

test("every page with commands is tested, and every exception still applies", () => {
  expect(files).toEqual(
    expect.arrayContaining([
      "README.md",
      "docs/concepts.md",
      "docs/grpc.md",
      "docs/idempotency-and-errors.md",
      "docs/quick-start.md",
      "docs/sandbox.md",
      "docs/sms-ingestion.md",
      "docs/statistics.md",
      "docs/webhooks.md",
      "packages/client/README.md",
    ]),
  );
  // An exception without a matching command could hide a new command.
  for (const { command, why } of notRun) {
    expect(
      blocks.filter(({ code }) => command.test(code)),
      `${command} ${why}`,
    ).not.toEqual([]);
  }
});

test("commands that are not run have existing scripts, files and options", () => {
  const commands = blocks
    .filter((block) => !isRun(block))
    .flatMap(({ code }) => code.split("\n").map((line) => line.replace(/ +#.*/, "")));
  for (const command of commands) {
    const [, script] = /^npm run (\S+)/.exec(command) ?? [];
    if (script !== undefined) expect(Object.keys(manifest.scripts), command).toContain(script);
    const [, file] = /node ((?:bench|examples|src)\/\S+)/.exec(command) ?? [];
    if (file !== undefined) expect(existsSync(path.join(root, file)), command).toBe(true);
    const options = command.split(" -- ")[1]?.split(" ") ?? [];
    if (script === "bench") parseBenchOptions(options);
    if (script === "test:faults" && options.includes("--only")) {
      for (const name of options[options.indexOf("--only") + 1]?.split(",") ?? []) faultNamed(name);
    }
  }
  expect(commands.length).toBeGreaterThan(20);
});

test("the SQL in the docs runs on this schema", async () => {
  const statements = everyPage.flatMap(({ file, blocks: all }) =>
    all.filter(({ language }) => language === "sql").map(({ code }) => ({ file, code })),
  );
  expect(statements.length).toBeGreaterThan(1);
  for (const { file, code } of statements) {
    const client = await service.db.connect();
    try {
      await client.query("BEGIN");
      await client.query("CREATE ROLE phoneproof_docs LOGIN");
      // The role phoneproof exists, the database has another name, and CONCURRENTLY is not possible in a transaction.
      const renamed = code
        .replaceAll("CONCURRENTLY ", "")
        .replaceAll("DATABASE phoneproof", `DATABASE ${new URL(service.databaseUrl).pathname.slice(1)}`)
        .replaceAll("phoneproof", "phoneproof_docs");
      await client.query(renamed).catch((error: Error) => expect.fail(`${file}: ${error.message}`));
    } finally {
      await client.query("ROLLBACK");
      client.release();
    }
  }
});

test("the query for a source's verifications lists each one once, even if its message arrived twice", async () => {
  const code = readPage("docs/secrets.md").blocks.find((block) => block.code.includes("'SOURCE'"))?.code;
  const shop = await service.createProject();
  const response = await fetch(`${service.httpUrl}/v1/verifications`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${shop.liveKey}`,
      "Content-Type": "application/json",
      "Idempotency-Key": "what-a-source-has-verified",
    },
    body: JSON.stringify({ client_reference: "leak" }),
  });
  const created = (await response.json()) as { id: string; destination: string; sms_text: string };
  const message = { to: created.destination, from: "01000000042", text: created.sms_text };
  await service.sms({ ...message, messageId: "leak-1" }, { ...message, messageId: "leak-2" });
  const { rows } = await service.db.query((code ?? "").replace("SOURCE", "cli"));
  const listed = rows.filter((row) => row.client_reference === "leak").map((row) => row.verification);
  expect(listed).toEqual([created.id]);
});

test("the queries for support find a person's messages, and count yesterday's by carrier and outcome", async () => {
  const { blocks: all } = readPage("docs/support.md");
  const statements = all.filter(({ language }) => language === "sql").map(({ code }) => code);
  const [byPerson = "", byId = ""] = statements;
  const byCarrier = statements.at(-1) ?? "";
  const { liveKey } = await service.createProject();
  const pending = await createPending(merchant(service.httpUrl, liveKey));
  const from = "01000000043";
  await service.sms({ ...pending, from, messageId: "support-1", carrier: "KT" });
  await service.sms({ ...pending, from, text: "안녕하세요", messageId: "support-2", carrier: "KT" });
  const { rows: theirs } = await service.db.query(byPerson.replace("01012345678", from));
  expect(theirs).toMatchObject([
    { destination: pending.to, outcome: "verified", message_id: "support-1", verification: pending.id },
    { destination: pending.to, outcome: "no_match", message_id: "support-2", verification: null },
  ]);
  const { rows: one } = await service.db.query(
    byId.replace("sms-gateway", "cli").replace("'ID'", "'support-1'"),
  );
  expect(one).toMatchObject([{ outcome: "verified", destination: pending.to, named: true }]);
  // In a transaction the day is the same throughout. Other tests' messages would be of yesterday if they arrived before midnight.
  const client = await service.db.connect();
  try {
    await client.query("BEGIN");
    await client.query("DELETE FROM inbound_message WHERE message_id NOT LIKE 'support-%'");
    await client.query(
      `UPDATE inbound_message SET ingested_at =
         date_trunc('day', now() AT TIME ZONE 'Asia/Seoul') AT TIME ZONE 'Asia/Seoul' - interval '12 hours'`,
    );
    expect((await client.query(byCarrier)).rows).toEqual([
      { carrier: "KT", outcome: "no_match", count: "1", late_by: null },
      { carrier: "KT", outcome: "verified", count: "1", late_by: null },
    ]);
  } finally {
    await client.query("ROLLBACK");
    client.release();
  }
});

test("the queries for a fall in conversion tell what came of verifications and messages, in slices of five minutes", async () => {
  const statements = readPage("docs/support.md")
    .blocks.filter(({ code }) => code.includes("'2026-11-21 13:30+09'"))
    .map(({ code }) =>
      code
        .replaceAll("2026-11-21 13:30+09", new Date(Date.now() - 3_600_000).toISOString())
        .replaceAll("2026-11-21 14:30+09", new Date(Date.now() + 3_600_000).toISOString()),
    );
  const [begun = "", arrived = ""] = statements;
  const { liveKey, projectId } = await service.createProject();
  await service.db.query("UPDATE project SET name = 'Fall' WHERE id = $1", [decodeId("prj_", projectId)]);
  const shop = merchant(service.httpUrl, liveKey);
  const from = "01000000044";
  const [verified, late, mismatched, silent] = [
    await createPending(shop),
    await createPending(shop),
    await createPending(shop, { mode: "match", expected_phone: "010-0000-0045" }),
    await createPending(shop),
  ];
  await service.sms({ ...verified, from, messageId: "fall-1", carrier: "SKT" });
  await service.sms({ ...mismatched, from, messageId: "fall-2", carrier: "SKT" });
  for (const { id } of [late, mismatched, silent]) await letExpire(service.db, id);
  await service.sms({ ...late, from, messageId: "fall-3", carrier: "SKT" });
  for (const { id } of [late, mismatched, silent]) await shop.read(id);

  const { rows } = await service.db.query(begun.replace("'Shop'", "'Fall'"));
  const sum = (name: string) => rows.reduce((total, row) => total + Number(row[name]), 0);
  const names = ["count", "verified", "cancelled", "late", "mismatch", "web", "nothing_came"];
  expect(names.map(sum)).toEqual([4, 1, 0, 1, 1, 0, 1]);

  const { rows: messages } = await service.db.query(arrived.replace("'cli', 'window'", "'window'"));
  // There are other pages' messages, too.
  const ours = messages.filter(({ carrier }) => carrier === "SKT").map(({ outcome }) => outcome);
  expect(ours).toEqual(expect.arrayContaining(["verified", "sender_mismatch", "late"]));
});

test("the documented start command starts the service", async () => {
  const starts = new Set(blocks.map(({ code }) => code.trim()).filter((code) => code.endsWith("npm start")));
  expect(starts).toEqual(
    new Set([
      "npm ci && npm start",
      "PORT=8081 GRPC_PORT=50052 OPS_PORT=9465 DATA_DIR=.data-two npm start",
      "WEBHOOK_ALLOW_PRIVATE=true npm start",
    ]),
  );
  // The others differ only in what is tested elsewhere.
  const command = [...starts].find((code) => code.startsWith("PORT=")) ?? "";
  const shell = spawn(
    "bash",
    ["-c", command.replace(/PORT=\d+/g, "PORT=0").replace(".data-two", '"$HOME/data"')],
    {
      cwd: root,
      stdio: ["ignore", "pipe", "inherit"],
      env: { PATH: process.env.PATH ?? "", HOME: home },
      detached: true,
    },
  );
  const exited = once(shell, "exit");
  let printed = "";
  shell.stdout.setEncoding("utf8").on("data", (text: string) => {
    printed += text;
  });
  try {
    await vi.waitUntil(() => printed.includes("Ctrl-C stops it."), { timeout: 90_000 });
  } finally {
    process.kill(-(shell.pid ?? 0), "SIGTERM");
    await exited;
  }
});

test("the quick start's shop shows the verified phone", async () => {
  const project = await service.createProject();
  const folder = path.join(root, "examples/quick-start");
  const shop = spawn(process.execPath, ["shop.mjs"], {
    cwd: folder,
    env: {
      PATH: process.env.PATH ?? "",
      SHOP_PORT: "0",
      PHONEPROOF_URL: service.httpUrl,
      PHONEPROOF_API_KEY: project.testKey,
    },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const exited = once(shop, "exit");
  try {
    const [line] = await once(shop.stdout, "data");
    const url = /http:\S+/.exec(String(line))?.[0].replace("localhost", "127.0.0.1") ?? "";
    expect(await (await fetch(url)).text()).toContain("Nothing verified yet.");
    const begin = (headers: Record<string, string>) =>
      fetch(`${url}/begin`, { method: "POST", redirect: "manual", headers });
    for (const origin of ["https://elsewhere.example", "null"]) {
      const elsewhere = await begin({ origin });
      expect([elsewhere.status, elsewhere.headers.get("set-cookie")]).toEqual([403, null]);
    }
    // An answer of 200 would tell phoneproof that a webhook has been received.
    for (const [method, path] of [
      ["POST", "/webhook"],
      ["GET", "/favicon.ico"],
    ] as const) {
      expect((await fetch(`${url}${path}`, { method })).status).toBe(404);
    }
    // As WebKit sends the form, which opens a new tab.
    const begun = await begin({ origin: url, "sec-fetch-site": "cross-site" });
    const cookie = begun.headers.get("set-cookie")?.split(";")[0] ?? "";
    expect((await fetch(begun.headers.get("location") ?? "")).status).toBe(200);
    const page = async () => (await fetch(url, { headers: { cookie } })).text();
    const pending = await page();
    expect(pending).toContain("Your verification is pending.");
    // WebKit drops a refresh by <meta> once the form is sent.
    expect(pending).toMatch(/<script>setTimeout\(.*location\.reload\(\)/);
    expect(pending).not.toContain("http-equiv");
    const { rows } = await service.db.query(
      "SELECT destination, sms_text, client_reference FROM verification WHERE destination = $1",
      [project.testNumber],
    );
    // The window can show it to others.
    expect(rows[0].client_reference).not.toContain(cookie.replace("session=", ""));
    await service.sms({ to: rows[0].destination, text: rows[0].sms_text, from: "01012345678" });
    const verified = await page();
    expect(verified).toContain("Verified: 01012345678");
    expect(verified).not.toContain("reload");
  } finally {
    shop.kill();
    await exited;
  }
});

test("commands in running text have existing subcommands and options", () => {
  const inline = everyPage.flatMap(({ file, prose }) =>
    [...prose.matchAll(/`(?:npx )?(phoneproof [^`]+)`/g)].map(([, command = ""]) => ({ file, command })),
  );
  expect(inline.length).toBeGreaterThan(5);
  const program = buildProgram() as {
    commands: readonly unknown[];
    options: readonly { long?: string }[];
    name(): string;
  };
  for (const { file, command } of inline) {
    let found = program;
    const known = new Set<string | undefined>(["--json", "--help", "--address", "--token"]);
    for (const word of command.split(/\s+/).slice(1)) {
      const next = found.commands.find((sub) => (sub as typeof found).name() === word);
      if (next !== undefined) found = next as typeof found;
      for (const { long } of found.options) known.add(long);
      if (word.startsWith("--")) expect(known, `${command} in ${file}`).toContain(word);
    }
    if (!command.includes("--help")) expect(found.commands, `${command} in ${file}`).toHaveLength(0);
  }
});

test("commands in running text can be typed in a checkout, where phoneproof is not on the PATH", () => {
  // Operators have the command installed.
  const operators = ["operations", "runbook", "support", "backup", "secrets", "monitoring"].map(
    (name) => `docs/${name}.md`,
  );
  const bare = everyPage
    .filter(({ file }) => !operators.includes(file))
    .flatMap(({ file, text }) =>
      [
        ...text.matchAll(
          /`(?:phoneproof [a-z]|node (?:bench|examples)\/)[^`]*`|^node (?:bench|examples)\/.*$/gm,
        ),
      ].map(([command]) => `${command} in ${file}`),
    );
  expect(bare).toEqual([]);
});
