import {
  codeKey,
  type InboundMessage,
  type JudgeInboundMessage,
  type Judgement,
  judge,
  messageKey,
} from "../core/inbound-judgement.ts";
import { type Environment, environments } from "../core/project.ts";
import type { Settle } from "../core/settle.ts";
import { Failure } from "../failures.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, inTransaction, type Statements } from "./database.ts";
import { isDataRefused } from "./database-errors.ts";
import { createFastPathGuard } from "./fast-path-guard.ts";
import { type FastPathMessage, isFastPathCandidate, verifyOnFastPath } from "./fast-path-messages.ts";
import { readState } from "./inbound-state.ts";
import { type Moved, storeJudgements, unmoved } from "./inbound-store.ts";
import type { StorageObserver } from "./observer.ts";
import { reportTransitions } from "./transition.ts";

/**
 * Messages that the fast path (fast-path-messages.ts) does not take are judged with two statements: one reads what the messages
 * may affect, the other stores the judgements. The judging happens here and not in SQL, because a message's outcome depends on
 * those before it in the same batch (the fifth miss mutes the sixth message; the first of two with one code verifies); a
 * set-based statement cannot see that without giving up order.
 *
 * Nothing is locked between the two. The storing statement checks what the judgements were based on: verifications are still
 * pending and have not expired at the time at which they are verified, senders' misses are as they were read, ids and contents
 * are new. If not, it fails as a whole and the messages are judged again. So all messages of a batch take effect at once.
 */
export function createInboundMessages(
  database: Database,
  parts: { readonly onFault: (error: unknown) => void },
): JudgeInboundMessage {
  const guard = createFastPathGuard();
  const plainGuard = createFastPathGuard();

  const inbound = createBatcher<Judging, Judgement>({
    observer: database.observer.batch("inbound"),
    maxSize: 500,
    // Streams limit their messages in flight; refusing here would only make them resend.
    maxWaiting: Number.POSITIVE_INFINITY,
    keysOf: ({ keys }) => keys,
    // A source that resumes sends all that has piled up: a thousand messages take up to a quarter of a second.
    senderOf: ({ message }) => message.source,
    async run(batch) {
      const left = () => batch.filter(({ judgement }) => judgement === undefined);
      if (!plainGuard.mustSkip()) await judgePlain(left());
      const rest = left();
      if (rest.length > 0) await judgeRest(rest);
      return batch.map(({ judgement }) => judgement as Judgement);
    },
  });

  /**
   * Verifies those that are plain. If many were tried and few of them were plain, trying is skipped for the next batches, where
   * it would be wasted work too.
   */
  async function judgePlain(batch: readonly Judging[]): Promise<void> {
    const asked = plainAmong(batch);
    if (asked.length === 0) return;
    const verified = await verifyOnFastPath(
      database,
      asked.map(({ message }) => message),
    );
    const seconds: Record<Environment, number[]> = { live: [], test: [] };
    let count = 0;
    for (const [position, judging] of asked.entries()) {
      const plainly = verified?.[position];
      if (plainly === undefined) continue;
      count += 1;
      const { verificationId } = plainly;
      judging.judgement = { outcome: "verified", verificationId, duplicate: false };
      seconds[judging.message.content.environment].push(plainly.seconds);
    }
    if (asked.length >= manyAsked && count < asked.length / 2) plainGuard.recordConflict();
    report(database.observer, { ...unmoved, verified: seconds });
  }

  async function judgeRest(batch: readonly Judging[]): Promise<void> {
    const messages = batch.map(({ message }) => message);
    // Most messages are new, and one that is not makes storing fail. After that, as when a source resumes and resends, the ids
    // of the messages are looked up first.
    let stored = await judgeBatch(database, messages, { lookUpIds: guard.mustSkip(), verifyAt: "store" });
    if (stored === null) {
      guard.recordConflict();
      stored = await judgeAgain(database, messages);
    }
    report(database.observer, stored.moved);
    for (const [position, judging] of batch.entries()) judging.judgement = stored.judgements[position];
  }

  return (message, settle) => {
    const judging = new Judging(message, settle, parts.onFault);
    inbound.take(judging, judging);
  };
}

/** With fewer messages a wasted try costs next to nothing. */
const manyAsked = 16;

type PlainJudging = Judging & { readonly message: FastPathMessage };

/** Those that may be plain and share no key with another message of their batch. */
function plainAmong(batch: readonly Judging[]): PlainJudging[] {
  const keys = new Set<string>();
  const shared = new Set<string>();
  for (const judging of batch) {
    for (const key of judging.keys) {
      if (keys.has(key)) shared.add(key);
      else keys.add(key);
    }
  }
  return batch.filter(
    (judging): judging is PlainJudging =>
      isFastPathCandidate(judging.message) &&
      (shared.size === 0 || !judging.keys.some((key) => shared.has(key))),
  );
}

/** One message on its way through the batches. */
class Judging implements Settle<Judgement> {
  readonly message: InboundMessage;
  readonly keys: readonly string[];
  /**
   * Set once the judgement is stored. The batch may still fail because of others, and those without a judgement are then
   * retried.
   */
  judgement: Judgement | undefined = undefined;
  readonly #settle: Settle<Judgement>;
  readonly #onFault: (error: unknown) => void;

  constructor(message: InboundMessage, settle: Settle<Judgement>, onFault: (error: unknown) => void) {
    this.message = message;
    this.keys = keysOf(message);
    this.#settle = settle;
    this.#onFault = onFault;
  }

  resolve(judgement: Judgement): void {
    this.#settle.resolve(judgement);
  }

  reject(error: unknown): void {
    if (this.judgement !== undefined) {
      this.#settle.resolve(this.judgement);
      return;
    }
    if (error instanceof Failure) {
      this.#settle.reject(error);
      return;
    }
    this.#onFault(error);
    // Data that the schema refuses will always be refused: only such a message gets the receipt `invalid`. Any other error is
    // the service's fault, and the source keeps the message and sends it again.
    if (isDataRefused(error)) {
      this.#settle.resolve({ outcome: "invalid", verificationId: null, duplicate: false });
    } else this.#settle.reject(new Failure("service_unavailable", { cause: error }));
  }
}

/**
 * Keys for all that a message's outcome may depend on, and all that may depend on it: its id, its sender (misses, muting,
 * repeated contents), and the codes it may contain.
 */
function keysOf({ source, messageId, content }: InboundMessage): string[] {
  const keys = [messageKey(source, messageId)];
  if (content) {
    keys.push(content.from);
    for (const candidate of content.candidates) keys.push(codeKey(content.to, candidate));
  }
  return keys;
}

const maxTries = 20;

/**
 * An advisory lock lets only one batch at a time be judged again, so that such batches cannot keep each other from succeeding.
 * Read and store are one transaction, so verifications may have the time of the read. With that of the store, a batch whose
 * verifications expire one after the other would be judged again until all of them had expired.
 */
async function judgeAgain(database: Database, messages: readonly InboundMessage[]): Promise<Stored> {
  for (let tries = 1; tries <= maxTries; tries++) {
    const stored = await inTransaction(database, async (client) => {
      await client.query("SELECT pg_advisory_xact_lock(hashtext('phoneproof inbound'))");
      const statements: Statements = {
        observer: database.observer,
        query: (statement) => client.query(statement),
      };
      return judgeBatch(statements, messages, { lookUpIds: true, verifyAt: "read" });
    });
    if (stored) return stored;
  }
  throw new Error("inbound messages kept conflicting with concurrent changes");
}

/** A batch's judgements, and the transitions that it made. */
interface Stored {
  readonly judgements: Judgement[];
  readonly moved: Moved;
}

function report(observer: StorageObserver, { verified, expired }: Moved): void {
  for (const environment of environments) {
    observer.verified(environment, verified[environment]);
  }
  reportTransitions(observer, "expired", expired);
}

/** Null, with nothing stored, if something has changed between the read and the write. */
async function judgeBatch(
  statements: Statements,
  messages: readonly InboundMessage[],
  { lookUpIds, verifyAt }: { readonly lookUpIds: boolean; readonly verifyAt: "read" | "store" },
): Promise<Stored | null> {
  const state = await readState(statements, messages, lookUpIds);
  const before = new Map(state.senders);
  const judgements = judge(messages, state);
  const moved = await storeJudgements(statements, judgements, state, before, verifyAt);
  return moved && { judgements: judgements.judged.map(({ judgement }) => judgement), moved };
}
