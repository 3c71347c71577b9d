/** Whether callers can be sent here, and why not. */
export type Readiness = "ready" | "starting" | "stopping" | "database_away";

/** One look serves all who ask within this long: strangers may, as often and as many as they like. */
const keptMs = 250;

export function createReadiness(parts: {
  readonly phase: () => "starting" | "serving" | "stopping";
  /** Never rejects. */
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
