import type { Transitions } from "./watch-verification.ts";

/** Distributes the transitions that this process is notified of to their subscribers, so that none has to poll the database. */
export interface TransitionHub extends Transitions {
  /** Notifies the subscribers of this verification. */
  announce(verificationId: string): void;
  /** Notifies all subscribers, because notifications may have been lost. */
  announceGap(): void;
}

export function createTransitionHub(): TransitionHub {
  const followers = new Map<string, Set<() => void>>();
  return {
    follow(verificationId, onChange) {
      const following = followers.get(verificationId) ?? new Set();
      followers.set(verificationId, following);
      following.add(onChange);
      return {
        stop() {
          following.delete(onChange);
          if (following.size === 0 && followers.get(verificationId) === following)
            followers.delete(verificationId);
        },
      };
    },
    announce(verificationId) {
      for (const onChange of followers.get(verificationId) ?? []) onChange();
    },
    announceGap() {
      for (const following of followers.values()) for (const onChange of following) onChange();
    },
  };
}
