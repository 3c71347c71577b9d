/**
 * An SMS gateway that delivers messages over a long-lived stream. If the stream ends, it opens another one and sends every
 * message without a receipt again.
 */

import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import {
  InboundMessageOutcomeSchema,
  InboundMessageService,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import type { Balancer } from "./balancer.ts";
import type { Journal } from "./journal.ts";
import { wordsOf } from "./merchant-calls.ts";
import type { Random } from "./random.ts";
import type { ServiceLife } from "./service-process.ts";

export interface SmsMessage {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
}

export interface SmsReceipt {
  readonly outcome: string;
  readonly verificationId: string;
  readonly duplicate: boolean;
}

export interface SmsSource {
  readonly name: string;
  send(message: SmsMessage): Promise<SmsReceipt>;
  /** The number of messages without a receipt. */
  waiting(): number;
  close(): Promise<void>;
}

interface Waiting {
  readonly message: SmsMessage;
  readonly since: number;
  readonly onReceipt: (receipt: SmsReceipt) => void;
}

export interface SmsSourceParts {
  readonly name: string;
  readonly token: string;
  readonly journal: Journal;
  readonly balancer: Pick<Balancer, "choose">;
  readonly random: Random;
  /** The address to connect to instead of the process's own. */
  readonly addressOf?: (life: ServiceLife) => string;
  /** Whether a lost stream is expected, whichever process it went to. */
  readonly isCut?: () => boolean;
}

export function startSmsSource(parts: SmsSourceParts): SmsSource {
  const { name, token, journal, balancer, random } = parts;
  const waiting: Waiting[] = [];
  let sent = 0;
  let closed = false;
  let wake = () => {};
  let ending = new AbortController();

  async function* requests(signal: AbortSignal) {
    sent = 0;
    while (!closed && !signal.aborted) {
      const next = waiting.slice(sent, sent + 50);
      sent += next.length;
      if (next.length > 0) yield { messages: next.map(({ message }) => message) };
      else {
        await new Promise<void>((resolve) => {
          wake = resolve;
          signal.addEventListener("abort", () => resolve(), { once: true });
        });
      }
    }
  }

  async function exchange(life: ServiceLife): Promise<void> {
    const { signal } = ending;
    const client = createClient(
      InboundMessageService,
      transportTo(parts.addressOf?.(life) ?? life.grpcAddress, `Bearer ${token}`),
    );
    for await (const { receipts } of client.streamInboundMessages(requests(signal))) {
      for (const { messageId, outcome, verificationId, duplicate } of receipts) {
        const answered = waiting.shift();
        sent -= 1;
        if (answered?.message.messageId !== messageId) {
          journal.append({
            what: "violation",
            text: `${name}: the receipt of ${messageId} came out of order`,
          });
        }
        const receipt = {
          outcome: InboundMessageOutcomeSchema.value[outcome]?.localName ?? String(outcome),
          verificationId,
          duplicate,
        };
        const ms = Math.round(performance.now() - (answered?.since ?? 0));
        journal.append({ what: "receipt", source: name, messageId, ms, ...receipt });
        answered?.onReceipt(receipt);
      }
    }
  }

  async function run(): Promise<void> {
    while (!closed) {
      const life = await balancer.choose(random);
      ending = new AbortController();
      try {
        await exchange(life);
      } catch (thrown) {
        // A service that stops or has lost its database ends streams with UNAVAILABLE; any other end is excused only if the
        // process was killed or the stream was cut.
        const isUnavailable = thrown instanceof ConnectError && thrown.code === Code.Unavailable;
        const excused = isUnavailable || life.killed || parts.isCut?.() === true;
        journal.append({
          what: "stream lost",
          source: name,
          error: `${life.name}: ${wordsOf(thrown)}`,
          excused,
        });
        await delay(50);
      }
      ending.abort();
    }
  }

  const running = run();
  return {
    name,
    send: (message) =>
      new Promise((onReceipt) => {
        journal.append({ what: "message", source: name, ...message });
        waiting.push({ message, since: performance.now(), onReceipt });
        wake();
      }),
    waiting: () => waiting.length,
    async close() {
      closed = true;
      wake();
      ending.abort();
      await running;
    },
  };
}
