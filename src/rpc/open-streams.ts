import type { Admission } from "../admission/admission.ts";
import type { Caller } from "../core/project.ts";
import { asFailure, type Failure } from "../failures.ts";
import { CallerBounds } from "./caller-bounds.ts";

/** Each stream costs some 50 KiB. The limit per caller, a project or a token, leaves room for the others. */
const most = { inAll: 10_000, each: 2_500 };
/**
 * How often all credentials are checked again without notice of a change: a notice may be lost, and nothing announces a
 * key's expiry. Equal credentials are looked up once.
 */
const sweepMs = 1_000;

/** A stream that was admitted. */
export interface OpenStream {
  readonly caller: Caller;
  /** Checks the credential again; rejects if it is no longer valid. */
  authenticate(): Promise<void>;
  /** Ends the stream; its client receives `failure`. */
  end(failure: Failure): void;
}

/** The open streams. Each ends when its credential does, even if nothing is sent on it. */
export interface OpenStreams {
  /**
   * Refuses with rate_limited or service_unavailable if there are too many. Call the returned function when the stream
   * is over.
   */
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
        // An unreachable database says nothing about a credential.
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
