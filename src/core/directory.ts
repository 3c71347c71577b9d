/**
 * Cached administrative data that every call needs and that seldom changes: credentials, projects, numbers and code lengths.
 */

import type { CodeLengths } from "./code.ts";
import type { CredentialKind } from "./credential.ts";
import type { Caller, CodeFormat, Environment, Project } from "./project.ts";

export interface DestinationNumber {
  readonly number: string;
  readonly environment: Environment;
  /** The only project that may use it; null: shared. */
  readonly projectId: string | null;
  readonly createdAt: Date;
  /** A removed number takes no new verifications; pending ones on it keep working. */
  readonly removed: boolean;
}

/**
 * Answers from memory where possible; answers are at most one second old. Every change is announced to all processes, and every
 * cached entry expires after a second in case the announcement is lost.
 */
export interface Directory {
  /** Changes with every change that this process has been notified of. */
  revision(): number;
  /** Calls `listener` after each such change. */
  onRevision(listener: () => void): { stop(): void };
  /** The cached caller of a credential; undefined means not cached, not invalid. */
  remembered(credential: string): Caller | undefined;
  /** The caller that a well-formed credential of this kind belongs to; null if it is unknown, revoked or expired. */
  caller(credential: string, kind: CredentialKind): Caller | null | Promise<Caller | null>;
  /** Null if there is no such project. */
  project(id: string): Promise<Project | null>;
  /**
   * The numbers available to this project's new verifications: its own, else the shared ones. An empty result is never taken
   * from the cache: it is confirmed by a fresh look-up.
   */
  numbersFor(
    projectId: string,
    environment: Environment,
  ): readonly DestinationNumber[] | Promise<readonly DestinationNumber[]>;
  /** The same by a look-up that begins after the call. */
  numbersNow(projectId: string, environment: Environment): Promise<readonly DestinationNumber[]>;
  /** The number that an inbound message was sent to; includes removed numbers. */
  number(number: string): DestinationNumber | undefined | Promise<DestinationNumber | undefined>;
  /** All code lengths in use: of all projects' settings, now and earlier, and lengths added because shorter codes ran out. */
  codeLengths(): CodeLengths | Promise<CodeLengths>;
  /** Announces a longer length to every process before the first code of that length is issued. */
  addCodeLength(format: CodeFormat, length: number): Promise<void>;
}
