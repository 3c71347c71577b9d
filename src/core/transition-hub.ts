import type { Transitions } from "./watch-verification.ts";

/** Fans the transitions this process hears of out to those who follow them, in memory: no query a follower. */
export interface TransitionHub extends Transitions {
  /** A verification has changed. */
  announce(verificationId: string): void;
  /** Anything may have changed unheard: everybody looks. */
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
