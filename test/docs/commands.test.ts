/** Every command in the documents, run as it stands there; only names, keys and addresses are put in. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readFile, rm, symlink } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { afterAll, describe, expect, test, vi } from "vitest";
import { buildProgram } from "../../src/cli/program.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { startTestService } from "../harness/service.ts";
import { startReceiver } from "../webhooks/receiver.ts";
import { pages, root } from "./pages.ts";

const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
const receiver = await startReceiver();
const home = await mkdtemp(path.join(os.tmpdir(), "phoneproof-docs-"));
afterAll(() => rm(home, { recursive: true, maxRetries: 3 }));

// `npx phoneproof` without npx, which takes a second to start.
await mkdir(path.join(home, "bin"));
await symlink(path.join(root, "bin/phoneproof.mjs"), path.join(home, "bin/phoneproof"));

const blocks = pages().flatMap(({ file, blocks: all }) =>
  all.filter(({ language }) => language === "sh").map(({ code }, index) => ({ file, index, code })),
);
/** What goes on until it is stopped: tried below, and by those who type the README's two commands. */
const goesOn = ({ code }: { readonly code: string }) => /npm (start|test)$|node shop\.mjs$/m.test(code);

/** What a page's commands have printed so far, to be put where the page says so. */
interface Known {
  directory: string;
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
      ["npx phoneproof", path.join(home, "bin/phoneproof")],
    ]),
  };
}

/** `signal`: ends it with whatever it has started. */
async function runBlock(code: string, known: Known, signal: AbortSignal): Promise<string> {
  const filled = [...known.words].reduce((text, [word, value]) => text.replaceAll(word, value), code);
  const state = path.join(home, "directory");
  const shell = spawn("bash", ["-euo", "pipefail", "-c", `${filled}\npwd > '${state}'`], {
    cwd: known.directory,
    env: {
      PATH: process.env.PATH ?? "",
      HOME: home,
      PHONEPROOF_ADDRESS: service.grpcAddress,
      PHONEPROOF_TOKEN: service.adminToken,
      PHONEPROOF_API_KEY: known.words.get("pp_test_…") ?? "",
      // The package was built before; building it again could pull it away under another test.
      npm_config_ignore_scripts: "true",
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
  known.directory = (await readFile(state, "utf8")).trim();
  const created =
    /"destination":"([^"]+)","sms_text":"([^"]+)"/.exec(printed) ??
    /send to +(\S+)\nSMS text +(.+)/.exec(printed);
  if (created !== null) {
    known.words.set("DESTINATION", created[1] ?? "").set("SMS_TEXT", created[2] ?? "");
    known.words.set("vrf_…", /vrf_[0-9a-z]{26}/.exec(printed)?.[0] ?? "");
  }
  return printed;
}

/** Not the measurements of docs/performance.md, which take minutes, and not the Korean pages, whose blocks are the same. */
const files = [
  "README.md",
  "docs/grpc.md",
  "docs/idempotency-and-errors.md",
  "docs/quick-start.md",
  "docs/sandbox.md",
  "docs/settings.md",
  "docs/sms-ingestion.md",
  "docs/webhooks.md",
];

describe.concurrent("the commands of", () => {
  test.for(files.map((file, index) => ({ file, number: `0211${String(index).padStart(6, "0")}` })))(
    "$file",
    { timeout: 180_000 },
    async ({ file, number }, { signal }) => {
      const known = await newKnown(number);
      let printed = "";
      for (const block of blocks) {
        if (block.file === file && !goesOn(block)) printed += await runBlock(block.code, known, signal);
      }
      if (file === "README.md") expect(printed).toMatch(/VERIFIED[\s\S]*"status":"verified"/);
      if (file === "docs/grpc.md") expect(printed).toMatch(/WatchVerification[\s\S]*\nm1 NO_MATCH/);
    },
  );
});

test("what starts the service starts it", { timeout: 120_000 }, async () => {
  const starts = new Set(blocks.map(({ code }) => code.trim()).filter((code) => code.endsWith("npm start")));
  expect(starts).toEqual(
    new Set([
      "npm ci && npm start",
      "PORT=8081 GRPC_PORT=50052 OPS_PORT=9465 DATA_DIR=.data-two npm start",
      "WEBHOOK_ALLOW_PRIVATE=true npm start",
    ]),
  );
  // The others differ in nothing that is not tried elsewhere.
  const command = [...starts].find((code) => code.startsWith("PORT=")) ?? "";
  const shell = spawn(
    "bash",
    ["-c", command.replace(/PORT=\d+/g, "PORT=0").replace(".data-two", `${home}/data`)],
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

test("the quick start's shop shows the phone that was verified", async () => {
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
    const begun = await fetch(`${url}/begin`, { method: "POST", redirect: "manual" });
    const cookie = begun.headers.get("set-cookie")?.split(";")[0] ?? "";
    expect((await fetch(begun.headers.get("location") ?? "")).status).toBe(200);
    const page = async () => (await fetch(url, { headers: { cookie } })).text();
    expect(await page()).toContain("Your verification is pending.");
    const { rows } = await service.db.query(
      "SELECT destination, sms_text FROM verification WHERE destination = $1",
      [project.testNumber],
    );
    await service.sms({ to: rows[0].destination, text: rows[0].sms_text, from: "01012345678" });
    expect(await page()).toContain("Verified: 01012345678");
  } finally {
    shop.kill();
    await exited;
  }
});

test("commands in the text have the words and options they are given", () => {
  const inline = pages().flatMap(({ file, prose }) =>
    [...prose.matchAll(/`(?:npx )?(phoneproof [^`]+)`/g)].map(([, command = ""]) => ({ file, command })),
  );
  expect(inline.length).toBeGreaterThan(5);
  for (const { file, command } of inline) {
    let found = buildProgram() as {
      commands: readonly unknown[];
      options: readonly { long?: string }[];
      name(): string;
    };
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
