/**
 * The journal of all requests and answers, one JSON line each, appended before a request is sent and as soon as its answer
 * arrives. Invariants are checked against this file only, not against anything kept in memory.
 */

import { closeSync, openSync, readFileSync, writeSync } from "node:fs";

export type Operation = "create" | "read" | "cancel";

/** Stored with the milliseconds since the journal began. */
export type Entry =
  | {
      readonly what: "asked";
      readonly call: number;
      readonly operation: Operation;
      /** The idempotency key or the verification's id. */
      readonly subject: string;
      /** The process that the call is sent to. */
      readonly to: string;
    }
  | {
      readonly what: "answered";
      readonly call: number;
      readonly status: number;
      readonly ms: number;
      readonly body: string;
      readonly replayed: string | null;
      readonly usage: string | null;
      readonly retryAfter: string | null;
      /** The parts of the answer that the contract does not describe. */
      readonly undescribed: readonly string[];
    }
  | {
      readonly what: "unanswered";
      readonly call: number;
      readonly ms: number;
      readonly error: string;
      /** Whether the process had been killed. */
      readonly excused: boolean;
    }
  | {
      readonly what: "message";
      readonly source: string;
      readonly messageId: string;
      readonly from: string;
      readonly to: string;
      readonly text: string;
    }
  | {
      readonly what: "receipt";
      readonly source: string;
      readonly messageId: string;
      readonly outcome: string;
      readonly verificationId: string;
      readonly duplicate: boolean;
      readonly ms: number;
    }
  | {
      readonly what: "stream lost";
      readonly source: string;
      readonly error: string;
      readonly excused: boolean;
    }
  | {
      readonly what: "delivered";
      readonly eventId: string;
      readonly type: string;
      readonly verificationId: string;
    }
  | { readonly what: "fault"; readonly name: string; readonly note: string }
  | { readonly what: "violation"; readonly text: string };

export type TimedEntry = Entry & { readonly at: number };

export interface Journal {
  readonly file: string;
  append(entry: Entry): void;
  /** All entries so far, read from the file. */
  read(): TimedEntry[];
  close(): void;
}

export function openJournal(file: string): Journal {
  const fd = openSync(file, "w");
  const startedAt = performance.now();
  return {
    file,
    append(entry) {
      const at = Math.round(performance.now() - startedAt);
      writeSync(fd, `${JSON.stringify({ at, ...entry })}\n`);
    },
    read: () =>
      readFileSync(file, "utf8")
        .trimEnd()
        .split("\n")
        .filter((line) => line !== "")
        .map((line) => JSON.parse(line) as TimedEntry),
    close: () => closeSync(fd),
  };
}
