import { Failure } from "../failures.ts";
import { requireScope } from "./access.ts";
import { type Act, type Actor, actorOf } from "./administration/audit.ts";
import type { Call } from "./call.ts";
import type { Carrier } from "./carrier.ts";
import type { CodeLengths, DestinationNumber, Directory } from "./directory.ts";
import {
  fingerprintOf,
  type InboundMessage,
  type JudgeInboundMessage,
  type Judgement,
} from "./inbound-judgement.ts";
import { type InboundMessageFields, validateInboundMessage } from "./inbound-message.ts";
import { codeCandidates, isWebSent } from "./message-text.ts";
import type { Environment, ServiceCaller } from "./project.ts";

export interface InboundReceipt extends Judgement {
  /** Of the message it answers, as sent. */
  readonly messageId: string;
}

/**
 * Takes messages in the order given. The answer comes once all of them are under way, with one promise a
 * message that settles when its effect is durable: so a caller keeps the order of its messages by waiting
 * for the answer, and its throughput by not waiting for the receipts.
 */
export type TakeInboundMessages = (
  messages: readonly InboundMessageFields[],
  call: Call,
  /** `played`: a window plays the phone, which is no guessing. */
  options?: { readonly played: boolean },
) => Promise<Promise<InboundReceipt>[]>;

const notPlayed = { played: false };
const invalid: Judgement = { outcome: "invalid", verificationId: null, duplicate: false };

export function takeInboundMessages(parts: {
  readonly directory: Directory;
  readonly judgeMessage: JudgeInboundMessage;
  /** Told of each receipt: its carrier is null where it is not known, its seconds are counted from the call. */
  readonly onReceipt: (receipt: InboundReceipt, carrier: Carrier | null, seconds: number) => void;
  /** Into the audit log. */
  readonly writeDown: (actor: Actor, act: Act) => Promise<void>;
}): TakeInboundMessages {
  const { directory, judgeMessage, onReceipt, writeDown } = parts;

  return async (messages, call, { played } = notPlayed) => {
    const startedAt = performance.now();
    const { caller } = call;
    requireScope(caller, "ingest");
    if (caller.kind !== "service" || caller.source === null) throw new Failure("insufficient_scope");
    const { source } = caller;
    if (caller.scope === "admin") await writeDown(actorOf(call), sending(messages));
    const codeLengths = await directory.codeLengths();
    const prepared: { readonly messageId: string; readonly message: InboundMessage | null }[] = [];
    for (const fields of messages) {
      const validation = validateInboundMessage(fields);
      const { messageId } = fields;
      if (validation.ok) {
        const found = directory.number(validation.message.to);
        const number = found instanceof Promise ? await found : found;
        const environment = environmentOf(number, caller);
        const read = readText(validation.message, environment, codeLengths);
        const content = { ...validation.message, ...read, environment, played };
        prepared.push({ messageId, message: { source, messageId, content } });
      } else {
        const kept = validation.messageId;
        prepared.push({
          messageId,
          message: kept === null ? null : { source, messageId: kept, content: null },
        });
      }
    }
    return prepared.map(async ({ messageId, message }) => {
      const judgement = message === null ? invalid : await judgeMessage(message);
      const receipt = { messageId, ...judgement };
      onReceipt(receipt, message?.content?.carrier ?? null, (performance.now() - startedAt) / 1_000);
      return receipt;
    });
  };
}

/** An administrator who plays the phone is written down: a verification must never look as if the network had vouched. */
function sending(messages: readonly InboundMessageFields[]): Act {
  return {
    action: "sms.sent",
    subject: "cli",
    projectId: null,
    details: { messages: String(messages.length) },
  };
}

function readText(
  { from, to, text }: { readonly from: string; readonly to: string; readonly text: string },
  environment: Environment | null,
  codeLengths: CodeLengths,
) {
  const { candidates, capped } = codeCandidates(text, codeLengths);
  return {
    webSent: isWebSent(text),
    candidates,
    tooManyCandidates: capped,
    fingerprint: fingerprintOf({ environment, from, to, text }),
  };
}

/** A number outside what the token may deliver to is, to that token, no number. */
function environmentOf(number: DestinationNumber | undefined, caller: ServiceCaller): Environment | null {
  if (number === undefined) return null;
  if (caller.environment !== null && caller.environment !== number.environment) return null;
  if (caller.numbers.length > 0 && !caller.numbers.includes(number.number)) return null;
  return number.environment;
}
