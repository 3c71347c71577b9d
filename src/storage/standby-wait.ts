/**
 * For responses that repeat what is stored, and for which nothing is written: an inbound message's receipt when it comes again,
 * and the replay of a creation or a cancel that is not charged.
 *
 * A Postgres that is restarted while a commit waits for the synchronous standby shows that commit afterwards, whether the standby
 * has it or not. If the standby is promoted then, it is gone, so the response must not be sent yet.
 */

import { runStatement, type Statements } from "./database.ts";

const standbyWaitStatement = {
  name: "standby_wait",
  // The transaction's id first: a server that has become a standby refuses to assign one with the SQLSTATE of a write.
  text: `SELECT FROM (SELECT pg_current_xact_id() AS id OFFSET 0) t
    CROSS JOIN LATERAL pg_logical_emit_message(true, 'phoneproof', t.id::text)`,
};

/**
 * Writes a record to the write-ahead log, and nothing else. Its commit waits for the standby, if there is one, as every write does,
 * and with it for all that was committed before.
 */
export async function waitForStandby(statements: Statements): Promise<void> {
  await runStatement(statements, standbyWaitStatement, []);
}
