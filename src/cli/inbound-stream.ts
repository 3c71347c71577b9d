/**
 * Sends inbound messages and gets exactly one receipt for each, in order, reconnecting as often as necessary. After a broken
 * connection everything without a receipt is sent again; the service recognises by its message id what it had accepted.
 */

import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import type { ClientDuplexStream, ServiceError } from "@grpc/grpc-js";
import {
  InboundMessageService,
  type StreamInboundMessagesRequest,
  StreamInboundMessagesRequestSchema,
  type StreamInboundMessagesResponse,
} from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { type CliError, unreachable } from "./cli-error.ts";
import { errorDetail, isServiceError, type ServiceClient, unaryDeadlineMs } from "./client.ts";
import type { InboundLine } from "./inbound-lines.ts";
import { defaultTimeoutMs, isPermanent, type Loss, pauseMs } from "./reconnect.ts";
import { SendWindow } from "./send-window.ts";
import { outcomeWord } from "./words.ts";

/** A receipt and the line that it belongs to. */
export interface LineReceipt {
  readonly line: InboundLine;
  readonly messageId: string;
  readonly outcome: string;
  readonly verificationId: string | null;
  readonly duplicate: boolean;
}

export interface InboundStream {
  readonly client: ServiceClient;
  readonly lines: AsyncIterable<readonly InboundLine[]>;
  /** Called in the order of the input. The next receipts are read once the promise has settled. */
  readonly onReceipts: (receipts: readonly LineReceipt[]) => Promise<void>;
  /** Called for a line that is not a message. Lines before it may still be without a receipt. */
  readonly onUnreadable: (line: InboundLine) => void;
  /** Called when the connection is lost; `unacknowledged` messages will be sent again. */
  readonly onLost: (loss: Loss, unacknowledged: number) => void;
  readonly signal: AbortSignal;
  /**
   * How long to wait while messages are outstanding and no receipt arrives. Gives up then if there has never been a receipt;
   * otherwise reconnects and reports that it is still trying.
   */
  readonly timeoutMs?: number;
  /**
   * Timeout for establishing the HTTP/2 connection. A peer that accepts a TCP connection and sends nothing until then is not
   * the service, or hangs.
   */
  readonly answerWithinMs?: number;
}

type Call = ClientDuplexStream<StreamInboundMessagesRequest, StreamInboundMessagesResponse>;

/** Attempts at the first connection, few so that an unreachable service is reported soon. */
const firstAttempts = 3;
/** How long the service may take to end the stream once the input has ended and every message has its receipt. */
const streamCloseTimeoutMs = 2_000;

export async function streamInboundMessages(stream: InboundStream): Promise<void> {
  const { client, signal } = stream;
  const timeoutMs = stream.timeoutMs ?? defaultTimeoutMs;
  const window = new SendWindow();
  const ended = new AbortController();
  const stop = AbortSignal.any([signal, ended.signal]);

  const reading = fill(stream, window, stop);
  // The abort below makes the waiting code throw this error; the handler prevents an unhandled rejection.
  reading.catch((error: unknown) => ended.abort(error));

  let cut = new AbortController();
  let isOverdue = false;
  const receiptTimer = setInterval(() => {
    if (window.waitingMs() < timeoutMs) return;
    const seconds = Math.round(timeoutMs / 1_000);
    const silence = `no receipt from ${client.address.shown} for ${seconds} s`;
    if (window.acknowledged === 0) {
      ended.abort(
        unreachable(
          `${silence}; ${window.size} messages have none; run the same command again to continue: the service recognises what it has accepted`,
        ),
      );
    }
    isOverdue = true;
    window.restartWait();
    cut.abort(unreachable(silence));
  }, 250);

  try {
    let connectedOnce = false;
    let attempts = 0;
    while (true) {
      const receiptsBefore = window.acknowledged;
      cut = new AbortController();
      const { lost, isConnected, isUnanswered } = await exchange(stream, window, stop, cut.signal);
      stop.throwIfAborted();
      if (lost === undefined) return;
      connectedOnce ||= isConnected;
      attempts = window.acknowledged > receiptsBefore ? 1 : attempts + 1;
      if (!connectedOnce && (isUnanswered || attempts >= firstAttempts)) throw lost;
      if (connectedOnce && (attempts === 1 || isOverdue)) {
        stream.onLost({ reason: lost.message, isStill: attempts > 1 }, window.size);
        isOverdue = false;
      }
      await delay(pauseMs(attempts), undefined, { signal: stop });
      client.redial();
      window.startOver();
      // After an idle period, reconnect only when there is something to send.
      if (connectedOnce) await window.untilSendable(stop);
      if (connectedOnce && window.done) return;
    }
  } catch (error) {
    // After an abort, its reason is the error to report; the error caught here is only a consequence.
    stop.throwIfAborted();
    throw error;
  } finally {
    clearInterval(receiptTimer);
    ended.abort();
  }
}

async function fill(
  { lines, onUnreadable }: InboundStream,
  window: SendWindow,
  stop: AbortSignal,
): Promise<void> {
  for await (const group of lines) {
    for (const line of group) {
      if (line.message === undefined) {
        onUnreadable(line);
        continue;
      }
      if (window.full) await window.untilRoom(stop);
      window.add(line);
    }
    stop.throwIfAborted();
  }
  window.end();
}

interface Exchange {
  /** Why the connection was lost; undefined: every message has its receipt. */
  readonly lost: CliError | undefined;
  readonly isConnected: boolean;
  /** Whether the attempt was abandoned because the peer sent nothing. */
  readonly isUnanswered: boolean;
}

/** Uses one connection until every message has its receipt, the connection breaks or it is cut. */
async function exchange(
  stream: InboundStream,
  window: SendWindow,
  stop: AbortSignal,
  cut: AbortSignal,
): Promise<Exchange> {
  const { client, answerWithinMs = unaryDeadlineMs } = stream;
  const call: Call = client.stream(InboundMessageService.method.streamInboundMessages);
  const over = new AbortController();
  const either = AbortSignal.any([stop, over.signal]);
  const cancel = () => call.cancel();
  let isConnected = false;
  let isUnanswered = false;
  void client.untilConnected(answerWithinMs).then((connected) => {
    isConnected = connected;
    if (isConnected || either.aborted) return;
    isUnanswered = true;
    cancel();
  });
  window
    .untilAcknowledged(either)
    .then(() => delay(streamCloseTimeoutMs, undefined, { signal: either }))
    .then(cancel, () => {});
  for (const signal of [stop, cut]) signal.addEventListener("abort", cancel, { once: true });
  const sending = send(call, window, either).catch((error: unknown) => {
    // The receiving side reports a broken connection. Any other error is a bug in this client.
    if (!either.aborted) {
      over.abort();
      call.cancel();
      throw error;
    }
  });
  // Awaited in `finally`, after the receiving side has ended; this prevents an unhandled rejection until then.
  sending.catch(() => {});
  try {
    await receive(stream, call, window, stop);
    const ended = `the service at ${client.address.shown} ended the stream`;
    return { lost: window.done ? undefined : unreachable(ended), isConnected, isUnanswered };
  } catch (error) {
    stop.throwIfAborted();
    if (!isServiceError(error)) throw error;
    return { lost: loss(error), isConnected, isUnanswered };
  } finally {
    over.abort();
    for (const signal of [stop, cut]) signal.removeEventListener("abort", cancel);
    call.cancel();
    await sending;
  }

  function loss(error: ServiceError): CliError {
    if (cut.aborted) return cut.reason;
    if (isUnanswered) return client.unanswered(answerWithinMs);
    const cliError = client.cliErrorOf(error);
    // This is also the refusal of a group of which the network has not carried the rest in time.
    const isLate = errorDetail(error)?.code === "malformed_request";
    if (isPermanent(error) && !isLate) throw cliError;
    return cliError;
  }
}

async function send(call: Call, window: SendWindow, signal: AbortSignal): Promise<void> {
  while (true) {
    await window.untilSendable(signal);
    const messages = window.nextGroup();
    if (messages.length === 0) break;
    const request = create(StreamInboundMessagesRequestSchema, { messages });
    if (!call.write(request)) await drained(call, signal);
  }
  call.end();
}

async function drained(call: Call, signal: AbortSignal): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const settle = () => {
      call.off("drain", settle);
      signal.removeEventListener("abort", settle);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    call.on("drain", settle);
    signal.addEventListener("abort", settle);
    if (signal.aborted) settle();
  });
}

async function receive(
  stream: InboundStream,
  call: Call,
  window: SendWindow,
  stop: AbortSignal,
): Promise<void> {
  try {
    for await (const { receipts } of call as AsyncIterable<StreamInboundMessagesResponse>) {
      stop.throwIfAborted();
      const answered = receipts.map((receipt): LineReceipt => {
        const line = window.take(receipt.messageId);
        return {
          line,
          messageId: receipt.messageId,
          outcome: outcomeWord(receipt.outcome),
          verificationId: receipt.verificationId || null,
          duplicate: receipt.duplicate,
        };
      });
      await window.whileIdle(stream.onReceipts(answered));
    }
  } catch (error) {
    // Every receipt has arrived, so it no longer matters how the stream ended.
    if (!window.isAcknowledged || stop.aborted) throw error;
  }
}
