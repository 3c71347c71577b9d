import { Failure } from "../failures.ts";
import { requireScope } from "./access.ts";
import { type Act, type Actor, actorOf } from "./administration/audit.ts";
import type { Call } from "./call.ts";
import type { Carrier } from "./carrier.ts";
import type { CodeLengths } from "./code.ts";
import type { DestinationNumber, Directory } from "./directory.ts";
import {
  fingerprintOf,
  type InboundMessage,
  type JudgeInboundMessage,
  type Judgement,
} from "./inbound-judgement.ts";
import {
  adminSource,
  type InboundMessageFields,
  type InboundMessageValidation,
  validateInboundMessage,
} from "./inbound-message.ts";
import { codeCandidates, isWebSent, normaliseText } from "./message-text.ts";
import type { Environment, ServiceCaller } from "./project.ts";
import type { Settle } from "./settle.ts";
import { turnOfOthers } from "./time-slices.ts";

export interface InboundReceipt extends Judgement {
  /** The id of the answered message, as sent. */
  readonly messageId: string;
}

/**
 * Takes messages in the given order. Each message's receipt goes to the receiver at the same index once its effect is durable.
 *
 * Returns a promise only if something has to be looked up first, or if other work must have its turn meanwhile: the texts of one
 * request can take more than a second. It resolves when all messages have been submitted. A caller keeps its messages in order by
 * awaiting it, and its throughput by not awaiting the receipts. Errors are thrown before any message is submitted.
 */
export type TakeInboundMessages = (
  messages: readonly InboundMessageFields[],
  call: Call,
  receivers: readonly Settle<InboundReceipt>[],
  /** `simulated`: a window simulates the phone, so that its messages do not count as guesses. */
  options?: { readonly simulated: boolean },
) => Promise<void> | undefined;

const notSimulated = { simulated: false };
const invalid: Judgement = { outcome: "invalid", verificationId: null, duplicate: false };

/** Null: unknown, or the destination is none of the source's numbers. */
export interface MessageOrigin {
  readonly carrier: Carrier | null;
  /** The environment of the destination number. */
  readonly environment: Environment | null;
}

const unknownOrigin: MessageOrigin = { carrier: null, environment: null };

/** Called with each receipt. `seconds` is the time since the call. */
type OnReceipt = (receipt: InboundReceipt, origin: MessageOrigin, seconds: number) => void;

export function takeInboundMessages(parts: {
  readonly directory: Directory;
  readonly judgeMessage: JudgeInboundMessage;
  readonly onReceipt: OnReceipt;
  /** Writes to the audit log. */
  readonly writeDown: (actor: Actor, act: Act) => Promise<void>;
}): TakeInboundMessages {
  const { directory, judgeMessage, onReceipt, writeDown } = parts;

  return (messages, call, receivers, { simulated } = notSimulated) => {
    const startedAt = performance.now();
    const { caller } = call;
    requireScope(caller, "ingest");
    if (caller.kind !== "service" || caller.source === null) throw new Failure("insufficient_scope");
    const { source } = caller;

    const codeLengths = directory.codeLengths();
    const prepared: Prepared[] = [];
    if (codeLengths instanceof Promise) return takeOnceKnown(caller, codeLengths);
    if (caller.scope === "admin") return takeOnceKnown(caller);
    for (const fields of messages) {
      const turn = turnOfOthers(source);
      if (turn !== undefined) return takeOnceKnown(caller, turn);
      const validation = validateInboundMessage(fields);
      const number = validation.ok ? directory.number(validation.message.to) : undefined;
      if (number instanceof Promise) return takeOnceKnown(caller, number);
      prepared.push(prepare(validation, { number, codeLengths, caller, source, simulated }));
    }
    judge(prepared);
    return undefined;

    /** Prepares the rest, after `first`: the turn of other work, or the look-up that was not cached; if it fails, this call fails. */
    async function takeOnceKnown(caller: ServiceCaller, first?: Promise<unknown>): Promise<void> {
      await first;
      const codeLengths = await directory.codeLengths();
      const validations: InboundMessageValidation[] = [];
      for (const fields of messages.slice(prepared.length)) {
        await turnOfOthers(source);
        validations.push(validateInboundMessage(fields));
      }
      const numbers = await Promise.all(
        validations.map((validation) =>
          validation.ok ? directory.number(validation.message.to) : undefined,
        ),
      );
      const destinations = new Set<string>();
      for (const [index, validation] of validations.entries()) {
        await turnOfOthers(source);
        const number = numbers[index];
        if (number?.removed === false) destinations.add(`${number.number} (${number.environment})`);
        prepared.push(prepare(validation, { number, codeLengths, caller, source, simulated }));
      }
      if (caller.scope === "admin") await writeDown(actorOf(call), sending(messages.length, destinations));
      judge(prepared);
    }

    function judge(prepared: readonly Prepared[]): void {
      for (let index = 0; index < prepared.length; index++) {
        const message = prepared[index] as Prepared;
        const { messageId } = messages[index] as InboundMessageFields;
        const receiver = receivers[index] as Settle<InboundReceipt>;
        const taken = new Taken(messageId, message?.content ?? unknownOrigin, startedAt, receiver, onReceipt);
        if (message === null) taken.resolve(invalid);
        else judgeMessage(message, taken);
      }
    }
  };
}

/** Null if not even the message's id can be stored. */
type Prepared = InboundMessage | null;

function prepare(
  validation: InboundMessageValidation,
  known: {
    readonly number: DestinationNumber | undefined;
    readonly codeLengths: CodeLengths;
    readonly caller: ServiceCaller;
    readonly source: string;
    readonly simulated: boolean;
  },
): Prepared {
  const { source, caller } = known;
  const isBound = caller.environment !== null || caller.numbers.length > 0;
  if (!validation.ok) {
    const { messageId } = validation;
    return messageId === null ? null : { source, hasRestrictedToken: isBound, messageId, content: null };
  }
  const { messageId, from, to, text, carrier, receivedAtMs } = validation.message;
  const environment = environmentOf(known.number, known.caller);
  const normal = normaliseText(text);
  const { candidates, capped } = codeCandidates(normal, known.codeLengths);
  const content = {
    from,
    to,
    text,
    carrier,
    receivedAtMs,
    environment,
    webSent: isWebSent(normal),
    candidates,
    tooManyCandidates: capped,
    fingerprint: fingerprintOf({ environment, from, to, text }),
    simulated: known.simulated,
  };
  return { source, hasRestrictedToken: isBound, messageId, content };
}

/** A message that has been submitted and awaits its judgement. */
class Taken implements Settle<Judgement> {
  readonly #messageId: string;
  readonly #origin: MessageOrigin;
  readonly #startedAt: number;
  readonly #receiver: Settle<InboundReceipt>;
  readonly #onReceipt: OnReceipt;

  constructor(
    messageId: string,
    origin: MessageOrigin,
    startedAt: number,
    receiver: Settle<InboundReceipt>,
    onReceipt: OnReceipt,
  ) {
    this.#messageId = messageId;
    this.#origin = origin;
    this.#startedAt = startedAt;
    this.#receiver = receiver;
    this.#onReceipt = onReceipt;
  }

  resolve({ outcome, verificationId, duplicate }: Judgement): void {
    const receipt = { messageId: this.#messageId, outcome, verificationId, duplicate };
    try {
      this.#onReceipt(receipt, this.#origin, (performance.now() - this.#startedAt) / 1_000);
    } catch (error) {
      // If this error propagated, the whole batch would lose its receipts.
      this.#receiver.reject(error);
      return;
    }
    this.#receiver.resolve(receipt);
  }

  reject(error: unknown): void {
    this.#receiver.reject(error);
  }
}

/** The audit entry of one request names at most so many destinations. */
const namedDestinations = 10;

/**
 * Messages sent by an administrator are audited: a verification by one must never look like one the mobile network vouched for.
 * `destinations`: those that are numbers of the service, each with its environment. A removed one may be a person's by now.
 */
function sending(messages: number, destinations: ReadonlySet<string>): Act {
  const named = [...destinations].slice(0, namedDestinations);
  const others = destinations.size - named.length;
  if (others > 0) named.push(`${others} more`);
  return {
    action: "sms.sent",
    subject: adminSource,
    projectId: null,
    details: {
      messages: String(messages),
      ...(named.length > 0 && { destinations: named.join(", ") }),
    },
  };
}

/** To a token that may not deliver to this number, the number does not exist. */
function environmentOf(number: DestinationNumber | undefined, caller: ServiceCaller): Environment | null {
  if (number === undefined) return null;
  if (caller.environment !== null && caller.environment !== number.environment) return null;
  if (caller.numbers.length > 0 && !caller.numbers.includes(number.number)) return null;
  return number.environment;
}
