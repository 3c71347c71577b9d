/** npm run demo: runs one verification against the running service and explains each step. */

import { randomInt, randomUUID } from "node:crypto";
import { ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import { type Project, ProjectService } from "../gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { findAddress, findToken } from "./address.ts";
import { CliError, report, requirePart, unreachable, wrongUsage } from "./cli-error.ts";
import { ServiceClient } from "./client.ts";
import { exit } from "./exit.ts";
import { Interrupted, interruptible } from "./interrupt.ts";
import { fields } from "./layout.ts";
import { newMessageId, sendMessage } from "./sms.ts";
import { escapeControls, styled } from "./terminal.ts";
import { allApiKeys, allNumbers, allProjects } from "./whole-lists.ts";
import { outcomeWord } from "./words.ts";

/** The name of everything the demo creates, by which it recognises what an aborted run left behind. */
const madeByDemo = "npm run demo";

/** If a run is killed before it revokes its key, the key expires by itself. */
const keySeconds = 600n;

const environment = Environment.TEST;

const httpDeadlineMs = 10_000;

type Undo = () => Promise<unknown>;

async function runDemo(
  client: ServiceClient,
  baseUrl: string,
  signal: AbortSignal,
  undo: Undo[],
): Promise<void> {
  const project = await demoProject(client, undo);
  const key = await demoKey(client, project, undo);
  signal.throwIfAborted();

  say(
    1,
    `The merchant "${project.name}" asks for a verification, with an API key created for this demo (…${key.slice(-4)}).`,
  );
  const idempotencyKey = `demo-${randomUUID()}`;
  const order = JSON.stringify({ client_reference: `order-${randomInt(1_000, 10_000)}` });
  const creation = {
    method: "POST",
    path: "/v1/verifications",
    headers: { "Idempotency-Key": idempotencyKey, "Content-Type": "application/json" },
    body: order,
  };
  const created = await ask(baseUrl, key, creation, signal);
  const { id, destination, sms_text: smsText } = created.body;
  shown(created, ["id", "status", "destination", "sms_text", "verification_url", "expires_at"]);

  // A new sender for each run, so that repeated runs do not count as one handset guessing codes.
  const sender = `0100000${String(randomInt(10_000)).padStart(4, "0")}`;
  say(2, "The person sends that text to that number. The SMS gateway streams it in over gRPC.");
  request(`StreamInboundMessages {from: "${sender}", to: "${destination}", carrier: "SKT", text: …}`);
  const receipt = await sendMessage(client, {
    messageId: newMessageId(),
    from: sender,
    to: destination,
    text: smsText,
    carrier: "SKT",
  });
  const outcome = outcomeWord(receipt.outcome);
  answer("receipt", [
    ["outcome", outcome],
    ["verification_id", receipt.verificationId],
  ]);
  signal.throwIfAborted();

  say(3, "The merchant reads the result: the network confirmed the sender.");
  const read = await ask(baseUrl, key, { method: "GET", path: `/v1/verifications/${id}` }, signal);
  shown(read, ["status", "phone", "carrier", "verified_at"]);

  say(4, "A retry with the same Idempotency-Key gets the first response again, not a second verification.");
  const replayed = await ask(baseUrl, key, creation, signal);
  shown(replayed, ["id", "status"]);

  const { status, phone } = read.body;
  if (outcome !== "VERIFIED" || status !== "verified" || phone !== sender || replayed.body.id !== id) {
    throw new CliError(
      1,
      "demo_failed",
      `the demo expected ${sender} to be verified, but got ${outcome} and ${status}`,
    );
  }
  console.log(`\nNext: npx phoneproof verification list --project ${escapeControls(project.id)}`);
}

/** The project "Demo" that the first start creates, otherwise a project of the demo's own that is suspended afterwards. */
async function demoProject(client: ServiceClient, undo: Undo[]): Promise<Project> {
  const projects = await allProjects(client);
  const ready = projects.find(({ name, suspended }) => name === "Demo" && !suspended);
  if (ready !== undefined) {
    // Projects cannot be deleted: creating another one only because this one lacks a number would leave it behind for good.
    if (!(await hasNumber(client, ready.id))) {
      console.log('The project "Demo" has no test number: the demo adds one and removes it at the end.');
      await addTemporaryNumber(client, ready.id, undo);
    }
    return ready;
  }

  console.log(
    'There is no active project "Demo": the demo creates one with a number, and suspends it at the end.',
  );
  const before = projects.find(({ name }) => name === madeByDemo);
  const answered =
    before === undefined
      ? await client.call(ProjectService.method.createProject, { name: madeByDemo })
      : await client.call(ProjectService.method.resumeProject, { projectId: before.id });
  const project = requirePart(answered.project, "a project");
  const projectId = project.id;
  undo.push(() => client.call(ProjectService.method.suspendProject, { projectId }));
  const left = (await testNumbers(client)).filter((number) => number.projectId === projectId);
  for (const { number } of left) takeBackAtTheEnd(client, number, undo);
  if (left.length === 0) await addTemporaryNumber(client, projectId, undo);
  return project;
}

const testNumbers = (client: ServiceClient) => allNumbers(client, { environment });

/** A number of the project's own, or a shared one. */
async function hasNumber(client: ServiceClient, projectId: string): Promise<boolean> {
  return (await testNumbers(client)).some((number) => ["", projectId].includes(number.projectId));
}

async function addTemporaryNumber(client: ServiceClient, projectId: string, undo: Undo[]): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    // 02-0000 is an exchange without subscribers.
    const number = `020000${String(randomInt(10_000)).padStart(4, "0")}`;
    try {
      await client.call(DestinationNumberService.method.addDestinationNumber, {
        number,
        environment,
        projectId,
      });
      takeBackAtTheEnd(client, number, undo);
      return;
    } catch (error) {
      if (!isRefusal(error, "number_exists") || attempt === 5) throw error;
    }
  }
}

function takeBackAtTheEnd(client: ServiceClient, number: string, undo: Undo[]): void {
  undo.push(() => client.call(DestinationNumberService.method.removeDestinationNumber, { number }));
}

async function demoKey(client: ServiceClient, project: Project, undo: Undo[]): Promise<string> {
  const { id: projectId, name } = project;
  const make = () =>
    client.call(ApiKeyService.method.createApiKey, {
      projectId,
      environment,
      name: madeByDemo,
      expiresIn: { seconds: keySeconds },
    });
  const { apiKey, secret } = await make().catch(async (error: unknown) => {
    if (!isRefusal(error, "too_many_api_keys")) throw error;
    await revokeLeftovers(client, projectId);
    return make().catch((stillTooMany: unknown) => {
      if (!isRefusal(stillTooMany, "too_many_api_keys")) throw stillTooMany;
      const listing = `npx phoneproof key list --project ${projectId}`;
      const remedy = `revoke one with npx phoneproof key revoke; ${listing} lists them`;
      throw new CliError(
        1,
        "too_many_api_keys",
        `"${name}" has the maximum number of active test keys: ${remedy}`,
      );
    });
  });
  const apiKeyId = apiKey?.id ?? "";
  undo.push(() => client.call(ApiKeyService.method.revokeApiKey, { apiKeyId }));
  return secret;
}

async function revokeLeftovers(client: ServiceClient, projectId: string): Promise<void> {
  for (const key of await allApiKeys(client, projectId)) {
    if (key.name !== madeByDemo || key.environment !== environment || key.revokedAt !== undefined) continue;
    await client.call(ApiKeyService.method.revokeApiKey, { apiKeyId: key.id });
  }
}

function isRefusal(error: unknown, code: string): boolean {
  return error instanceof CliError && error.code === code;
}

interface HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

/** The fields of the contract's objects that the demo reads. */
interface VerificationBody {
  readonly id: string;
  readonly status: string;
  readonly phone: string | null;
  readonly carrier: string | null;
  readonly expires_at: string;
  readonly verified_at: string | null;
  readonly destination: string;
  readonly sms_text: string;
  readonly verification_url: string;
}

interface HttpAnswer {
  readonly status: string;
  readonly replayed: string | null;
  readonly body: VerificationBody;
}

async function ask(
  baseUrl: string,
  key: string,
  asked: HttpRequest,
  signal: AbortSignal,
): Promise<HttpAnswer> {
  const { method, path, headers = {}, body } = asked;
  request(`${method} ${path}`);
  for (const [name, value] of Object.entries(headers)) request(`${name}: ${value}`);
  if (body !== undefined) request(body);
  let response: Response;
  try {
    response = await fetch(`${baseUrl}${path}`, {
      method,
      headers: { ...headers, Authorization: `Bearer ${key}` },
      body: body ?? null,
      signal: AbortSignal.any([signal, AbortSignal.timeout(httpDeadlineMs)]),
    });
  } catch (error) {
    signal.throwIfAborted();
    throw unreachable(`no service answers at ${baseUrl}, the address set by PORT or PUBLIC_BASE_URL`, {
      cause: error,
    });
  }
  const text = await response.text();
  if (!response.ok)
    throw new CliError(1, "demo_failed", `${method} ${path} answered ${response.status}: ${text}`);
  return {
    status: `${response.status} ${response.statusText}`,
    replayed: response.headers.get("Idempotent-Replayed"),
    body: JSON.parse(text) as VerificationBody,
  };
}

function say(step: number, sentence: string): void {
  console.log(`\n${styled("bold", `${step}. ${escapeControls(sentence)}`)}`);
}

function request(line: string): void {
  console.log(`   ${styled("dim", ">")} ${escapeControls(line)}`);
}

function answer(heading: string, entries: readonly (readonly [string, string | null])[]): void {
  console.log(`   ${styled("dim", "<")} ${escapeControls(heading)}`);
  for (const line of fields(entries).split("\n")) console.log(`   ${styled("dim", "<")}   ${line}`);
}

function shown({ status, replayed, body }: HttpAnswer, names: readonly (keyof VerificationBody)[]): void {
  const heading = replayed === null ? status : `${status}, Idempotent-Replayed: ${replayed}`;
  answer(
    heading,
    names.map((name) => [name, body[name]] as const),
  );
}

/** Undoes what the demo created, newest first. A step that fails is reported and does not stop the others. */
async function cleanUp(undo: readonly Undo[]): Promise<void> {
  for (const step of undo.toReversed()) {
    await step().catch((error: unknown) => report(error, false));
  }
}

function httpBase(): string {
  const { PUBLIC_BASE_URL, PORT } = process.env;
  return (PUBLIC_BASE_URL || `http://127.0.0.1:${PORT || "8080"}`).replace(/\/+$/, "");
}

// If the reader of the output is gone, the demo continues silently: it still has to undo what it created.
process.stdout.on("error", () => {});

try {
  const given = process.argv.slice(2);
  if (given.length > 0) {
    throw wrongUsage(
      `the demo takes no arguments (${given.join(" ")}): it shows one verification on a running service`,
    );
  }
  const address = findAddress(undefined);
  const client = new ServiceClient(address, findToken(undefined, address));
  const undo: Undo[] = [];
  try {
    await interruptible(async (signal) => {
      try {
        await runDemo(client, httpBase(), signal, undo);
      } finally {
        await cleanUp(undo);
      }
    });
  } finally {
    client.close();
  }
} catch (error) {
  if (error instanceof Interrupted) process.exitCode = error.exitCode;
  else if (error instanceof CliError && error.exitCode === 3) {
    process.exitCode = report(unreachable(`${error.message}: run npm start first`), false);
  } else process.exitCode = report(error, false);
}
await exit();
