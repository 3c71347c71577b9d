/** Who may call and where SMS arrive: what every call needs to know and administration seldom changes. */

import type { CodeLengths } from "./code.ts";
import type { CredentialKind } from "./credential.ts";
import type { Caller, CodeFormat, Environment, Project } from "./project.ts";

export interface DestinationNumber {
  readonly number: string;
  readonly environment: Environment;
  /** The only project that uses it; null: shared. */
  readonly projectId: string | null;
  readonly createdAt: Date;
  /** A removed number takes no new verifications; what is pending on it goes on working. */
  readonly removed: boolean;
}

/**
 * Answers from memory where it can. What it says was true at most a second ago: every change is announced
 * to all processes, and nothing is believed for longer than a second should the announcement be lost.
 */
export interface Directory {
  /** Another number after each change that this process has heard of. */
  revision(): number;
  /** Calls back after each such change. */
  onRevision(listener: () => void): { stop(): void };
  /** Whose credential it is, where that has just been asked; undefined says nothing about it. */
  remembered(credential: string): Caller | undefined;
  /** Who a well-formed credential of that kind belongs to; null where it is unknown, revoked or expired. */
  caller(credential: string, kind: CredentialKind): Caller | null | Promise<Caller | null>;
  /** Null where there is no such project. */
  project(id: string): Promise<Project | null>;
  /**
   * The numbers on which this project's new verifications may wait: its own, else the shared ones. That there is none is true
   * now: it is looked up.
   */
  numbersFor(
    projectId: string,
    environment: Environment,
  ): readonly DestinationNumber[] | Promise<readonly DestinationNumber[]>;
  /** The number an inbound message was sent to, removed ones included. */
  number(number: string): DestinationNumber | undefined | Promise<DestinationNumber | undefined>;
  /** The code lengths of all projects, those they had before, and those made longer for want of room. */
  codeLengths(): CodeLengths | Promise<CodeLengths>;
  /** Makes a longer length known to every process before the first code of that length is handed out. */
  addCodeLength(format: CodeFormat, length: number): Promise<void>;
}
