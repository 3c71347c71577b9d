import { type FoundWindow, type VerificationWindows, windowHours } from "../core/verification-window.ts";
import { plainArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, runStatement } from "./database.ts";
import { epochMs, nowMs } from "./verification-row.ts";

/** How long a window works after its verification has ended. */
const windowLife = `interval '${windowHours} hours'`;

/**
 * A verification ends with its event, or at its expiry if there is no event yet or a later one. The time is the database's, as
 * everywhere.
 */
const findStatement = {
  name: "find_window",
  text: `
SELECT k.digest, v.id, p.name, v.environment, v.mode, v.status, v.phone, v.carrier, v.client_reference,
  v.state, v.destination, v.sms_text, v.parent_origin, v.return_url, ${epochMs("v.expires_at")}, ${epochMs(nowMs)},
  h.reason, ${epochMs("h.noticed_at")}, p.id
FROM unnest($1::text[]) AS k (digest)
LEFT JOIN LATERAL (SELECT * FROM live_code WHERE window_digest = decode(k.digest, 'hex') OFFSET 0) l ON true
LEFT JOIN LATERAL (
  SELECT * FROM window_token WHERE l.verification_id IS NULL AND digest = decode(k.digest, 'hex') OFFSET 0
) t ON true
CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = coalesce(l.verification_id, t.verification_id) OFFSET 0) v
JOIN project p ON p.id = v.project_id
LEFT JOIN LATERAL (SELECT * FROM event WHERE verification_id = v.id OFFSET 0) e ON true
LEFT JOIN LATERAL (SELECT * FROM pending_hint WHERE verification_id = v.id OFFSET 0) h ON true
WHERE least(e.occurred_at, v.expires_at) > now() - ${windowLife}`,
};

const batchSize = 500;

/** After a restart all open windows reconnect at once, and none of them should be refused. */
const maxWaiting = 50_000;

export function createVerificationWindows(database: Database): VerificationWindows {
  const find = createBatcher<string, FoundWindow | null>({
    observer: database.observer.batch("window"),
    maxSize: batchSize,
    maxWaiting,
    async run(digests) {
      const rows = await runStatement(database, findStatement, [plainArray([...new Set(digests)])]);
      const found = new Map(rows.map((row) => [row[0], windowOf(row)]));
      return digests.map((digest) => found.get(digest) ?? null);
    },
  });
  return { find };
}

function windowOf(row: readonly unknown[]): FoundWindow {
  const [reason, noticedAt, projectId] = row.slice(16);
  return {
    verificationId: row[1],
    projectId,
    projectName: row[2],
    environment: row[3],
    mode: row[4],
    status: row[5],
    phone: row[6],
    carrier: row[7],
    clientReference: row[8],
    state: row[9],
    destination: row[10],
    smsText: row[11],
    parentOrigin: row[12],
    returnUrl: row[13],
    expiresAt: row[14],
    serverTime: row[15],
    hint: reason === null ? null : { reason, noticedAt },
  } as FoundWindow;
}
