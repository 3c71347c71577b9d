import { type Job, repeat } from "./job.ts";

/** A round over all tasks a minute; between rounds a task with a backlog is gone on with, with room for live traffic. */
const idleMs = 60_000;
const busyMs = 20;

interface Task {
  readonly name: string;
  /** Answers whether more may be waiting; null where another process is at it, so that nobody here can say. */
  work(): Promise<boolean | null>;
}

/** Deletes and erases what has had its time, a batch at a time. A task that fails does not stop the others. */
export function keepRetention(parts: {
  readonly tasks: readonly Task[];
  readonly onError: (error: unknown, task: string) => void;
  /** A round has left nothing that has had its time, by all that its tasks have seen. */
  readonly onCaughtUp: () => void;
}): Job {
  let roundAt = Number.NEGATIVE_INFINITY;
  let backlogged: readonly Task[] = [];
  /** Whether each task of this round has done its work here. */
  let isWhole = true;

  /** Only those with a backlog, unless a round is due: a backlog that does not end must not keep the others waiting. */
  function dueTasks(): readonly Task[] {
    const now = performance.now();
    if (backlogged.length > 0 && now - roundAt < idleMs) return backlogged;
    roundAt = now;
    isWhole = true;
    return parts.tasks;
  }

  return repeat({
    async work(stopping) {
      const more: Task[] = [];
      for (const task of dueTasks()) {
        if (stopping.aborted) return false;
        try {
          const isLeft = await task.work();
          if (isLeft) more.push(task);
          if (isLeft === null) isWhole = false;
        } catch (error) {
          isWhole = false;
          parts.onError(error, task.name);
        }
      }
      backlogged = more;
      if (more.length === 0 && isWhole) parts.onCaughtUp();
      return more.length > 0;
    },
    idleMs,
    busyMs,
    onError: (error) => parts.onError(error, "retention"),
  });
}
