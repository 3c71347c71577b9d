/** Tests the receiver and the payloads in docs/webhooks.md. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { Webhook } from "standardwebhooks";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { signedHeaders } from "../../src/webhooks/signature.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { startReceiver, untilReceived } from "./receiver.ts";
import { delivered, deliveryWhen, openShop } from "./shop.ts";

const page = path.join(import.meta.dirname, "../../docs/webhooks.md");

let service: TestService;
let directory: string;
let text: string;

beforeAll(async () => {
  service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
  directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-docs-"));
  text = await readFile(page, "utf8");
});

afterAll(() => rm(directory, { recursive: true }));

function blocks(language: string): string[] {
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, "gm"))].map(
    ([, code = ""]) => code,
  );
}

test("the TypeScript receiver accepts events, also while the secret is rotated, and refuses an unsigned request", async () => {
  const [code = ""] = blocks("ts");
  const file = path.join(directory, "receiver.ts");
  await writeFile(file, code);
  const shop = await openShop(service);
  const [port] = await freePorts(1);
  const url = `http://127.0.0.1:${port}/phoneproof`;
  const { secret } = await shop.setWebhook(url);
  const early = await shop.create();
  const rotated = await shop.rotateSecret();
  const { PATH = "" } = process.env;
  const start = (secrets: string) => {
    const receiver = spawn(process.execPath, [file], {
      env: { PATH, PORT: String(port), PHONEPROOF_WEBHOOK_SECRETS: secrets },
      stdio: ["ignore", "pipe", "inherit"],
    });
    let output = "";
    receiver.stdout.on("data", (chunk) => {
      output += chunk;
    });
    const stop = async () => {
      receiver.kill();
      await once(receiver, "exit");
    };
    return { stop, lines: () => output.trim().split("\n") };
  };
  const answers = () =>
    vi.waitUntil(
      () =>
        fetch(url, { method: "POST", body: "{}" }).then(
          ({ status }) => status,
          () => 0,
        ),
      {
        timeout: 45_000,
      },
    );

  const old = start(secret);
  expect(await answers()).toBe(401);
  await shop.cancel(early.id);
  await deliveryWhen(service, early.id, delivered);
  await expect.poll(old.lines).toEqual([`verification.cancelled ${early.id} null`]);
  await old.stop();

  const both = start(`${secret} ${rotated}`);
  await answers();
  const late = await shop.event();
  await deliveryWhen(service, late, delivered);
  await expect.poll(both.lines).toEqual([`verification.cancelled ${late} null`]);
  await both.stop();
});

test("the example payloads have the fields of real events, in their order", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  await shop.event();
  const [request] = await untilReceived(receiver);
  const sent = JSON.parse(request?.body ?? "");
  const shown = blocks("json").map((block) => JSON.parse(block));
  expect(shown.map(({ type }) => type)).toEqual([
    "verification.verified",
    "verification.expired",
    "verification.cancelled",
  ]);
  for (const example of shown) {
    expect(Object.keys(example)).toEqual(Object.keys(sent));
    expect(Object.keys(example.data)).toEqual(Object.keys(sent.data));
    expect(example.data.status).toBe(example.type.slice("verification.".length));
  }
});

test("the signed request shown is signed as the service signs, and has the headers that it sends", async () => {
  const [shown = ""] = blocks("http");
  const [head = "", body = ""] = shown.trim().split("\n\n");
  const headers = Object.fromEntries(
    head
      .split("\n")
      .slice(1)
      .map((line) => line.split(/: (.*)/s, 2) as [string, string]),
  );
  const secret = /`(whsec_[A-Za-z0-9+/=]+)`/.exec(text)?.[1] ?? "";
  const { "webhook-id": id = "", "webhook-timestamp": timestamp = "" } = headers;
  const key = Buffer.from(secret.replace("whsec_", ""), "base64");
  const signed = signedHeaders({ id, timestamp: Number(timestamp), body, secrets: [key] });
  expect(headers).toMatchObject(signed);
  const when = new Date(Number(timestamp) * 1000);
  expect(signed["webhook-signature"]).toBe(new Webhook(secret).sign(id, when, body));
  expect(headers["content-length"]).toBe(String(Buffer.byteLength(body)));
  // The first payload shown, on one line, sent in the second in which it happened.
  expect(JSON.parse(body)).toEqual(JSON.parse(blocks("json")[0] ?? ""));
  expect(timestamp).toBe(String(Math.floor(Date.parse(JSON.parse(body).timestamp) / 1000)));

  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  await shop.event();
  const [request] = await untilReceived(receiver);
  expect(
    Object.keys(request?.headers ?? {})
      .filter((name) => name !== "connection")
      .sort(),
  ).toEqual(Object.keys(headers).sort());
});
