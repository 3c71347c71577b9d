/** phoneproof sms: sends inbound messages, one from options or many from a file. */

import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createReadStream, fstatSync, openSync } from "node:fs";
import { Socket } from "node:net";
import type { Readable } from "node:stream";
import { isatty, ReadStream } from "node:tty";
import { create } from "@bufbuild/protobuf";
import { type InboundMessageFields, inboundViolations } from "../core/inbound-message.ts";
import {
  type InboundMessageReceipt,
  InboundMessageService,
  StreamInboundMessagesRequestSchema,
  type StreamInboundMessagesResponse,
} from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { CliError, unreachable, type Violation, violationsJson, wrongUsage } from "./cli-error.ts";
import { isServiceError, type ServiceClient, unaryDeadlineMs } from "./client.ts";
import { onClosedOutput } from "./closed-output.ts";
import type { CliCommand } from "./command.ts";
import { inboundLines } from "./inbound-lines.ts";
import { type LineReceipt, streamInboundMessages } from "./inbound-stream.ts";
import { interruptible } from "./interrupt.ts";
import { fields, grouped } from "./layout.ts";
import { ProgressDisplay, progressLine, summary, Tally } from "./progress.ts";
import { lossLine } from "./reconnect.ts";
import type { Session } from "./session.ts";
import { escapeControls, safeJson } from "./terminal.ts";
import { outcomeWord } from "./words.ts";

interface SendOptions {
  readonly to: string;
  readonly from: string;
  readonly text: string;
  readonly carrier?: string;
  readonly messageId?: string;
}

const outcomeMeanings = new Map([
  ["VERIFIED", "its sender is the verified phone"],
  [
    "NO_MATCH",
    "it contains no code known on its destination, or that is not a number of the service or the token",
  ],
  ["SENDER_MISMATCH", "its verification expects another sender, and stays pending"],
  ["LATE", "its verification had expired"],
  ["NOT_PENDING", "its verification was already verified or cancelled"],
  ["AMBIGUOUS", "it contains two live codes, or too many possible codes"],
  ["WEB_SENT", "it was sent from the web, where senders can be forged"],
  ["MUTED", "its sender sent too many wrong codes and is ignored for a while"],
  ["INVALID", "a field is missing, malformed or oversized"],
]);

/** What a line that cannot be parsed is counted as, in addition to the service's outcomes. */
const unparsable = "UNPARSABLE";

export function addSmsCommands(program: CliCommand): void {
  const group = program
    .group("sms", "Send inbound SMS to the service, as an SMS source does.")
    .examples(
      ["one message", "sms send --to 1666-0000 --from 010-0000-1234 --text '12345678'"],
      ["many messages", "sms stream messages.ndjson"],
    );

  group
    .command("send")
    .description(
      "Send one inbound SMS and print its receipt. If the outcome is INVALID, lists the invalid fields and exits with 1; any other outcome exits with 0.",
    )
    .usage("--to DEST --from PHONE --text TEXT [options]")
    .requiredOption("--to <dest>", "the destination number it was sent to")
    .requiredOption("--from <phone>", "the phone it was sent from: a 010 mobile number")
    .requiredOption("--text <text>", "the complete text")
    .option("--carrier <carrier>", "the sender's network: SKT, KT, LGU+, 450-05, …")
    .option(
      "--message-id <id>",
      "the source's own id for it; the same id again gets the same receipt (default: a new one)",
    )
    .examples(
      [
        "what a handset would send",
        "sms send --to 1666-0000 --from 010-0000-1234 --text '[Demo] 12345678' --carrier SKT",
      ],
      [
        "the same message twice: the second is a duplicate",
        "sms send --to 1666-0000 --from 010-0000-1234 --text 12345678 --message-id my-1",
      ],
    )
    .does<SendOptions>(async (session, options, _argument, optionOf) => {
      const { to, from, text, carrier = "", messageId = newMessageId() } = options;
      const message = { messageId, from, to, text, carrier };
      const receipt = await sendMessage(session.client, message);
      const outcome = outcomeWord(receipt.outcome);
      // A receipt does not say why a message is INVALID. These rules are those of the service version that this command belongs
      // to.
      const violations = outcome === "INVALID" ? inboundViolations(message) : [];
      session.answer(
        {
          ...receiptJson({
            messageId: receipt.messageId,
            outcome,
            verificationId: receipt.verificationId || null,
            duplicate: receipt.duplicate,
          }),
          ...(outcome === "INVALID" ? { fields: violationsJson(violations) } : {}),
        },
        () =>
          fields([
            ["message", receipt.messageId],
            [
              "outcome",
              outcome === "INVALID" && violations.length === 0
                ? meaningWithoutFault(receipt.duplicate)
                : meaningOf(outcome),
            ],
            ...violations.map(({ field, message }) => [optionOf(field) ?? field, message] as const),
            ["verification", receipt.verificationId || null],
            ["duplicate", receipt.duplicate ? "yes: this is the receipt of the first one" : "no"],
          ]),
      );
      if (outcome === "INVALID") process.exitCode = 1;
    });

  group
    .command("stream")
    .description(
      "Send inbound SMS from a file or standard input, one JSON object per line, and print one receipt per line, in the same order.",
    )
    .argument("[file]", "newline-delimited JSON; - or nothing: standard input")
    .addHelpText(
      "after",
      `
Each line is like this, without the line break:
  {"message_id":"m1","from":"01000001234","to":"16660000",
   "text":"12345678","carrier":"SKT"}
carrier and received_at (RFC 3339) are optional; without message_id, one is
derived from the line.

If the connection is lost, the command reconnects and resends what has no
receipt, for as long as necessary, with a notice every 60 s; if it has never had
a receipt, it gives up after 60 s. Running the same input again is safe:
messages that were already accepted are answered as duplicates. The end of a
session (SIGHUP) ends the command, under nohup as well; setsid keeps it running.

Receipts go to standard output: as JSON with --json, otherwise separated by
tabs: message id, outcome, verification, "duplicate". On a terminal without
--json, progress and a summary are shown instead, unless the messages are typed
there.
The exit code is 1 if a line could not be read or was INVALID. Standard error
says which and why; with --json, an INVALID receipt has the reasons as "fields".`,
    )
    .examples(
      ["send a file, showing the progress", "sms stream messages.ndjson"],
      ["keep the receipts", "sms stream messages.ndjson --json > receipts.ndjson"],
      ["from another program", "sms stream --json < /var/spool/sms.fifo"],
    )
    .does(streamMessages);
}

function meaningOf(outcome: string): string {
  const meaning = outcomeMeanings.get(outcome);
  return meaning === undefined ? outcome : `${outcome}: ${meaning}`;
}

/** Of an `INVALID` receipt for a message in which the command finds nothing wrong. */
function meaningWithoutFault(duplicate: boolean): string {
  return duplicate
    ? "INVALID: as the first message with this id was; correct it under another id"
    : "INVALID: a field is wrong, or its id is that of a message to another number";
}

export function newMessageId(): string {
  return `cli-${randomUUID()}`;
}

/** Opens a stream for one message and returns its receipt. */
export async function sendMessage(
  client: ServiceClient,
  message: InboundMessageFields,
): Promise<InboundMessageReceipt> {
  const call = client.stream(InboundMessageService.method.streamInboundMessages, {
    deadlineMs: unaryDeadlineMs,
  });
  const { messageId, from, to, text, carrier } = message;
  call.write(
    create(StreamInboundMessagesRequestSchema, { messages: [{ messageId, from, to, text, carrier }] }),
  );
  call.end();
  try {
    for await (const { receipts } of call as AsyncIterable<StreamInboundMessagesResponse>) {
      const [receipt] = receipts;
      if (receipt !== undefined) return receipt;
    }
  } catch (error) {
    throw isServiceError(error) ? client.cliErrorOf(error) : error;
  } finally {
    call.cancel();
  }
  throw unreachable(
    `the service at ${client.address.shown} ended the stream without a receipt; send it again`,
  );
}

async function streamMessages(session: Session, _options: object, file: string): Promise<void> {
  const input = openInput(file);
  const terminal = process.stdout.isTTY === true;
  const printsReceipts = session.json || !terminal || input.isTyped;
  // Progress and receipts on one terminal would overwrite each other, and progress would overwrite what a person types.
  // A dumb terminal, such as an editor's shell, would show the characters that erase the line.
  const redraws = process.stderr.isTTY === true && process.env.TERM !== "dumb";
  const showsProgress = redraws && !(printsReceipts && terminal) && !input.isTyped;
  const tally = new Tally();
  const display = new ProgressDisplay(showsProgress, (columns) => progressLine(tally, input.size, columns));
  const line = session.json ? lineJson : receiptFields;
  onClosedOutput(
    () =>
      `receipts so far: ${grouped(tally.messages)}; all other messages were not sent or have no receipt yet`,
  );

  try {
    await interruptible((signal) =>
      streamInboundMessages({
        client: session.client,
        lines: inboundLines(chunksOf(input.bytes), session.client.macOf),
        signal,
        async onReceipts(receipts) {
          for (const receipt of receipts) {
            tally.count(receipt.outcome);
            if (receipt.duplicate) tally.duplicates += 1;
            tally.bytes = receipt.line.endsAt;
            if (receipt.outcome === "INVALID" && !session.json) display.print(whyInvalid(receipt));
          }
          tally.messages += receipts.length;
          if (printsReceipts && receipts.length > 0)
            await print(`${receipts.map(line).join("\n")}\n`, signal);
        },
        onUnreadable({ number, problem }) {
          tally.count(unparsable);
          const message = `line ${number}: ${problem}`;
          display.print(
            session.json
              ? safeJson({
                  error: { code: "unparsable_line", message, request_id: null, fields: [], line: number },
                })
              : `phoneproof: ${message}`,
          );
        },
        onLost(loss, unacknowledged) {
          const again = unacknowledged === 0 ? "" : `, ${grouped(unacknowledged)} to send again`;
          const lossText = lossLine(loss, session.json && !showsProgress, again);
          if (lossText !== undefined) display.print(lossText);
        },
      }),
    );
  } finally {
    input.bytes.destroy();
    display.clear();
    if (!printsReceipts) process.stdout.write(`${summary(tally)}\n`);
    else if (showsProgress) process.stderr.write(`${summary(tally)}\n`);
  }

  const unread = tally.byOutcome.get(unparsable) ?? 0;
  const invalid = tally.byOutcome.get("INVALID") ?? 0;
  if (unread + invalid === 0) return;
  process.exitCode = 1;
  if (session.json) return;
  const faults = [
    unread === 0 ? "" : `${grouped(unread)} ${unread === 1 ? "line" : "lines"} could not be read`,
    invalid === 0 ? "" : `${grouped(invalid)} ${invalid === 1 ? "message was" : "messages were"} INVALID`,
  ];
  process.stderr.write(`phoneproof: ${faults.filter((part) => part !== "").join(", ")}\n`);
}

/** The input, whether a person types it and, for a regular file, its size in bytes. */
function openInput(file: string) {
  if (file === "" || file === "-") {
    // Node would take it for an empty input.
    if (fstatSync(0).isDirectory()) throw unreadable("standard input", isDirectory);
    const isTyped = process.stdin.isTTY === true;
    if (isTyped) {
      process.stderr.write(
        "phoneproof: reading messages from the terminal, one JSON object per line; Ctrl-D ends\n",
      );
    }
    return { bytes: process.stdin, isTyped, size: sizeOf(0) };
  }
  try {
    const descriptor = openSync(file, "r");
    if (fstatSync(descriptor).isDirectory()) throw new Error(isDirectory);
    return { bytes: bytesOf(descriptor), isTyped: isatty(descriptor), size: sizeOf(descriptor) };
  } catch (error) {
    throw unreadable(`'${file}'`, error instanceof Error ? error.message : String(error));
  }
}

const isDirectory = "it is a directory";

const unreadable = (input: string, reason: string) =>
  wrongUsage(`sms stream: cannot read ${input}: ${reason}; see phoneproof sms stream --help`);

/** The chunks of an input, which may fail in the middle, as a disk or a network share does. */
async function* chunksOf(bytes: Readable): AsyncGenerator<Buffer> {
  try {
    yield* bytes as AsyncIterable<Buffer>;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new CliError(
      1,
      "input_failed",
      `the input cannot be read to its end: ${reason}; what was read before may have been sent: run the same command again to continue, the service recognises what it has accepted`,
      { cause: error },
    );
  }
}

/**
 * Reads a pipe or terminal without Node's small thread pool: a read that blocks in one of its threads cannot be cancelled and
 * would keep the process from exiting.
 */
function bytesOf(descriptor: number): Readable {
  if (fstatSync(descriptor).isFIFO()) return new Socket({ fd: descriptor, readable: true, writable: false });
  if (isatty(descriptor)) return new ReadStream(descriptor);
  // Larger chunks than the default of 64 KiB: fewer event loop iterations for a large file.
  return createReadStream("", { fd: descriptor, highWaterMark: 256 * 1024 });
}

function sizeOf(descriptor: number): number | undefined {
  const status = fstatSync(descriptor);
  return status.isFile() ? status.size : undefined;
}

/** Waits for the reader of the output if it does not keep up (backpressure). */
async function print(text: string, signal: AbortSignal): Promise<void> {
  if (!process.stdout.write(text)) await once(process.stdout, "drain", { signal });
}

function receiptJson({ messageId, outcome, verificationId, duplicate }: Omit<LineReceipt, "line">) {
  return { message_id: messageId, outcome, verification_id: verificationId, duplicate };
}

function lineJson(receipt: LineReceipt): string {
  const { outcome } = receipt;
  const why = outcome === "INVALID" ? { fields: violationsJson(violationsOf(receipt)) } : {};
  return safeJson({ ...receiptJson(receipt), ...why });
}

function whyInvalid(receipt: LineReceipt): string {
  const why = violationsOf(receipt).map(({ field, message }) => `${field}: ${message}`);
  const explanation =
    why.length === 0 ? meaningWithoutFault(receipt.duplicate) : `INVALID: ${why.join("; ")}`;
  return escapeControls(`phoneproof: line ${receipt.line.number}: ${explanation}`);
}

function violationsOf({ line }: LineReceipt): readonly Violation[] {
  if (line.message === undefined) return [];
  const { receivedAt, ...fields } = line.message;
  const instant = receivedAt && { seconds: Number(receivedAt.seconds), nanos: receivedAt.nanos };
  return inboundViolations({ ...fields, receivedAt: instant });
}

function receiptFields({ messageId, outcome, verificationId, duplicate }: LineReceipt): string {
  return [messageId, outcome, verificationId ?? "", duplicate ? "duplicate" : ""]
    .map(escapeControls)
    .join("\t");
}
