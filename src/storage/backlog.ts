import type { Backlog } from "../core/backlog.ts";
import { type Database, runStatement } from "./database.ts";
import { expiredUpTo } from "./expiry.ts";
import { nowMs } from "./verification-row.ts";

/** Deliveries are counted up to this: enough to recognise a backlog, in a few milliseconds. */
const countedDeliveries = 10_000;

/**
 * Reads only one end of an index (`webhook_delivery_next`), the codes that the expiry has yet to look at, and two tables of a
 * few rows.
 */
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
    SELECT extract(epoch FROM now() - v.expires_at)::float8 FROM live_code l
    CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = l.verification_id OFFSET 0) v
    WHERE l.expires_at > (${expiredUpTo}) AND l.expires_at <= ${nowMs} AND v.status = 'pending'
    ORDER BY l.expires_at LIMIT 1
  ),
  (SELECT extract(epoch FROM now() - min(p.counted_until))::float8 FROM statistics_progress p)
WHERE current_setting('transaction_read_only') = 'off'`,
};

/** Rejects if the database is unavailable, and if it takes no writes: what is due there is not being done by any process. */
export async function readBacklog(database: Database): Promise<Backlog> {
  const [row] = await runStatement(database, backlogStatement, []);
  if (row === undefined) throw new Error("the database is read-only");
  const [oldestDeliverySeconds, deliveriesDue, oldestExpirySeconds, statisticsBehindSeconds] = row as [
    number | null,
    number,
    number | null,
    number,
  ];
  return { oldestDeliverySeconds, deliveriesDue, oldestExpirySeconds, statisticsBehindSeconds };
}
