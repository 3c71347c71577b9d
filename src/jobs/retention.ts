import { type Job, repeat } from "./job.ts";

/** All tasks run once a minute; in between, tasks with a backlog run every `busyMs`, which leaves room for live traffic. */
const idleMs = 60_000;
const busyMs = 20;

interface Task {
  readonly name: string;
  /** Returns whether there may be more; null if that is not known: another process is running the task, or the clock has jumped. */
  work(): Promise<boolean | null>;
  /** Done instead while the clock is not steady. */
  goBack?(): Promise<void>;
}

/**
 * Deletes and erases data whose retention has ended, batch by batch, unless the clock may be wrong. A task that fails does not
 * stop the others.
 */
export function keepRetention(parts: {
  readonly tasks: readonly Task[];
  /** Whether the clock has not jumped recently. Called before anything is deleted or erased. */
  readonly isClockSteady: () => Promise<boolean>;
  readonly onError: (error: unknown, task: string) => void;
  /** Called when a round has completed here and its tasks found nothing left to delete or erase. */
  readonly onCaughtUp: () => void;
}): Job {
  let roundAt = Number.NEGATIVE_INFINITY;
  let backlogged: readonly Task[] = [];
  /** Whether every task of this round has run here without an error. */
  let isWhole = true;

  /** Only the tasks with a backlog, unless a round is due: an endless backlog must not starve the others. */
  function dueTasks(): readonly Task[] {
    const now = performance.now();
    if (backlogged.length > 0 && now - roundAt < idleMs) return backlogged;
    roundAt = now;
    isWhole = true;
    return parts.tasks;
  }

  return repeat({
    async work(stopping) {
      if (!(await parts.isClockSteady())) {
        for (const task of parts.tasks)
          await task.goBack?.().catch((error) => parts.onError(error, task.name));
        return false;
      }
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
