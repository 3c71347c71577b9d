import { type Database, runStatement } from "./database.ts";
import { nowMs } from "./verification-row.ts";

/** What is due and not done yet, whoever is to do it. Null: nothing is. */
export interface Backlog {
  readonly oldestDeliverySeconds: number | null;
  /** Counted as far as `countedDeliveries`. */
  readonly deliveriesDue: number;
  readonly oldestExpirySeconds: number | null;
}

/** Enough to tell a backlog from none, in a few milliseconds. */
const countedDeliveries = 10_000;

/** Each figure is read off the end of a partial index: `webhook_delivery_next`, `verification_due`. */
const backlogStatement = {
  name: "backlog",
  text: `
SELECT
  (
    SELECT extract(epoch FROM now() - d.next_attempt_at)::float8 FROM webhook_delivery d
    WHERE d.state = 'pending' AND d.next_attempt_at <= ${nowMs} ORDER BY d.next_attempt_at LIMIT 1
  ),
  (
    SELECT count(*)::float8 FROM (
      SELECT FROM webhook_delivery d WHERE d.state = 'pending' AND d.next_attempt_at <= ${nowMs} LIMIT ${countedDeliveries}
    ) due
  ),
  (
    SELECT extract(epoch FROM now() - v.expires_at)::float8 FROM verification v
    WHERE v.status = 'pending' AND v.expires_at <= ${nowMs} ORDER BY v.expires_at LIMIT 1
  )`,
};

export async function readBacklog(database: Database): Promise<Backlog> {
  const [row] = await runStatement(database, backlogStatement, []);
  const [oldestDeliverySeconds, deliveriesDue, oldestExpirySeconds] = row as [
    number | null,
    number,
    number | null,
  ];
  return { oldestDeliverySeconds, deliveriesDue, oldestExpirySeconds };
}
