import type { Caller } from "../core/project.ts";
import { plainArray } from "./array-literal.ts";
import { type Database, runStatement } from "./database.ts";

/** When API keys and service tokens were last used: noted in memory, written to the database periodically. */
export interface LastUses {
  /** Notes that a call has used this caller's credential now. */
  note(caller: Caller): void;
  /** Writes what was noted since the last write. What cannot be written stays noted. */
  write(): Promise<void>;
}

/** The parameters are ages, which the database's clock turns into times. Processes write in any order: the latest use wins. */
const statementOf = (table: "api_key" | "service_token") => ({
  name: `last_used_${table}`,
  text: `
WITH locked AS MATERIALIZED (
  SELECT c.id FROM ${table} c WHERE c.id = ANY ($1::uuid[]) ORDER BY c.id FOR NO KEY UPDATE
)
UPDATE ${table} c
SET last_used_at = greatest(c.last_used_at, date_trunc('milliseconds', now() - make_interval(secs => u.age_ms / 1000)))
FROM locked l JOIN unnest($1::uuid[], $2::float8[]) AS u (id, age_ms) ON u.id = l.id
WHERE c.id = l.id`,
});

/** By id: `performance.now()` at the last use. */
type Notes = Map<string, number>;

export function createLastUses(database: Database): LastUses {
  const keys: Notes = new Map();
  const tokens: Notes = new Map();

  async function writeNotes(notes: Notes, statement: ReturnType<typeof statementOf>): Promise<void> {
    if (notes.size === 0) return;
    const written = [...notes];
    notes.clear();
    const now = performance.now();
    try {
      await runStatement(database, statement, [
        plainArray(written.map(([id]) => id)),
        plainArray(written.map(([, usedAt]) => now - usedAt)),
      ]);
    } catch (error) {
      for (const [id, usedAt] of written) if (!notes.has(id)) notes.set(id, usedAt);
      throw error;
    }
  }

  return {
    note(caller) {
      if (caller.kind === "merchant") keys.set(caller.apiKeyId, performance.now());
      else if (caller.tokenId !== null) tokens.set(caller.tokenId, performance.now());
    },
    async write() {
      const results = await Promise.allSettled([
        writeNotes(keys, apiKeyStatement),
        writeNotes(tokens, serviceTokenStatement),
      ]);
      for (const result of results) if (result.status === "rejected") throw result.reason;
    },
  };
}

const apiKeyStatement = statementOf("api_key");
const serviceTokenStatement = statementOf("service_token");
