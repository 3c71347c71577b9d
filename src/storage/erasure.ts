import type { ErasureStore } from "../core/administration/erasure.ts";
import { type Database, runStatement } from "./database.ts";
import type { RunErasing } from "./erased-rows.ts";
import { createPhoneErasure } from "./phone-erasure.ts";
import type { InTurn } from "./turns.ts";
import { createVerificationErasure } from "./verification-erasure.ts";

export function createErasureStore(database: Database, inTurn: InTurn): ErasureStore {
  const run: RunErasing = (statement, values) => inTurn(() => runStatement(database, statement, values));
  const verifications = createVerificationErasure(run, database.observer);
  return {
    async projectOf(verificationId) {
      const [row] = await run(projectStatement, [verificationId]);
      return row ? (row[0] as string) : null;
    },
    eraseVerification: verifications.erase,
    erasePhone: createPhoneErasure(run, verifications),
  };
}

const projectStatement = {
  name: "erasure_project",
  text: "SELECT project_id::text FROM verification WHERE id = $1::uuid",
};
