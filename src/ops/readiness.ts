/** Whether this process can take calls, and if not, why. */
export type Readiness = "ready" | "starting" | "stopping" | Exclude<DatabaseState, "usable">;

/**
 * Unfit: it answers, but takes no writes or lacks this version's tables. Refusing: it answers with an error, for example because
 * the login lost a privilege. Away: no answer, or none that it could give while it is starting or stopping.
 */
export type DatabaseState = "usable" | "database_unfit" | "database_refusing" | "database_away";

/** How long the answer of a database check is reused: anybody may ask for readiness, as often as they like. */
const keptMs = 250;

export function createReadiness(parts: {
  readonly phase: () => "starting" | "serving" | "stopping";
  /** Must never reject. */
  readonly checkDatabase: () => Promise<DatabaseState>;
}): () => Promise<Readiness> {
  let check: Promise<DatabaseState> | undefined;

  function databaseState(): Promise<DatabaseState> {
    if (check) return check;
    const answer = parts.checkDatabase();
    check = answer;
    answer.then(() => {
      setTimeout(() => {
        check = undefined;
      }, keptMs).unref();
    });
    return answer;
  }

  return async () => {
    const phase = parts.phase();
    if (phase !== "serving") return phase;
    const state = await databaseState();
    return state === "usable" ? "ready" : state;
  };
}
