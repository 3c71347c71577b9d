import type { Admission } from "../admission/admission.ts";
import type { Caller } from "../core/project.ts";
import { asFailure, Failure } from "../failures.ts";

/** Each costs some 50 KiB. */
const mostInAll = 10_000;
/** One caller's, a project's or a token's: they leave room for the others. */
const mostEach = 2_500;
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
  const perCaller = new Map<string, number>();

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
      const key = callerKey(stream.caller);
      const ofCaller = perCaller.get(key) ?? 0;
      if (ofCaller >= mostEach) {
        throw new Failure("rate_limited", { message: `More than ${mostEach} streams are open: end some.` });
      }
      if (open.size >= mostInAll) throw new Failure("service_unavailable");
      perCaller.set(key, ofCaller + 1);
      open.add(stream);
      return () => {
        if (!open.delete(stream)) return;
        const left = (perCaller.get(key) ?? 1) - 1;
        if (left === 0) perCaller.delete(key);
        else perCaller.set(key, left);
      };
    },

    close() {
      listening.stop();
      clearInterval(sweeping);
    },
  };
}

const callerKey = (caller: Caller) =>
  caller.kind === "merchant" ? caller.project.id : (caller.tokenId ?? "installation");
