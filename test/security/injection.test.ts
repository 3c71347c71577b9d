/**
 * Any text stays data: in the database, the log, headers, the window's page and a terminal. The fields of RPCs come from their
 * descriptors, so that new ones are covered as well.
 */

import { create, type DescField, ScalarType } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { run, towards } from "../cli/command.ts";
import { merchant } from "../gateway/merchant.ts";
import { exchange } from "../gateway/raw-http.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { retryWhileUnavailable, startTestService, type TestService } from "../harness/service.ts";
import { callOnce, rpcs } from "../rpc/every-rpc.ts";
import { answerOf, refusalOf } from "../rpc/grpc-answer.ts";
import { smsSource } from "../service/sms-source.ts";
import { answerWith, startReceiver, untilReceived } from "../webhooks/receiver.ts";
import { startServiceProcess } from "./service-process.ts";

const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
const returnUrl = "https://shop.example/back";
const { projectId, liveKey, liveNumber } = await service.createProject({ returnUrl });
const serviceProcess = await startServiceProcess(service, {
  LOG_LEVEL: "trace",
  WEBHOOK_ALLOW_PRIVATE: "true",
});
const shop = merchant(serviceProcess.httpUrl, liveKey);

const controls = Array.from({ length: 0xa0 }, (_, code) => code)
  .filter((code) => code > 0 && (code < 0x20 || code > 0x7e))
  .map((code) => String.fromCodePoint(code))
  .join("");

/** Hostile texts, by what they attack. */
const hostile: Record<string, string> = {
  "a statement's end": "'; DROP TABLE verification; --",
  "a parameter": "$1 $$1 %s :id ?",
  "an array": '{"a","b",NULL,{c}} \\N \\\\',
  "a copy's end": "\\.\t\\t",
  "a pattern": "%_\\%",
  "a line of the log": '\n{"level":60,"msg":"forged"}\n',
  "a quote of the log": '","msg":"forged","x":"',
  "a header": "x\r\nSet-Cookie: forged=1\r\n\r\n<html>",
  "an element": `"'></p></script><script>alert("forged")</script><img src=x onerror=alert(1)>`,
  "an entity": "&lt;script&gt;&#0;&quot;",
  "a placeholder": "{code} {project} {{7*7}} #{7*7} __proto__ constructor",
  "an address": "../../etc/passwd?x=1#y&z",
  controls,
  "a terminal's escapes": "\x1b[2J\x1b]8;;https://evil.example\x07click\x1b]8;;\x07\x9b31m\x1b]0;forged\x07",
  "other directions": "\u202egnp.\u2066exe\u2069\u200f\u061c\u200b\ufeff\u2028\u2029\u{e0041}",
  "other planes": "𝟙😀é\u0301\u{10ffff}\uffff",
};
const nul = "a\0b";

// In this order: the last test stops the process and looks at all that it has logged.
describe("hostile texts", { shuffle: false }, () => {
  test.for(
    Object.entries(hostile),
  )("a merchant's text is returned unchanged, can be searched for, and is escaped on the window's page: %s", async ([
    ,
    text,
  ]) => {
    const request = { state: text, client_reference: text, return_url: returnUrl };
    const { status, body, headers } = await shop.create(request);
    expect([status, body.state, body.client_reference]).toEqual([201, text, text]);
    expect(headers.get("set-cookie")).toBeNull();
    expect((await shop.read(body.id)).body).toMatchObject({ state: text, client_reference: text });
    const { verifications } = await service
      .client(VerificationService, liveKey)
      .listVerifications({ clientReference: text });
    expect(verifications.map(({ id, state }) => [id, state])).toEqual([[body.id, text]]);

    // The page of an ended verification contains the state in its return URL.
    await shop.cancel(body.id);
    const page = await (await fetch(body.verification_url.replace("localhost", "127.0.0.1"))).text();
    const [, back = ""] = /data-return href="([^"]*)"/.exec(page) ?? [];
    const address = new URL(back.replaceAll("&amp;", "&").replaceAll("&#39;", "'"));
    expect([address.origin, address.searchParams.get("state")]).toEqual(["https://shop.example", text]);
    expect(page).not.toMatch(/<script>|<img|Set-Cookie: |forged\r?\n/);
  });

  test.for(
    Object.entries(hostile),
  )("a project's name is escaped on the window's page, or refused: %s", async ([, text]) => {
    const named = await service.createProject({ name: text }).catch((error) => refusalOf(error).status);
    if (typeof named !== "object") {
      expect(named).toBe(Code.InvalidArgument);
      return;
    }
    const { body } = await merchant(serviceProcess.httpUrl, named.liveKey).create();
    const page = await (await fetch(body.verification_url.replace("localhost", "127.0.0.1"))).text();
    const shown = text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
    const known: Record<string, string> = {
      "&amp;": "&#38;",
      "&lt;": "&#60;",
      "&gt;": "&#62;",
      "&quot;": "&#34;",
    };
    expect(page.replace(/&(amp|lt|gt|quot);/g, (entity) => known[entity] ?? "")).toContain(shown);
    if (/[<>]/.test(text)) expect(page).not.toContain(text);
  });

  const isText = (field: DescField) =>
    (field.fieldKind === "scalar" || (field.fieldKind === "list" && field.listKind === "scalar")) &&
    field.scalar === ScalarType.STRING;

  /** Valid values for the other fields of a request, so that it gets as far as possible. */
  const sound: Record<string, unknown> = {
    projectId,
    environment: Environment.LIVE,
    scope: 1,
    name: "Shop",
    url: "https://shop.example/hook",
    idempotencyKey: "injection-key",
  };

  /** The values of the fields of this name in a message and in those that it contains. */
  function valuesOf(message: unknown, name: string): unknown[] {
    if (typeof message !== "object" || message === null) return [];
    return Object.entries(message).flatMap(([key, value]) => (key === name ? value : valuesOf(value, name)));
  }

  test.for([
    ...Object.entries(hostile),
    ["NUL", nul] as const,
  ])("a text in any field of any RPC is refused, or accepted and shown unchanged: %s", async ([, text]) => {
    const transport = transportTo(serviceProcess.grpcAddress, `Bearer ${service.adminToken}`);
    const calls = rpcs.flatMap(({ name, method }) =>
      method.input.fields.filter(isText).map(async (field) => {
        const known = Object.entries(sound).filter(([known]) => known in method.input.field);
        const value = field.fieldKind === "list" ? [text] : text;
        const request = create(method.input, { ...Object.fromEntries(known), [field.localName]: value });
        try {
          const answer = await retryWhileUnavailable(() => callOnce(transport, method, request));
          const shown = valuesOf(answer, field.localName);
          const isChanged = shown.length > 0 && !shown.includes(text);
          return [`${name} ${field.name}`, isChanged ? `shown as ${JSON.stringify(shown)}` : "ok"];
        } catch (error) {
          return [`${name} ${field.name}`, Code[refusalOf(error).status ?? Code.Unknown]];
        }
      }),
    );
    const results = await Promise.all(calls);
    expect(results.length).toBeGreaterThan(40);
    const refusals = [
      "ok",
      "InvalidArgument",
      "NotFound",
      "AlreadyExists",
      "FailedPrecondition",
      "PermissionDenied",
    ];
    expect(results.filter(([, code]) => !refusals.includes(String(code)))).toEqual([]);
  });

  test("an SMS with any text is stored unchanged and matches nothing", async () => {
    const listener: TestService = service;
    const source = smsSource(listener);
    for (const text of Object.values(hostile)) {
      const messageId = `sms ${text}`;
      expect(await source.send({ to: liveNumber, messageId, text, carrier: "SKT" })).toMatchObject({
        messageId,
        outcome: "NO_MATCH",
      });
      const { rows } = await service.db.query("SELECT text FROM inbound_message WHERE message_id = $1", [
        messageId,
      ]);
      expect(rows).toEqual([{ text }]);
      for (const field of ["from", "to"]) {
        const { outcome } = await source.send({ to: liveNumber, text: "hello", [field]: text });
        expect(["INVALID", "NO_MATCH"]).toContain(outcome);
      }
    }
    expect(await source.send({ to: liveNumber, text: nul })).toMatchObject({ outcome: "INVALID" });
  });

  test("no text in a URL or a header comes back as a header", async () => {
    const evil = "%0d%0aSet-Cookie:%20forged=1%0d%0a";
    for (const path of [
      `/v/${evil}/`,
      `/v/${evil}`,
      `/v1/verifications/${evil}`,
      `/${evil}`,
      `/v/assets/${evil}`,
    ]) {
      const head = `Host: x\r\nX-Forwarded-Host: x${evil}\r\nAuthorization: Bearer ${liveKey}\r\nX-Request-ID: forged\r\nConnection: close\r\n`;
      const [answer] = await exchange(serviceProcess.httpUrl, `GET ${path} HTTP/1.1\r\n${head}\r\n`);
      expect(answer?.headers.has("set-cookie")).toBe(false);
      expect(answer?.headers.get("x-request-id")).toMatch(/^req_[0-9a-z]{26}$/);
    }
  });

  test("no command prints control characters that came from texts", async () => {
    const evil = `${hostile["a terminal's escapes"]}${hostile["other directions"]}\x01\x7f\x85\r\n`;
    const receiver = await startReceiver(answerWith(500, {}, evil));
    const where = { projectId, environment: Environment.LIVE };
    const webhooks = service.client(WebhookService);
    await webhooks.setWebhook({ ...where, url: receiver.url });
    await service
      .client(ApiKeyService)
      .createApiKey({ ...where, name: evil })
      .catch(() => {});
    await service
      .client(ProjectService)
      .createProject({ name: evil, smsTemplate: "본인확인 {code}" })
      .catch(() => {});
    await service.createToken({ scope: "ingest", source: evil }).catch(() => {});
    const { body } = await shop.create({ client_reference: evil, state: evil });
    await shop.cancel(body.id);
    await untilReceived(receiver);
    const commands = [
      ["project", "list"],
      ["key", "list", "--project", projectId],
      ["token", "list"],
      ["number", "list"],
      ["verification", "list", "--project", projectId],
      ["verification", "show", body.id],
      ["webhook", "deliveries", "--project", projectId, "--environment", "live"],
      ["webhook", "test", "--project", projectId, "--environment", "live"],
      ["audit"],
      ["sms", "send", "--to", liveNumber, "--from", evil, "--text", evil, "--message-id", evil],
      ["project", "create", "--name", evil],
      ["key", "create", "--project", evil, "--environment", evil],
    ];
    const outputs: string[] = [];
    // As output for people, and as JSON.
    for (const args of commands.flatMap((command) => [command, [...command, "--json"]])) {
      const { stdout, stderr } = await run(args, { ...towards(service), COLUMNS: "200" });
      outputs.push(stdout + stderr);
    }
    expect(outputs.filter((text) => text === "")).toEqual([]);
    for (const text of outputs)
      expect(text).not.toMatch(/[^\P{Cc}\n]|(?![\u200c\u200d])\p{Cf}|[\u2028\u2029]/u);
  });

  test("after all these texts the log contains no forged line and no error, and the database still works", async () => {
    expect(
      (await answerOf((options) => service.client(ProjectService).getProject({ projectId }, options))).code,
    ).toBe("ok");
    expect((await shop.create()).status).toBe(201);
    await serviceProcess.stop();
    const lines = serviceProcess
      .output()
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(lines.length).toBeGreaterThan(500);
    expect(lines.filter(({ level, msg }) => level >= 50 || msg === "forged")).toEqual([]);
  });
});
