/** Wraps use cases, judgement and webhook attempts in spans, for a service that is traced. */

import type { CreateVerification } from "../core/create-verification.ts";
import { encodeId } from "../core/ids.ts";
import type { InboundMessage, JudgeInboundMessage, Judgement } from "../core/inbound-judgement.ts";
import { type CreationTraces, reasonOf, type Span, type Tracing, within } from "../core/tracing.ts";
import type { VerificationUseCases } from "../core/verification-use-cases.ts";
import type { MakeAttempt } from "../core/webhook.ts";

export function tracedParts(tracing: Tracing, traces: CreationTraces) {
  return {
    /** A watch gets no span besides that of its call, and its repeated reads get none either. */
    useCases: (useCases: VerificationUseCases): VerificationUseCases => ({
      ...useCases,
      createVerification: tracedCreation(tracing, traces, useCases.createVerification),
      getVerification: tracedUseCase(tracing, "getVerification", useCases.getVerification),
      cancelVerification: tracedUseCase(tracing, "cancelVerification", useCases.cancelVerification),
      listVerifications: tracedUseCase(tracing, "listVerifications", useCases.listVerifications),
    }),
    judgement: (judge: JudgeInboundMessage) => tracedJudgement(tracing, traces, judge),
    attempts: (attempt: MakeAttempt) => tracedAttempts(tracing, traces, attempt),
  };
}

function tracedUseCase<Arguments extends unknown[], Result>(
  tracing: Tracing,
  name: string,
  useCase: (...given: Arguments) => Promise<Result>,
): (...given: Arguments) => Promise<Result> {
  return (...given) => within(tracing.begin(`core ${name}`, { kind: "internal" }), () => useCase(...given));
}

function tracedCreation(
  tracing: Tracing,
  traces: CreationTraces,
  create: CreateVerification,
): CreateVerification {
  return async (request, call) => {
    const span = tracing.begin("core createVerification", { kind: "internal" });
    return within(span, async () => {
      const answer = await create(request, call);
      const { id } = answer.created.verification;
      span.set({ "phoneproof.verification_id": encodeId("vrf_", id) });
      if (!answer.replayed && span.traceparent !== null) traces.note(id, span.traceparent);
      return answer;
    });
  };
}

/**
 * Each message is a trace of its own, since its stream may be open for days. The trace is linked to the stream and to the
 * creation of the verification it matched.
 */
function tracedJudgement(
  tracing: Tracing,
  traces: CreationTraces,
  judgeMessage: JudgeInboundMessage,
): JudgeInboundMessage {
  const judgement = (message: InboundMessage) =>
    new Promise<Judgement>((resolve, reject) => {
      judgeMessage(message, { resolve, reject });
    });
  async function judged(message: InboundMessage): Promise<Judgement> {
    const stream = tracing.current()?.traceparent;
    const span = tracing.begin("inbound message", { kind: "consumer", root: true });
    if (stream) span.link(stream);
    span.set({ "phoneproof.source": message.source, "phoneproof.carrier": message.content?.carrier });
    return untilLinked(span, traces, async () => {
      const { outcome, duplicate, verificationId } = await span.run(() => judgement(message));
      span.set({ "phoneproof.outcome": outcome, "phoneproof.duplicate": duplicate });
      return { answer: { outcome, duplicate, verificationId }, verificationId };
    });
  }
  return (message, settle) => {
    judged(message).then(
      (judgement) => settle.resolve(judgement),
      (error: unknown) => settle.reject(error),
    );
  };
}

function tracedAttempts(tracing: Tracing, traces: CreationTraces, attempt: MakeAttempt): MakeAttempt {
  return async (due, signal) => {
    const span = tracing.begin("webhook attempt", { kind: "client", root: true });
    span.set({
      "phoneproof.event_id": encodeId("evt_", due.verificationId),
      "phoneproof.event_type": due.event.type,
      "phoneproof.attempt": due.number,
    });
    return untilLinked(span, traces, async () => {
      const answer = await span.run(() => attempt(due, signal));
      span.set({ "http.response.status_code": answer.status });
      if (answer.error !== null) span.fail(answer.status === null ? "unanswered" : "refused");
      return { answer, verificationId: due.verificationId };
    });
  };
}

/**
 * Ends the span at the time the work ends, but only after the creation's trace has been looked up and linked; the result does
 * not wait for that.
 */
async function untilLinked<Answer>(
  span: Span,
  traces: CreationTraces,
  work: () => Promise<{ readonly answer: Answer; readonly verificationId: string | null }>,
): Promise<Answer> {
  let verificationId: string | null = null;
  try {
    const done = await work();
    verificationId = done.verificationId;
    return done.answer;
  } catch (error) {
    span.fail(reasonOf(error));
    throw error;
  } finally {
    void linkAndEnd(span, traces, verificationId, Date.now());
  }
}

async function linkAndEnd(
  span: Span,
  traces: CreationTraces,
  verificationId: string | null,
  endedAt: number,
): Promise<void> {
  if (verificationId !== null && span.traceparent !== null) {
    span.set({ "phoneproof.verification_id": encodeId("vrf_", verificationId) });
    const created = await traces.find(verificationId).catch(() => null);
    if (created !== null) span.link(created);
  }
  span.end(endedAt);
}
