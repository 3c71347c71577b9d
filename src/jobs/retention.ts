import { type Job, repeat } from "./job.ts";

/** A round over all tasks a minute; a task with a backlog is gone on with at once, with room for live traffic. */
const idleMs = 60_000;
const busyMs = 20;

/** Deletes and erases what has had its time, a batch at a time. A task that fails does not stop the others. */
export function keepRetention(parts: {
  readonly tasks: readonly { readonly name: string; work(): Promise<boolean> }[];
  readonly onError: (error: unknown, task: string) => void;
}): Job {
  return repeat({
    async work(stopping) {
      let more = false;
      for (const task of parts.tasks) {
        if (stopping.aborted) break;
        try {
          more = (await task.work()) || more;
        } catch (error) {
          parts.onError(error, task.name);
        }
      }
      return more;
    },
    idleMs,
    busyMs,
    onError: (error) => parts.onError(error, "retention"),
  });
}
