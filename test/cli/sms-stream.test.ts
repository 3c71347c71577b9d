import { execFile, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, rm, writeFile } from "node:fs/promises";
import http2 from "node:http2";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { Readable } from "node:stream";
import { promisify } from "node:util";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { ServiceClient } from "../../src/cli/client.ts";
import { inboundLines } from "../../src/cli/inbound-lines.ts";
import { type InboundStream, streamInboundMessages } from "../../src/cli/inbound-stream.ts";
import type { Loss } from "../../src/cli/reconnect.ts";
import { SendWindow } from "../../src/cli/send-window.ts";
import {
  InboundMessageOutcome,
  StreamInboundMessagesRequestSchema,
  StreamInboundMessagesResponseSchema,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { deadAddress, freePorts } from "../harness/ports.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { shortenTimers } from "../harness/timers.ts";
import { framed, messagesOf } from "../rpc/raw-grpc.ts";
import { type Finished, launcher, run, runProcess, startCommand, startProgram, towards } from "./command.ts";
import { type Cut, startCuttingProxy } from "./cutting-proxy.ts";
import { startGrpcPeer } from "./grpc-peer.ts";
import { startSilentServer } from "./silent-server.ts";

interface Message {
  message_id?: string;
  from?: string;
  to?: string;
  text?: string;
  carrier?: string;
  received_at?: string;
}

interface Receipt {
  message_id: string;
  outcome: string;
  verification_id: string | null;
  duplicate: boolean;
}

let service: TestService;
let environment: Record<string, string>;
let shop: TestProject;
let directory: string;

beforeAll(async () => {
  service = await startTestService();
  environment = towards(service);
  shop = await service.createProject({ rateLimitPerMinute: 1_000_000 });
  directory = await mkdtemp(path.join(tmpdir(), "phoneproof-stream-"));
});

afterAll(() => rm(directory, { recursive: true, force: true }));

const ndjson = (messages: readonly Message[]) =>
  messages.map((message) => `${JSON.stringify(message)}\n`).join("");

const receiptsOf = ({ stdout }: Pick<Finished, "stdout">): Receipt[] =>
  stdout
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));

let files = 0;

/** Runs the command with a file of this content, which is faster than a process with this standard input. */
async function streamFile(
  content: string | Buffer,
  args: readonly string[] = [],
  given = environment,
): Promise<Finished> {
  const file = path.join(directory, `input-${++files}.ndjson`);
  await writeFile(file, content);
  return run(["sms", "stream", file, ...args], given);
}

const stream = (input: string, ...args: string[]) => streamFile(input, ["--json", ...args]);

/** Senders in an unassigned number range, one per message, so that none is muted. */
const sender = (index: number) => `0100${String(index).padStart(7, "0")}`;

let prefixes = 0;

/** Messages with various outcomes, two of every twenty with the code of a pending verification, and those outcomes. */
async function mixedMessages(count: number): Promise<{ messages: Message[]; expected: string[] }> {
  const project = await service.createProject();
  const client = service.client(VerificationService);
  const prefix = `mix${++prefixes}`;
  const texts = await Promise.all(
    Array.from({ length: Math.ceil(count / 20) * 2 }, async (_, index) => {
      const { smsText } = await client.createVerification({
        projectId: project.projectId,
        environment: Environment.TEST,
        idempotencyKey: `${prefix}-${String(index).padStart(8, "0")}`,
      });
      return smsText;
    }),
  );
  const messages: Message[] = [];
  const expected: string[] = [];
  const add = (outcome: string, message: Message) => {
    const index = messages.length;
    messages.push({
      message_id: `${prefix}-${index}`,
      from: sender(index),
      to: project.testNumber,
      ...message,
    });
    expected.push(outcome);
  };
  while (messages.length < count) {
    const [first = "", second = ""] = texts.splice(0, 2);
    const index = messages.length;
    add("VERIFIED", { text: first, carrier: "SKT" });
    add("NOT_PENDING", { text: `${first} again` });
    add("INVALID", { text: `no sender ${index}`, from: "" });
    add("WEB_SENT", { text: `[Web발신] ${index}` });
    add("NO_MATCH", { text: `another's number ${prefix} ${index}`, to: "#0799" });
    add("VERIFIED", { text: second, received_at: "2026-11-21T06:41:00+09:00" });
    add("INVALID", { text: "x".repeat(2_001) });
    while (messages.length % 20 !== 0) add("NO_MATCH", { text: `no code at all ${messages.length}` });
  }
  return { messages, expected };
}

function countByOutcome(receipts: readonly Receipt[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { outcome } of receipts) counts[outcome] = (counts[outcome] ?? 0) + 1;
  return counts;
}

describe("receipts", () => {
  test("come one per message, in order, from a file and from standard input", async () => {
    const { messages, expected } = await mixedMessages(1_000);
    const input = ndjson(messages);
    const fromFile = await stream(input);
    expect(fromFile).toMatchObject({ code: 1, stderr: "" });
    const receipts = receiptsOf(fromFile);
    expect(receipts.map(({ message_id }) => message_id)).toEqual(
      messages.map(({ message_id }) => message_id),
    );
    expect(receipts.map(({ outcome }) => outcome)).toEqual(expected);
    for (const { outcome, verification_id, duplicate } of receipts) {
      expect(duplicate).toBe(false);
      if (outcome === "VERIFIED" || outcome === "NOT_PENDING") expect(verification_id).toMatch(/^vrf_/);
      else expect(verification_id).toBeNull();
    }
    const again = receiptsOf(await runProcess(["sms", "stream", "-", "--json"], environment, { input }));
    expect(again).toEqual(receipts.map((receipt) => ({ ...receipt, duplicate: true })));
  });

  test("are the same, one per message and in order, when the connection breaks ten times", async () => {
    const count = 1_500;
    const uncut = await mixedMessages(count);
    const straight = await startCuttingProxy(() => service.grpcAddress);
    const wanted = receiptsOf(await stream(ndjson(uncut.messages), "--address", straight.address));
    await straight.close();

    // At random, and early enough that all ten are made within the bytes of an uninterrupted run.
    const cuts = Array.from({ length: 10 }, (_, index): Cut => {
      const from = index % 2 === 0 ? "client" : "server";
      return { from, bytes: 1 + Math.floor((Math.random() * straight.passed[from]) / 8) };
    });
    const { messages, expected } = await mixedMessages(count);
    const proxy = await startCuttingProxy(() => service.grpcAddress, cuts);
    const cut = await stream(ndjson(messages), "--address", proxy.address);
    await proxy.close();
    expect(proxy.cuts()).toBe(10);

    const receipts = receiptsOf(cut);
    expect(receipts.map(({ message_id }) => message_id)).toEqual(
      messages.map(({ message_id }) => message_id),
    );
    expect(receipts.map(({ outcome }) => outcome)).toEqual(expected);
    expect(countByOutcome(receipts)).toEqual(countByOutcome(wanted));
    expect(cut).toMatchObject({ code: 1, stderr: "" });
  });

  test("continue after a restart of the service", async () => {
    const [port] = await freePorts(1);
    const other = await service.startAnother({ GRPC_PORT: String(port) });
    const address = other.grpcAddress;
    const streaming = startCommand(["sms", "stream", "--json", "--address", address], environment);
    const messages = Array.from({ length: 20 }, (_, index) => ({
      message_id: `restart-${index}`,
      from: sender(index),
      to: shop.testNumber,
      text: `restart ${index}`,
    }));
    streaming.child.stdin?.write(ndjson(messages.slice(0, 10)));
    await streaming.lines(10);
    await other.close();
    streaming.child.stdin?.end(ndjson(messages.slice(10)));
    await service.startAnother({ GRPC_PORT: String(port) });
    const finished = await streaming.finished;
    expect(receiptsOf(finished).map(({ message_id }) => message_id)).toEqual(
      messages.map(({ message_id }) => message_id),
    );
    expect(finished).toMatchObject({ code: 0, stderr: "" });
  });

  test("come while the input is still open", async () => {
    const streaming = startCommand(["sms", "stream", "--json"], environment);
    streaming.child.stdin?.write(
      ndjson([{ message_id: "early", from: sender(1), to: shop.testNumber, text: "early" }]),
    );
    const [first = ""] = await streaming.lines(1);
    expect(JSON.parse(first)).toMatchObject({ message_id: "early", outcome: "NO_MATCH" });
    streaming.child.stdin?.end();
    expect(await streaming.finished).toMatchObject({ code: 0, stderr: "" });
  });

  test("are tab-separated without --json, with control characters escaped", async () => {
    const input = ndjson([
      { message_id: "a\tb\u001b[2J", from: sender(2), to: shop.testNumber, text: "tabs" },
    ]);
    const first = await streamFile(input);
    expect(first).toEqual({ code: 0, stdout: "a\\tb\\x1b[2J\tNO_MATCH\t\t\n", stderr: "" });
    const second = await streamFile(input);
    expect(second.stdout).toBe("a\\tb\\x1b[2J\tNO_MATCH\t\tduplicate\n");
  });
});

describe("lines", () => {
  const good = { from: sender(3), to: "#0798", text: "good" };

  test("that are not messages are reported with their number, and the others are sent", async () => {
    const longest = "\u{1f600}".repeat(255);
    const lines = [
      JSON.stringify({ message_id: "l1", ...good, text: "good and first" }),
      "not JSON",
      "",
      '["a list"]',
      JSON.stringify({ message_id: "l5", ...good, text: 5 }),
      JSON.stringify({ message_id: "l6", ...good, received_at: "yesterday" }),
      "x".repeat(1_100_000),
      "   ",
      JSON.stringify({
        message_id: "l9",
        ...good,
        text: "good too",
        carrier: null,
        note: "unknown fields do no harm",
        messageId: "nor does another spelling beside the right one",
      }),
      JSON.stringify({ message_id: "l10", ...good, received_at: "2027-02-29T12:00:00+09:00" }),
      JSON.stringify({ message_id: "한".repeat(256), ...good }),
      JSON.stringify({ messageId: "l12", ...good }),
      JSON.stringify({ message_id: "l13", ...good, carrier: undefined, Carrier: "SKT" }),
      JSON.stringify({ message_id: longest, ...good, text: "good as well" }),
    ];
    const { code, stdout, stderr } = await streamFile(lines.join("\r\n"));
    expect(code).toBe(1);
    expect(stdout).toBe(["l1", "l9", longest].map((id) => `${id}\tNO_MATCH\t\t\n`).join(""));
    expect(stderr.trimEnd().split("\n")).toEqual([
      "phoneproof: line 2: not JSON",
      "phoneproof: line 4: not a JSON object",
      "phoneproof: line 5: text is not a string",
      "phoneproof: line 6: received_at is not an RFC 3339 time with a time zone",
      "phoneproof: line 7: longer than 1 MiB",
      "phoneproof: line 10: received_at is not an RFC 3339 time with a time zone",
      "phoneproof: line 11: message_id is longer than 255 characters",
      'phoneproof: line 12: "messageId" must be spelled message_id',
      'phoneproof: line 13: "Carrier" must be spelled carrier',
      "phoneproof: 9 lines could not be read",
    ]);
    const asJson = await stream("{");
    expect(asJson).toMatchObject({ code: 1, stdout: "" });
    expect(JSON.parse(asJson.stderr)).toEqual({
      error: { code: "unparsable_line", message: "line 1: not JSON", request_id: null, fields: [], line: 1 },
    });
  });

  test("that lack fields are sent, and reported as INVALID with each field at fault", async () => {
    const input = ndjson([
      {},
      { ...good, message_id: "valid", received_at: "2026-01-02T03:04:05.678+09:00" },
      { message_id: "no-text", from: sender(4), to: "#0798" },
    ]);
    const receipts = await stream(input);
    expect(receipts).toMatchObject({ code: 1, stderr: "" });
    const wrong = (field: string) => ({ field, message: expect.any(String) });
    expect(receiptsOf(receipts)).toMatchObject([
      { outcome: "INVALID", fields: ["from", "to", "text"].map(wrong) },
      { outcome: "NO_MATCH" },
      { outcome: "INVALID", fields: [wrong("text")] },
    ]);
    expect(receiptsOf(receipts)[1]).not.toHaveProperty("fields");
    const result = await streamFile(input);
    expect(result.stdout.split("\n").map((line) => line.split("\t")[1])).toEqual([
      "INVALID",
      "NO_MATCH",
      "INVALID",
      undefined,
    ]);
    const [first, second, summed, ...more] = result.stderr.split("\n");
    expect(first).toMatch(/^phoneproof: line 1: INVALID: from: .+; to: .+; text: .+$/);
    expect(second).toMatch(/^phoneproof: line 3: INVALID: text: .+$/);
    expect([summed, ...more]).toEqual(["phoneproof: 2 messages were INVALID", ""]);
  });

  test("without an id get one that is stable across runs, and different for each line and token", async () => {
    const input = ndjson([good, good, { ...good, text: "other" }]);
    const [first, second] = [receiptsOf(await stream(input)), receiptsOf(await stream(input))];
    const { secret } = await service
      .client(ServiceTokenService)
      .createServiceToken({ scope: ServiceTokenScope.INGEST, source: "another-token" });
    const other = receiptsOf(
      await streamFile(input, ["--json"], { ...environment, PHONEPROOF_TOKEN: secret }),
    );
    expect(new Set([...first, ...other].map(({ message_id }) => message_id)).size).toBe(6);
    expect(new Set(first.map(({ message_id }) => message_id)).size).toBe(3);
    expect(second.map(({ message_id }) => message_id)).toEqual(first.map(({ message_id }) => message_id));
    expect(second.every(({ duplicate }) => duplicate)).toBe(true);
    const later = ndjson([{ ...good, received_at: new Date().toISOString() }]);
    const [another] = receiptsOf(await stream(later));
    expect(another?.message_id).not.toBe(first[0]?.message_id);
  });

  test("may begin with byte order marks, as concatenated files do, and hold any Unicode", async () => {
    const ids = ["한글-\ud83d\udcf1", "another"];
    const lines = ids.map(
      (message_id) => `\ufeff${JSON.stringify({ message_id, ...good, text: "안녕 👋" })}\n`,
    );
    const receipts = receiptsOf(await stream(lines.join("")));
    expect(receipts.map(({ message_id, outcome }) => [message_id, outcome])).toEqual(
      ids.map((id) => [id, "NO_MATCH"]),
    );
  });

  test("with a lone surrogate, which protobuf cannot carry, are reported", async () => {
    expect(await stream('{"message_id":"lone \\ud800","from":"","to":"","text":""}')).toMatchObject({
      code: 1,
      stdout: "",
      stderr: expect.stringContaining("line 1: message_id contains a lone surrogate"),
    });
  });

  test("that are not UTF-8 are reported", async () => {
    const bytes = Buffer.from([0x7b, 0x22, 0xc7, 0xd1, 0xb1, 0xdb, 0x22, 0x7d, 0x0a]);
    expect(await streamFile(bytes)).toMatchObject({
      code: 1,
      stdout: "",
      stderr: "phoneproof: line 1: not UTF-8\nphoneproof: 1 line could not be read\n",
    });
  });

  test("of 1 MiB are read; of one that is longer, however much so, hardly more is kept", async () => {
    const joined = vi.spyOn(Buffer, "concat");
    onTestFinished(() => joined.mockRestore());
    const piece = Buffer.alloc(256 * 1024, " ");
    const read = async (...chunks: Buffer[]) => {
      const lines = await Array.fromAsync(inboundLines(Readable.from(chunks), () => ""));
      return lines.flat().map(({ number, endsAt, problem }) => ({ number, endsAt, problem }));
    };
    const end = Buffer.from("{\n");
    const pieces = (count: number) => new Array(count).fill(piece);
    expect(await read(...pieces(3), piece.subarray(1), end)).toEqual([
      { number: 1, endsAt: 2 ** 20 + 1, problem: "not JSON" },
    ]);
    expect(await read(...pieces(4), end, end)).toEqual([
      { number: 1, endsAt: 2 ** 20 + 2, problem: "longer than 1 MiB" },
      { number: 2, endsAt: 2 ** 20 + 4, problem: "not JSON" },
    ]);
    expect(await read(...pieces(100), end)).toMatchObject([{ number: 1, problem: "longer than 1 MiB" }]);
    const sizes = joined.mock.results.map(({ value }) => value.length);
    expect(Math.max(...sizes)).toBeLessThan(2 ** 21);
  });

  // `script` (util-linux) runs the command in a terminal.
  const hasTerminal = spawnSync("script", ["--version"]).status === 0;
  if (!hasTerminal) noteAbsence("script", "the command's input from a terminal");
  test.for(
    hasTerminal ? ["typed in a terminal"] : [],
  )("%s are answered one by one, and no progress line overwrites what is being typed", async () => {
    const typing = startProgram(["script", "-qec", 'exec "$NODE" "$LAUNCHER" sms stream', "/dev/null"], {
      ...environment,
      NODE: process.execPath,
      LAUNCHER: launcher,
      TERM: "xterm",
    });
    await vi.waitUntil(() => typing.stdout().includes("Ctrl-D ends"), { timeout: 45_000 });
    const type = (id: string) =>
      typing.child.stdin?.write(ndjson([{ message_id: id, from: sender(7), to: "#0797", text: id }]));
    for (const id of ["typed-1", "typed-2"]) {
      type(id);
      await vi.waitUntil(() => typing.stdout().includes(`${id}\tNO_MATCH`), { timeout: 45_000 });
    }
    typing.child.stdin?.write("\x04");
    const { code, stdout } = await typing.finished;
    expect(code).toBe(0);
    expect(stdout).not.toContain("\x1b[2K");
  });

  test.for(
    hasTerminal
      ? [
          { terminal: "xterm", drawn: true },
          { terminal: "dumb", drawn: false },
        ]
      : [],
  )("from a file have a progress line in a terminal: $terminal, $drawn", async ({ terminal, drawn }) => {
    const file = path.join(directory, `progress-${terminal}.ndjson`);
    await writeFile(file, ndjson([{ message_id: terminal, from: sender(8), to: "#0797", text: terminal }]));
    const command = ["script", "-qec", 'exec "$NODE" "$LAUNCHER" sms stream "$FILE"', "/dev/null"];
    const { finished } = startProgram(command, {
      ...environment,
      NODE: process.execPath,
      LAUNCHER: launcher,
      FILE: file,
      TERM: terminal,
    });
    const { code, stdout } = await finished;
    expect(code).toBe(0);
    expect(stdout).toContain("1 receipts in");
    expect(stdout.includes("\x1b[2K")).toBe(drawn);
  });

  test("may be none: empty input is no failure", async () => {
    const input = "";
    expect(await runProcess(["sms", "stream", "--json"], environment, { input })).toEqual({
      code: 0,
      stdout: "",
      stderr: "",
    });
  });
});

describe("ending early", () => {
  const endless = () =>
    ndjson(
      Array.from({ length: 2_000 }, (_, index) => ({
        from: sender(index),
        to: "#0797",
        text: `endless ${index}`,
      })),
    );

  test("if the reader of the output goes away, the command fails and says how many messages have a receipt", async () => {
    const streaming = startCommand(["sms", "stream"], environment);
    streaming.child.stdin?.on("error", () => {});
    streaming.child.stdin?.write(endless());
    await streaming.lines(1);
    streaming.child.stdout?.destroy();
    streaming.child.stdin?.write(endless());
    const { code, stderr } = await streaming.finished;
    expect(code).toBe(1);
    expect(stderr).toMatch(
      /^phoneproof: output_failed: the output was closed early: receipts so far: [\d,]+; all other messages were not sent or have no receipt yet\n$/,
    );
  });

  // Nothing is mapped at the beginning of a process's memory, so reading this file fails like a broken disk.
  if (process.platform === "linux")
    test("an input that fails while it is read is reported as that", async () => {
      const { code, stdout, stderr } = await run(["sms", "stream", "/proc/self/mem", "--json"], environment);
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(JSON.parse(stderr)).toMatchObject({
        error: {
          code: "input_failed",
          message: expect.stringMatching(/^the input cannot be read to its end: EIO: i\/o error, read; /),
        },
      });
    });

  test("an interrupt leaves only whole lines", async () => {
    const streaming = startCommand(["sms", "stream", "--json"], environment);
    streaming.child.stdin?.on("error", () => {});
    streaming.child.stdin?.write(endless());
    await streaming.lines(1);
    streaming.child.kill("SIGINT");
    const finished = await streaming.finished;
    expect(finished).toMatchObject({ code: 130, stderr: "" });
    expect(finished.stdout).toMatch(/\n$/);
    expect(receiptsOf(finished).length).toBeGreaterThan(0);
  });

  test("an interrupt does not wait for the writer of a named pipe", async () => {
    const pipe = path.join(directory, "messages.fifo");
    await promisify(execFile)("mkfifo", [pipe]);
    // Opened for reading and writing, so that it does not wait for a reader, and the pipe keeps a writer throughout.
    const writer = await open(pipe, "r+");
    try {
      const streaming = startCommand(["sms", "stream", pipe, "--json"], environment);
      await writer.write(ndjson([{ message_id: "piped", from: sender(6), to: "#0797", text: "piped" }]));
      await streaming.lines(1);
      streaming.child.kill("SIGINT");
      const finished = await streaming.finished;
      expect(finished).toMatchObject({ code: 130, stderr: "" });
      expect(receiptsOf(finished)).toMatchObject([{ message_id: "piped", outcome: "NO_MATCH" }]);
    } finally {
      await writer.close();
    }
  });

  const timeoutMs = 200;

  test.for([
    { name: "accepts a connection and sends nothing", start: startSilentServer, reason: "no receipt from" },
    {
      name: "accepts the call and sends no receipt",
      start: async () => ({ address: (await startGrpcPeer(() => {})).address, close: () => {} }),
      reason: "messages have none; run the same command again to continue",
    },
  ])("a service that $name is given up", async ({ start, reason }) => {
    const silent = await start();
    onTestFinished(() => silent.close());
    const client = clientTowards(silent.address);
    const bytes = async function* () {
      yield Buffer.from(ndjson([{ message_id: "unheard", from: sender(5), to: "#0797", text: "unheard" }]));
    };
    await expect(
      streamInboundMessages({
        client,
        lines: inboundLines(bytes(), client.macOf),
        onReceipts: async () => {},
        onUnreadable: () => {},
        onLost: () => {},
        signal: new AbortController().signal,
        timeoutMs,
      }),
    ).rejects.toMatchObject({ exitCode: 3, message: expect.stringContaining(reason) });
  });

  test("a service that accepts the first connection and never answers is given up without a second attempt", async () => {
    const silent = await startSilentServer();
    onTestFinished(() => silent.close());
    const proxy = await startCuttingProxy(() => silent.address);
    onTestFinished(() => proxy.close());
    const streaming = streamTwo(proxy.address, { answerWithinMs: 500 }, async () => {});
    await expect(streaming).rejects.toMatchObject({
      exitCode: 3,
      message: expect.stringContaining("did not answer within 0.5 s"),
    });
    expect(proxy.connections()).toBe(1);
  });

  test.for([
    { name: "accepts connections but never answers", away: () => startSilentServer(), timeoutMs: 2_000 },
    {
      name: "refuses connections",
      away: async () => ({ address: await deadAddress(), close: () => {} }),
      // Several attempts fail within it, since the pause between two is at most a second.
      timeoutMs: 3_500,
      leastMs: 1_500,
    },
  ])("a service that has answered before and now $name is retried until it is back, and the wait is reported", async ({
    away,
    timeoutMs,
    leastMs = 0,
  }) => {
    const gone = await away();
    onTestFinished(() => gone.close());
    // The wait is far longer than this timeout, which applies only to the first receipt: if that took longer, try with more.
    const over = (times: number) => streamOver(gone.address, { losses: 3, timeoutMs: times * timeoutMs });
    const { received, losses, lostAt } = await over(1).catch(() => over(5));
    expect(received).toEqual(["before", "after"]);
    expect(losses.slice(0, 3).map(({ isStill }) => isStill)).toEqual([false, true, true]);
    const [, second = 0, third = 0] = lostAt;
    expect(third - second).toBeGreaterThanOrEqual(leastMs);
  });

  test("each loss of a connection that had a receipt is reported as a new one", async () => {
    const proxy = await startCuttingProxy(() => service.grpcAddress);
    onTestFinished(() => proxy.close());
    const breakAfter = async (count: number, { received, losses }: Observed) => {
      await vi.waitUntil(() => received.length === count, { timeout: 45_000 });
      proxy.breakAll();
      await vi.waitUntil(() => losses.length === count, { timeout: 45_000 });
    };
    const { received, losses } = await streamTwo(
      proxy.address,
      {},
      (observed) => breakAfter(1, observed),
      (observed) => breakAfter(2, observed),
    );
    expect(received).toEqual(["before", "after"]);
    expect(losses.map(({ isStill }) => isStill)).toEqual([false, false]);
  });

  const answerWithinMs = 3_000;

  test("an accepted connection without an answer is given up and replaced long before the service is given up", async () => {
    const gone = await startSilentServer();
    onTestFinished(() => gone.close());
    const { received, losses } = await streamOver(gone.address, { losses: 1, answerWithinMs });
    expect(received).toEqual(["before", "after"]);
    expect(losses).toEqual([{ isStill: false, reason: expect.any(String) }]);
  });

  test("after a GOAWAY the stream on the connection continues to its end", async () => {
    const leaving = await startLeavingPeer();
    const startedAt = performance.now();
    const isLater = () => performance.now() - startedAt > answerWithinMs + 500;
    const { received, losses } = await streamTwo(
      leaving.address,
      { answerWithinMs },
      async ({ received }) => {
        await vi.waitUntil(() => received.length === 1 && isLater(), { timeout: 45_000 });
      },
    );
    expect([received, losses]).toEqual([["before", "after"], []]);
    expect(leaving.connections()).toBe(1);
  });

  test("a service that has sent every receipt and does not end the stream is waited for two seconds, also if the input ends later", async () => {
    const peer = await startGrpcPeer(async (call) => {
      for await (const bytes of messagesOf(call)) call.write(receiptsFor(bytes));
    });
    let endedAt = Number.NaN;
    const { received, losses } = await streamTwo(
      peer.address,
      {},
      async () => {},
      async ({ received }) => {
        await vi.waitUntil(() => received.length === 2, { timeout: 45_000 });
        endedAt = performance.now();
      },
    );
    expect(performance.now() - endedAt).toBeGreaterThan(1_900);
    expect([received, losses]).toEqual([["before", "after"], []]);
  });

  test("a slow reader of the output is no silence of the service, whose time begins again when the reader has caught up", async () => {
    const { now } = performance;
    let ahead = 0;
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now.call(performance) + ahead);
    const checks = vi.spyOn(SendWindow.prototype, "waitingMs");
    onTestFinished(() => [clock, checks].forEach((spy) => void spy.mockRestore()));
    const untilCheckedTwice = async () => {
      const before = checks.mock.calls.length;
      await vi.waitUntil(() => checks.mock.calls.length >= before + 2, { timeout: 45_000 });
    };

    const reading = Promise.withResolvers<void>();
    const outstanding = Promise.withResolvers<void>();
    const read = Promise.withResolvers<void>();
    const answering = Promise.withResolvers<void>();
    let requests = 0;
    const peer = await startReceivingPeer(
      () => {},
      async () => {
        if (requests++ === 0) return;
        outstanding.resolve();
        await answering.promise;
      },
    );
    const bytes = async function* () {
      yield Buffer.from(ndjson([{ message_id: "first" }]));
      await reading.promise;
      yield Buffer.from(ndjson([{ message_id: "second" }]));
    };
    const client = clientTowards(peer.address);
    const received: string[] = [];
    const losses: Loss[] = [];
    const streaming = streamInboundMessages({
      client,
      lines: inboundLines(bytes(), client.macOf),
      async onReceipts(receipts) {
        received.push(...receipts.map(({ messageId }) => messageId));
        if (received.length > 1) return;
        reading.resolve();
        await outstanding.promise;
        // Longer than the service may be silent.
        ahead += 61_000;
        await untilCheckedTwice();
        read.resolve();
      },
      onUnreadable: () => {},
      onLost: (loss) => losses.push(loss),
      signal: new AbortController().signal,
    });
    await read.promise;
    await untilCheckedTwice();
    answering.resolve();
    await streaming;
    expect([received, losses]).toEqual([["first", "second"], []]);
  });

  test("a receipt for another message than the oldest without one ends the command", async () => {
    const peer = await startGrpcPeer(async (call) => {
      for await (const _bytes of messagesOf(call)) {
        const request = create(StreamInboundMessagesRequestSchema, { messages: [{ messageId: "another" }] });
        call.write(receiptsFor(toBinary(StreamInboundMessagesRequestSchema, request)));
      }
    });
    await expect(streamTwo(peer.address, {}, async () => {})).rejects.toMatchObject({
      exitCode: 1,
      message: expect.stringContaining("out of order, for 'another'"),
    });
  });

  test("16,000 messages go over one call", async () => {
    const peer = await startReceivingPeer();
    const ids = Array.from({ length: 16_000 }, (_, index) => `many-${index}`);
    const received: string[] = [];
    const losses: Loss[] = [];
    const client = clientTowards(peer.address);
    await streamInboundMessages({
      client,
      lines: inboundLines(
        Readable.from([Buffer.from(ndjson(ids.map((id) => ({ message_id: id }))))]),
        client.macOf,
      ),
      onReceipts: async (receipts) => void received.push(...receipts.map(({ messageId }) => messageId)),
      onUnreadable: () => {},
      onLost: (loss) => losses.push(loss),
      signal: new AbortController().signal,
    });
    expect(received).toEqual(ids);
    expect([losses, peer.calls()]).toEqual([[], 1]);
  });

  test.for([
    { name: "5,000 messages", text: "short", total: 6_000, most: 5_300 },
    { name: "8 MiB", text: "가".repeat(2_000), total: 2_000, most: 1_700 },
  ])("the input is read no further than $name ahead of the receipts", async ({ text, total, most }) => {
    const answering = Promise.withResolvers<void>();
    const peer = await startReceivingPeer(
      () => {},
      () => answering.promise,
    );
    const client = clientTowards(peer.address);
    let read = 0;
    const bytes = async function* () {
      for (; read < total; read += 100) {
        yield Buffer.from(
          ndjson(Array.from({ length: 100 }, (_, index) => ({ message_id: `${read + index}`, text }))),
        );
        await new Promise(setImmediate);
      }
    };
    let received = 0;
    const streaming = streamInboundMessages({
      client,
      lines: inboundLines(bytes(), client.macOf),
      async onReceipts(receipts) {
        received += receipts.length;
      },
      onUnreadable: () => {},
      onLost: () => {},
      signal: new AbortController().signal,
    });
    await vi.waitUntil(() => read >= 0.75 * most, { timeout: 45_000 });
    // Far more than a reader without a limit would need for the rest.
    for (let turn = 0; turn < 1_000; turn++) await new Promise(setImmediate);
    expect(read).toBeLessThanOrEqual(most);
    answering.resolve();
    await streaming;
    expect(received).toBe(total);
  });

  test.for([
    { name: "at first", short: 0 },
    { name: "after short messages one by one, which say nothing of the network", short: 12 },
  ])("little is sent without a receipt $name, so that on a slow network pings need not wait behind it", async ({
    short,
  }) => {
    let requests = 0;
    const sentBefore = Promise.withResolvers<number>();
    const peer = await startReceivingPeer(
      () => {},
      async ({ session }, bytes) => {
        requests += 1;
        if (requests <= short) return;
        const receivedBefore = (session?.socket.bytesRead ?? 0) - bytes.length;
        // Whatever the client sends without a receipt has arrived by then.
        for (let trip = 0; trip < 20; trip++) await new Promise((answered) => session?.ping(answered));
        sentBefore.resolve((session?.socket.bytesRead ?? 0) - (short > 0 ? receivedBefore : 0));
      },
    );
    const client = clientTowards(peer.address);
    const messages = longMessages(100);
    const received: string[] = [];
    const bytes = async function* () {
      for (let sent = 0; sent < short; sent++) {
        yield Buffer.from(ndjson([{ message_id: `short-${sent}` }]));
        await vi.waitUntil(() => received.length > sent, { timeout: 45_000 });
      }
      yield Buffer.from(ndjson(messages));
    };
    await streamInboundMessages({
      client,
      lines: inboundLines(bytes(), client.macOf),
      onReceipts: async (receipts) => void received.push(...receipts.map(({ messageId }) => messageId)),
      onUnreadable: () => {},
      onLost: () => {},
      signal: new AbortController().signal,
    });
    // One message may exceed it.
    expect(await sentBefore.promise).toBeLessThan(40 * 1024);
    expect(received.slice(short)).toEqual(messages.map(({ message_id }) => message_id));
  });

  test("requests are small enough for a slow network to carry each in the ten seconds that the service gives it", async () => {
    const requestBytes: number[] = [];
    const peer = await startReceivingPeer(
      () => {},
      async (_call, bytes) => void requestBytes.push(bytes.length),
    );
    const client = clientTowards(peer.address);
    await streamInboundMessages({
      client,
      lines: inboundLines(Readable.from([Buffer.from(ndjson(longMessages(1_000)))]), client.macOf),
      onReceipts: async () => {},
      onUnreadable: () => {},
      onLost: () => {},
      signal: new AbortController().signal,
    });
    expect(requestBytes[0]).toBeLessThan(9 * 1024);
    expect(Math.max(...requestBytes)).toBeLessThanOrEqual(256 * 1024);
  });

  test("a request that the network does not carry in the ten seconds that the service gives it is sent again", async () => {
    shortenTimers(10_000, 1_000);
    let left = 20_000;
    const proxy = net.createServer((near) => {
      const { hostname, port } = new URL(`http://${service.grpcAddress}`);
      const far = net.connect(Number(port), hostname);
      for (const end of [near, far])
        end.on("error", () => {}).on("close", () => [near, far].map((one) => one.destroy()));
      far.pipe(near);
      const isStalling = left > 0;
      near.on("data", (bytes) => {
        far.write(isStalling ? bytes.subarray(0, left) : bytes);
        left = Math.max(0, left - bytes.length);
      });
    });
    proxy.listen(0, "127.0.0.1");
    await once(proxy, "listening");
    onTestFinished(() => void proxy.close());
    const client = clientTowards(`127.0.0.1:${(proxy.address() as net.AddressInfo).port}`);
    const messages = longMessages(20);
    const received: string[] = [];
    const losses: Loss[] = [];
    await streamInboundMessages({
      client,
      lines: inboundLines(Readable.from([Buffer.from(ndjson(messages))]), client.macOf),
      onReceipts: async (receipts) => void received.push(...receipts.map(({ messageId }) => messageId)),
      onUnreadable: () => {},
      onLost: (loss) => losses.push(loss),
      signal: new AbortController().signal,
      // Not shortened, unlike the service's ten seconds.
      answerWithinMs: 60_000,
    });
    expect(received).toEqual(messages.map(({ message_id }) => message_id));
    expect(losses[0]?.reason).toContain("not complete within 10 seconds");
  });

  /** Streams two messages; after the first one the proxy leads to `away` until `losses` losses have been reported. */
  async function streamOver(away: string, { losses: least, ...times }: { losses: number } & Times) {
    let target = service.grpcAddress;
    const proxy = await startCuttingProxy(() => target);
    onTestFinished(() => proxy.close());
    const leave = async ({ received }: Observed) => {
      await vi.waitUntil(() => received.length === 1, { timeout: 45_000 });
      target = away;
      proxy.breakAll();
    };
    return streamTwo(proxy.address, times, leave, async ({ losses }) => {
      await vi.waitUntil(() => losses.length >= least && proxy.connections() > 1, { timeout: 45_000 });
      // Pending connections stay open: the stream gets no hint that a new connection would succeed.
      target = service.grpcAddress;
    });
  }
});

const longMessages = (count: number) =>
  Array.from({ length: count }, (_, index) => ({ message_id: `long-${index}`, text: "가".repeat(2_000) }));

type Times = Pick<InboundStream, "timeoutMs" | "answerWithinMs">;

interface Observed {
  readonly received: string[];
  readonly losses: Loss[];
  /** `performance.now()` at each loss. */
  readonly lostAt: number[];
}

/** Streams two messages and runs `between` between them and `behind` after the second; returns what was reported. */
async function streamTwo(
  address: string,
  times: Times,
  between: (observed: Observed) => Promise<void>,
  behind: (observed: Observed) => Promise<void> = async () => {},
): Promise<Observed> {
  const observed: Observed = { received: [], losses: [], lostAt: [] };
  const message = (id: string) =>
    Buffer.from(ndjson([{ message_id: id, from: sender(8), to: "#0797", text: `${id} ${address}` }]));
  const bytes = async function* () {
    yield message("before");
    await between(observed);
    yield message("after");
    await behind(observed);
  };
  const client = clientTowards(address);
  await streamInboundMessages({
    client,
    lines: inboundLines(bytes(), client.macOf),
    onReceipts: async (receipts) =>
      void observed.received.push(...receipts.map(({ messageId }) => messageId)),
    onUnreadable: () => {},
    onLost(loss) {
      observed.losses.push(loss);
      observed.lostAt.push(performance.now());
    },
    signal: new AbortController().signal,
    ...times,
  });
  return observed;
}

/** Sends receipts, and a GOAWAY for each request. */
const startLeavingPeer = () =>
  startReceivingPeer((call) => call.session?.goaway(http2.constants.NGHTTP2_NO_ERROR, call.id ?? 0));

const startReceivingPeer = (
  onReceipts: (call: http2.ServerHttp2Stream) => void = () => {},
  onRequest: (call: http2.ServerHttp2Stream, bytes: Uint8Array) => Promise<void> = async () => {},
) =>
  startGrpcPeer(async (call) => {
    for await (const bytes of messagesOf(call)) {
      await onRequest(call, bytes);
      call.write(receiptsFor(bytes));
      onReceipts(call);
    }
    call.end();
  });

/** The framed response to a request. */
function receiptsFor(request: Uint8Array): Uint8Array {
  const { messages } = fromBinary(StreamInboundMessagesRequestSchema, request);
  const receipts = messages.map(({ messageId }) => ({ messageId, outcome: InboundMessageOutcome.NO_MATCH }));
  const response = create(StreamInboundMessagesResponseSchema, { receipts });
  return framed(toBinary(StreamInboundMessagesResponseSchema, response));
}

function clientTowards(address: string): ServiceClient {
  const [host = "", port = ""] = address.split(":");
  const client = new ServiceClient(
    { shown: address, host, port: Number(port), tls: false },
    { secret: service.adminToken, source: "the test" },
  );
  onTestFinished(() => client.close());
  return client;
}
