import type { Admission } from "../admission/admission.ts";
import type { Caller } from "../core/project.ts";
import { asFailure, type Failure } from "../failures.ts";
import { CallerBounds } from "./caller-bounds.ts";

/** Each costs some 50 KiB. One caller's, a project's or a token's, leave room for the others'. */
const most = { inAll: 10_000, each: 2_500 };
/**
 * So often all credentials are looked at though no change was heard of: a notice may be lost, and a key's expiry is announced by
 * nobody. Equal ones are looked up once.
 */
const sweepMs = 1_000;

/** A stream that was let in. */
export interface OpenStream {
  readonly caller: Caller;
  /** Looks at the credential again. */
  authenticate(): Promise<void>;
  /** Ends it, with what its client is told. */
  end(failure: Failure): void;
}

/** The streams that are open, which end when their credential does, also those on which nothing moves. */
export interface OpenStreams {
  /** Refuses with rate_limited or service_unavailable where there are too many. To be called when it is over: the answer. */
  add(stream: OpenStream): () => void;
  close(): void;
}

export function keepOpenStreams(admission: Pick<Admission, "onRevision">): OpenStreams {
  const open = new Set<OpenStream>();
  const bounds = new CallerBounds("streams", most);

  function lookAgain(): void {
    for (const stream of open) {
      stream.authenticate().catch((error: unknown) => {
        const failure = asFailure(error);
        // A database that is away says nothing about a credential.
        if (failure.status < 500) stream.end(failure);
      });
    }
  }

  const listening = admission.onRevision(lookAgain);
  const sweeping = setInterval(lookAgain, sweepMs);
  sweeping.unref();

  return {
    add(stream) {
      const giveBack = bounds.take(stream.caller);
      open.add(stream);
      return () => {
        if (open.delete(stream)) giveBack();
      };
    },

    close() {
      listening.stop();
      clearInterval(sweeping);
    },
  };
}
