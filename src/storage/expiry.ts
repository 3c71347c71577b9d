import { type Database, runStatement } from "./database.ts";
import { expiredLive, expiredTest, noticeSent, transitionEffects } from "./transition.ts";
import { nowMs } from "./verification-row.ts";

/**
 * Expires what is due, at most `limit`, skipping rows another node holds. Event and transition commit together.
 * A row that is skipped is being verified, cancelled or expired by whoever holds it.
 */
const expireDueStatement = {
  name: "expire_due",
  text: `
WITH due AS MATERIALIZED (
  SELECT v.id FROM verification v
  WHERE v.status = 'pending' AND v.expires_at <= ${nowMs}
  ORDER BY v.expires_at LIMIT $1::int
  FOR NO KEY UPDATE SKIP LOCKED
),
expired AS (
  UPDATE verification v SET status = 'expired'
  WHERE v.id = ANY (ARRAY(SELECT id FROM due)) AND v.status = 'pending' AND v.expires_at <= ${nowMs}
  RETURNING v.id, v.webhook_configuration_id, v.environment
),${transitionEffects("expired")}
SELECT ${expiredLive}, ${expiredTest}, ${noticeSent("expired")}`,
};

/** Answers how many it expired: fewer than `limit` means that nothing more was due. */
export type ExpireDue = (limit: number) => Promise<number>;

export function createExpireDue(database: Database): ExpireDue {
  return async (limit) => {
    const [row] = await runStatement(database, expireDueStatement, [limit]);
    const [live, test] = row as [number, number];
    database.observer.moved("expired", "live", live);
    database.observer.moved("expired", "test", test);
    return live + test;
  };
}
