import type { CreationTraces } from "../core/tracing.ts";
import { textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, runStatement } from "./database.ts";
import { unobserved } from "./observer.ts";

const noteStatement = {
  name: "note_creation_traces",
  text: `
INSERT INTO creation_trace (verification_id, traceparent)
SELECT * FROM unnest($1::uuid[], $2::text[]) AS n (verification_id, traceparent) ORDER BY 1
ON CONFLICT (verification_id) DO NOTHING`,
};

const findStatement = {
  name: "find_creation_traces",
  text: "SELECT verification_id::text, traceparent FROM creation_trace WHERE verification_id = ANY ($1::uuid[])",
};

const batchSize = 500;
const maxWaiting = 10_000;

/**
 * A trace is written beside the creation and not in its statement, which the caller waits for: without it a trace only lacks a
 * link.
 */
export function createCreationTraces(
  database: Database,
  options: { readonly onError: (error: unknown) => void },
): CreationTraces {
  // These batches get no spans and no metrics of their own.
  const observer = unobserved.batch("creation_trace");

  const note = createBatcher<{ readonly verificationId: string; readonly traceparent: string }, undefined>({
    observer,
    maxSize: batchSize,
    maxWaiting,
    async run(items) {
      await runStatement(database, noteStatement, [
        textArray(items.map(({ verificationId }) => verificationId)),
        textArray(items.map(({ traceparent }) => traceparent)),
      ]);
      return items.map(() => undefined);
    },
  });

  const find = createBatcher<string, string | null>({
    observer,
    maxSize: batchSize,
    maxWaiting,
    async run(ids) {
      const rows = await runStatement(database, findStatement, [textArray(ids)]);
      const found = new Map(rows.map(([id, traceparent]) => [id, traceparent as string]));
      return ids.map((id) => found.get(id) ?? null);
    },
  });

  return {
    note(verificationId, traceparent) {
      note({ verificationId, traceparent }).catch(options.onError);
    },
    find,
  };
}
