/**
 * Keys, tokens, secrets, codes and phones are returned only to their owners. The test uses everything, failures included, and
 * searches all other output of the service for them.
 */

import { readFile } from "node:fs/promises";
import { ScalarType } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { newCredential } from "../../src/core/credential.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { type Answer, merchant } from "../gateway/merchant.ts";
import { exchange } from "../gateway/raw-http.ts";
import { tablesWith } from "../harness/every-table.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { callOnce, rpcs } from "../rpc/every-rpc.ts";
import { codeIn } from "../service/pending.ts";
import { smsSource } from "../service/sms-source.ts";
import { answerWith, startReceiver, untilReceived } from "../webhooks/receiver.ts";
import { startServiceProcess } from "./service-process.ts";

const inner = await startTestService({ ROLES: "api" });
const observed = await startServiceProcess(inner, { LOG_LEVEL: "trace", WEBHOOK_ALLOW_PRIVATE: "true" });

/** The process whose output is searched, with the database and the credentials of `inner`. */
const service: TestService = {
  ...inner,
  client: (definition, token = inner.adminToken) =>
    createClient(definition, transportTo(observed.grpcAddress, `Bearer ${token}`)),
};

const { projectId, liveKey, testKey, liveNumber, testNumber } = await inner.createProject();
const ingestToken = await inner.createToken({ scope: "ingest", source: "gateway" });
const readToken = await inner.createToken({ scope: "read", projectId });

/** The values that must not appear anywhere else, by their names. */
const secrets: Record<string, string> = {
  "the live key": liveKey,
  "the test key": testKey,
  "the ingest token": ingestToken,
  "the read token": readToken,
  "the installation's token": inner.adminToken,
  "a key of nobody's": newCredential("live"),
  "a token of nobody's": newCredential("svc"),
  "a mistyped key": `${liveKey}x`,
  "the database's password": new URL(inner.databaseUrl).password,
};

/** Phones, in all spellings. */
const phones = ["5550001", "5550002", "5550003", "5550004", "5550005"].map((digits) => `010${digits}9`);
const [expected = "", sender = "", stranger = "", guesser = "", played = ""] = phones;
const dashed = (phone: string) => phone.replace(/^(...)(....)/, "$1-$2-");
for (const phone of phones) {
  secrets[`the phone ${phone}`] = phone;
  secrets[`the phone ${phone} with hyphens`] = dashed(phone);
  secrets[`the phone ${phone} without its zero`] = phone.slice(1);
}

/** The answers to refused calls. */
const refusals: string[] = [];

function noteRefusal(answer: Answer): Answer {
  if (answer.status >= 400) refusals.push(`${JSON.stringify([...answer.headers])} ${answer.text}`);
  return answer;
}

const refused = (error: unknown) => {
  refusals.push(String((error as { rawMessage?: string }).rawMessage), JSON.stringify(error));
};

const live = merchant(observed.httpUrl, liveKey);
const test_ = merchant(observed.httpUrl, testKey);

async function created(shop: typeof live, request: object) {
  const { body, status } = noteRefusal(await shop.create(request));
  expect(status).toBe(201);
  const code = codeIn(body.sms_text);
  const token = body.verification_url.split("/").at(-1) ?? "";
  Object.assign(secrets, { [`the code ${code}`]: code, [`the window's token ${token}`]: token });
  return { ...body, code, url: body.verification_url.replace("localhost", "127.0.0.1") };
}

async function callMerchants(): Promise<void> {
  for (const key of ["a key of nobody's", "a mistyped key", "the ingest token", "a token of nobody's"]) {
    noteRefusal(
      await merchant(observed.httpUrl, secrets[key] ?? "").create({ expected_phone: dashed(expected) }),
    );
  }
  const wrong: [object | string, string][] = [
    [{ mode: "match", expected_phone: `${dashed(expected)}0` }, "wrong-phone-key"],
    [{ mode: dashed(expected), state: 1, client_reference: [expected] }, "wrong-types-key"],
    [`{"expected_phone":"${dashed(expected)}"`, "broken-json-key"],
    [{ expected_phone: dashed(expected), return_url: `https://x.example/${expected}` }, "wrong-url-key"],
    [{}, `phone ${expected}`],
  ];
  for (const [body, idempotencyKey] of wrong) noteRefusal(await live.create(body, idempotencyKey));
  noteRefusal(await live.read(expected));
  noteRefusal(await live.cancel(`${dashed(expected)}?phone=${expected}`));
  noteRefusal(await live.call("GET", `/${expected}?key=${liveKey}`));
  refusals.push(
    ...(await exchange(observed.httpUrl, `${expected} ${liveKey}\r\n\r\n`)).map(({ body }) => body),
  );
}

async function sendSms(): Promise<void> {
  const source = smsSource(service, ingestToken);
  const match = await created(live, { mode: "match", expected_phone: dashed(expected) });
  const text = match.sms_text;
  const outcomes = [
    await source.send({ to: liveNumber, from: stranger, text }),
    await source.send({ to: liveNumber, from: `+82${sender.slice(1)}`, text: `[Web발신] ${text}` }),
    await source.send({ to: liveNumber, from: expected.slice(0, -1), text }),
    await source.send({ to: liveNumber, from: expected, text }),
  ];
  for (let guess = 0; guess < 6; guess++) {
    outcomes.push(await source.send({ to: liveNumber, from: guesser, text: `${guesser} ${guess}` }));
  }
  expect(new Set(outcomes.map(({ outcome }) => outcome))).toEqual(
    new Set(["SENDER_MISMATCH", "WEB_SENT", "INVALID", "VERIFIED", "NO_MATCH", "MUTED"]),
  );
  expect(noteRefusal(await live.read(match.id)).body.phone).toBe(expected);
}

async function openWindows(): Promise<void> {
  const { url, sms_text: text, id } = await created(test_, {});
  const asked = [
    fetch(url),
    fetch(`${url}/status`),
    fetch(`${url}x`),
    fetch(`${url}/messages`, { method: "POST", body: `from=${played}`, headers: { "content-type": "x/y" } }),
    fetch(`${url}/messages`, { method: "POST", body: new URLSearchParams({ from: played, text }) }),
  ];
  for (const page of await Promise.all(asked)) await page.text();
  expect((await test_.read(id)).body.phone).toBe(played);
  const closing = await created(test_, { client_reference: "cancelled" });
  noteRefusal(await test_.cancel(closing.id));
}

async function exerciseWebhooks(): Promise<void> {
  const receiver = await startReceiver(answerWith(500, {}, dashed(stranger)));
  const webhooks = service.client(WebhookService);
  const where = { projectId, environment: Environment.LIVE };
  const { secret } = await webhooks.setWebhook({ ...where, url: receiver.url });
  secrets["the webhook's secret"] = secret;
  secrets["the webhook's newer secret"] = (await webhooks.rotateWebhookSecret(where)).secret;
  const { id, sms_text: text } = await created(live, {});
  await smsSource(service).send({ to: liveNumber, from: sender, text });
  await untilReceived(receiver, 1);
  await webhooks.sendTestWebhook(where);
  await webhooks.listWebhookDeliveries({ ...where, verificationId: id });
}

/** Makes the database refuse rows with errors that name their values, and removes a table for a while. */
async function breakTheDatabase(): Promise<void> {
  const request = { mode: "match", expected_phone: dashed(expected) };
  await inner.db.query(`
    ALTER TABLE verification ADD CONSTRAINT none CHECK (expected_phone IS NULL) NOT VALID;
    ALTER TABLE inbound_message ADD CONSTRAINT none CHECK (sender IS NULL) NOT VALID`);
  expect(noteRefusal(await live.create(request)).status).toBe(503);
  await inner.db.query(`
    CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN RAISE EXCEPTION 'there is no room for % (%)', NEW.expected_phone, NEW.client_reference; END $$;
    CREATE TRIGGER telling BEFORE INSERT ON verification FOR EACH ROW EXECUTE FUNCTION tell()`);
  const quoted = { ...request, client_reference: `the key is ${liveKey}` };
  expect(noteRefusal(await live.create(quoted)).status).toBe(503);
  await inner.db.query("DROP TRIGGER telling ON verification");
  await smsSource(service).send({ to: liveNumber, from: sender, text: "hello" }).catch(refused);
  await inner.db.query(`
    ALTER TABLE verification DROP CONSTRAINT none;
    ALTER TABLE inbound_message DROP CONSTRAINT none;
    ALTER TABLE inbound_message RENAME TO elsewhere`);
  await smsSource(service).send({ to: testNumber, from: sender, text: "hello" }).catch(refused);
  await inner.db.query("ALTER TABLE elsewhere RENAME TO inbound_message");
}

/** Calls every RPC with allowed, insufficient and unknown credentials, with phones and keys in every text field. */
async function callEveryRpc(): Promise<void> {
  const credentials = [inner.adminToken, readToken, secrets["a token of nobody's"], `${liveKey} ${testKey}`];
  for (const credential of credentials) {
    const transport = transportTo(observed.grpcAddress, `Bearer ${credential}`);
    for (const text of [dashed(expected), liveKey]) {
      const calls = rpcs.map(({ method }) => {
        const texts = method.input.fields.filter(
          (field) => field.fieldKind === "scalar" && field.scalar === ScalarType.STRING,
        );
        const request = Object.fromEntries(texts.map(({ localName }) => [localName, text]));
        return callOnce(transport, method, request).catch(refused);
      });
      await Promise.all(calls);
    }
  }
  for await (const _ of service.client(ErasureService).erasePhone({ phone: dashed(expected) }));
}

test("no secret and no phone is in the log, a refusal, the metrics or the process's arguments", async () => {
  await callMerchants();
  await sendSms();
  await openWindows();
  await exerciseWebhooks();
  await breakTheDatabase();
  await callEveryRpc();
  const metrics = await (await fetch(`${observed.opsUrl}/metrics`)).text();
  const arguments_ = await readFile(`/proc/${observed.pid}/cmdline`, "utf8").catch(() => "");
  await observed.stop();

  const output = observed.output();
  // The output is there, and it contains what the calls above must cause.
  expect(output).toContain('"msg":"internal error"');
  expect(output).toContain('"msg":"rpc"');
  expect(output).toContain('"msg":"an inbound message could not be processed"');
  expect(output.split("\n").length).toBeGreaterThan(200);
  expect(refusals.length).toBeGreaterThan(100);
  // Nor is a credential anywhere in the database, which stores a digest and the last characters.
  for (const credential of [liveKey, testKey, ingestToken, readToken, inner.adminToken]) {
    expect(await tablesWith(inner.db, credential)).toEqual([]);
  }
  const searched = { output, metrics, arguments_, refusals: refusals.join("\n") };
  const found = Object.entries(searched).flatMap(([place, text]) =>
    Object.entries(secrets)
      .filter(([, secret]) => secret !== "" && holds(text, secret))
      .map(([name]) => `${place}: ${name}`),
  );
  expect(found).toEqual([]);
});

/** Digits could be found by chance in longer numbers, such as times. */
function holds(text: string, secret: string): boolean {
  if (!/^\d+$/.test(secret)) return text.includes(secret);
  return new RegExp(`(?<![\\d.])${secret}(?!\\d)`).test(text);
}
