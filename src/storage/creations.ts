import { usageLimitExceeded } from "../core/usage.ts";
import type { Charged, CreationOutcome, NewVerification } from "../core/verification.ts";
import { createBatcher } from "./batcher.ts";
import { createCarefully } from "./careful-creations.ts";
import { type ChargedCreation, type Outcome, rolesOf } from "./creation-batch.ts";
import type { Database } from "./database.ts";
import { createOnFastPath } from "./fast-path-creations.ts";
import { createFastPathGuard } from "./fast-path-guard.ts";
import { chargesOf, UsageLimitReached } from "./usage.ts";

export interface Creations {
  create(request: NewVerification, chargeTo: string | null): Promise<Charged<CreationOutcome>>;
  isOverloaded(): boolean;
}

/**
 * Creates in batches. A batch is tried on the fast path, which creates all or nothing. If it conflicts with what is stored, or if its
 * requests share a key or a code, the careful path decides each request by itself.
 */
export function createCreations(database: Database): Creations {
  const guard = createFastPathGuard();
  const pipeline = database.openPipeline();

  const enqueue = createBatcher<ChargedCreation, Outcome>({
    observer: database.observer.batch("create"),
    maxSize: 256,
    maxWaiting: 10_000,
    isPipelined: pipeline.isPipelined,
    // A burst of one merchant must not have all others wait for the whole of it.
    senderOf: ({ request }) => request.projectId,
    async run(items) {
      const roles = rolesOf(items);
      const batchCharges = chargesOf(items.map(({ chargeTo }) => chargeTo));
      if (!guard.mustSkip() && !roles.leads.includes("f")) {
        const outcomes = await createOnFastPath(pipeline, items, batchCharges);
        if (outcomes !== null) return outcomes;
        guard.recordConflict();
      }
      return createCarefully(pipeline, items, roles, batchCharges);
    },
  });

  async function create(
    request: NewVerification,
    chargeTo: string | null,
  ): Promise<Charged<CreationOutcome>> {
    const outcome = await enqueue({ request, chargeTo });
    if (outcome instanceof UsageLimitReached) throw usageLimitExceeded(outcome.secondsToNextMonth);
    return outcome;
  }

  return { create, isOverloaded: enqueue.isOverloaded };
}
