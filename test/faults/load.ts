/** Merchants and SMS sources at work: creations, replays, reads, cancels and messages, in an order that the seed determines. */

import { setTimeout as delay } from "node:timers/promises";
import type { MerchantCalls } from "./merchant-calls.ts";
import type { Random } from "./random.ts";
import type { SmsMessage, SmsSource } from "./sms-source.ts";

export interface Load {
  /** Resolves when everything that was begun is answered. */
  pause(): Promise<void>;
  resume(): void;
  stop(): Promise<void>;
}

interface Made {
  readonly key: string;
  readonly request: object;
  readonly id: string;
  readonly destination: string;
  readonly smsText: string;
}

const workers = 8;
/** Only this many of the latest verifications and messages are read, cancelled, verified or repeated. */
const remembered = 100;
const pauseTimeoutMs = 120_000;

export function startLoad(parts: {
  readonly random: Random;
  readonly calls: MerchantCalls;
  readonly sources: readonly SmsSource[];
  /** Called for each violation of an invariant. */
  readonly onViolation: (text: string) => void;
}): Load {
  const { calls, sources, onViolation } = parts;
  const made: Made[] = [];
  const messages: { readonly source: SmsSource; readonly message: SmsMessage }[] = [];
  let stopped = false;
  let going = Promise.withResolvers<void>();
  let busy = 0;
  going.resolve();

  async function create(random: Random): Promise<void> {
    const key = newKey();
    const mode = random.chance(0.2) ? { mode: "match", expected_phone: newPhone() } : {};
    const request = { ...mode, client_reference: key, state: String(random.below(1_000)) };
    // Sometimes the same request is sent twice at once, as by a double click.
    const randoms = random.chance(0.2) ? [random.fork(), random.fork()] : [random];
    const [answer] = await Promise.all(randoms.map((randomOf) => calls.create(randomOf, key, request)));
    if (answer === undefined || answer.status > 201) {
      onViolation(`creating ${key} was answered ${answer?.status} ${answer?.body}`);
      return;
    }
    const { id, destination, sms_text } = JSON.parse(answer.body);
    made.push({ key, request, id, destination, smsText: sms_text });
    if (made.length > remembered) made.shift();
  }

  async function send(random: Random, { destination, smsText, request }: Made): Promise<void> {
    const source = random.pick(sources);
    const { expected_phone } = request as { expected_phone?: string };
    const message = {
      messageId: newKey(),
      from: expected_phone ?? newPhone(),
      to: destination,
      text: smsText,
    };
    messages.push({ source, message });
    if (messages.length > remembered) messages.shift();
    await source.send(message);
  }

  async function step(random: Random): Promise<void> {
    const choice = random.next();
    const one = made.length > 0 ? random.pick(made) : undefined;
    if (one === undefined || choice < 0.3) return create(random);
    if (choice < 0.38) {
      const answer = await calls.create(random, one.key, one.request);
      if (answer.status !== 200) onViolation(`replaying ${one.key} was answered ${answer.status}`);
    } else if (choice < 0.48) {
      await calls.cancel(random, one.id);
    } else if (choice < 0.63) {
      await calls.read(random, one.id);
    } else if (choice < 0.88) {
      await send(random, one);
    } else if (choice < 0.92) {
      await Promise.all([send(random.fork(), one), calls.cancel(random.fork(), one.id)]);
    } else if (choice < 0.96 && messages.length > 0) {
      const { source, message } = random.pick(messages);
      await source.send(message);
    } else {
      const text = `hello ${random.below(1_000_000)}`;
      await random.pick(sources).send({ messageId: newKey(), from: newPhone(), to: one.destination, text });
    }
  }

  async function work(random: Random): Promise<void> {
    while (!stopped) {
      await going.promise;
      if (stopped) return;
      busy += 1;
      try {
        await step(random);
      } catch (error) {
        onViolation((error as Error).message);
      }
      busy -= 1;
      await delay(random.between(5, 30));
    }
  }

  const running = Array.from({ length: workers }, () => work(parts.random.fork()));
  return {
    async pause() {
      going = Promise.withResolvers();
      const deadline = performance.now() + pauseTimeoutMs;
      while (busy > 0) {
        if (performance.now() > deadline) {
          const waiting = sources.map((source) => `${source.name}: ${source.waiting()} messages`).join(", ");
          throw new Error(`${busy} calls are still without an answer (${waiting})`);
        }
        await delay(5);
      }
    },
    resume: () => going.resolve(),
    async stop() {
      stopped = true;
      going.resolve();
      await Promise.race([Promise.all(running), delay(1_000, undefined, { ref: false })]);
    },
  };
}

let keysMade = 0;
let phonesMade = 0;

/** Idempotency keys and message ids, unique across processes. */
export function newKey(): string {
  keysMade += 1;
  return `fault-${process.pid}-${keysMade}`;
}

export function newPhone(): string {
  phonesMade += 1;
  return `01012${String(phonesMade % 1_000_000).padStart(6, "0")}`;
}
