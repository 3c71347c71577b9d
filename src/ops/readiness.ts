/** Whether this process can take calls, and if not, why. */
export type Readiness = "ready" | "starting" | "stopping" | "database_away";

/** How long the answer of a database check is reused: anybody may ask for readiness, as often as they like. */
const keptMs = 250;

export function createReadiness(parts: {
  readonly phase: () => "starting" | "serving" | "stopping";
  /** Must never reject. */
  readonly reachesDatabase: () => Promise<boolean>;
}): () => Promise<Readiness> {
  let look: Promise<boolean> | undefined;

  function databaseAnswers(): Promise<boolean> {
    if (look) return look;
    const answer = parts.reachesDatabase();
    look = answer;
    answer.then(() => {
      setTimeout(() => {
        look = undefined;
      }, keptMs).unref();
    });
    return answer;
  }

  return async () => {
    const phase = parts.phase();
    if (phase !== "serving") return phase;
    return (await databaseAnswers()) ? "ready" : "database_away";
  };
}
