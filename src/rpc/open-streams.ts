import { setTimeout as delay } from "node:timers/promises";
import type { Admission } from "../admission/admission.ts";
import { asFailure, type Failure } from "../failures.ts";

/**
 * How often all credentials are checked again without notice of a change: a notice may be lost, and nothing announces a
 * key's expiry.
 */
const sweepMs = 1_000;
/**
 * The pause after the check that a change has caused, as a multiple of its duration. With a thousand credentials one takes 40 ms, and
 * a script makes dozens of changes a second: checked at once, each of them left merchants' calls waiting for seconds.
 */
const pausePerCheck = 4;

/** A stream that was admitted. */
export interface OpenStream {
  /** As sent. */
  readonly credential: string;
  /** Checks the credential again; rejects if it is no longer valid. */
  authenticate(): Promise<void>;
  /** Ends the stream; its client receives `failure`. */
  end(failure: Failure): void;
}

/** The open streams. Each ends when its credential does, even if nothing is sent on it. */
export interface OpenStreams {
  /** Call the returned function when the stream is over. */
  add(stream: OpenStream): () => void;
  close(): void;
}

export function keepOpenStreams(admission: Pick<Admission, "onRevision">): OpenStreams {
  const open = new Map<string, Set<OpenStream>>();
  let isChecking = false;
  /** Something has changed since the check in progress began. */
  let isChanged = false;

  /**
   * Once per credential, however many streams have it. Per stream, each administrative change took this process 8 µs: with ten
   * thousand streams a dozen changes a second would have left no time for anything else.
   */
  async function authenticateAll(): Promise<void> {
    const checks = Array.from(open.values(), (streams) => {
      // Streams that are added from now on have been authenticated later.
      const [first, ...others] = streams;
      return first?.authenticate().catch((error: unknown) => {
        const failure = asFailure(error);
        // An unreachable database says nothing about a credential.
        if (failure.status < 500) for (const stream of [first, ...others]) stream.end(failure);
      });
    });
    await Promise.all(checks);
  }

  /** Checks at once, unless the last check has just been made. */
  async function onChange(): Promise<void> {
    isChanged = true;
    if (isChecking) return;
    isChecking = true;
    while (isChanged) {
      isChanged = false;
      const startedAt = performance.now();
      await authenticateAll();
      // However long that is: the sweeps go on.
      await delay(pausePerCheck * (performance.now() - startedAt), undefined, { ref: false });
    }
    isChecking = false;
  }

  const listening = admission.onRevision(onChange);
  const sweeping = setInterval(authenticateAll, sweepMs);
  sweeping.unref();

  return {
    add(stream) {
      const { credential } = stream;
      const streams = open.get(credential) ?? new Set();
      open.set(credential, streams.add(stream));
      return () => {
        if (streams.delete(stream) && streams.size === 0) open.delete(credential);
      };
    },

    close() {
      listening.stop();
      isChanged = false;
      clearInterval(sweeping);
    },
  };
}
