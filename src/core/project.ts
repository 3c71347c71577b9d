/** A merchant's project, its settings, and what an API key or service token grants. */

import { encodeId } from "./ids.ts";

/** All environments. */
export const environments = ["live", "test"] as const;

export type Environment = (typeof environments)[number];

export type CodeFormat = "numeric" | "alphanumeric";

/** The validity in seconds that a project may set. */
export const validityRange = { min: 60, max: 3_600 } as const;

export interface Project {
  /** A UUID; the `prj_…` form is used only in the interfaces, as for all ids. */
  readonly id: string;
  readonly name: string;
  readonly codeFormat: CodeFormat;
  readonly codeLength: number;
  readonly validitySeconds: number;
  /** Null: the default template. */
  readonly smsTemplate: string | null;
  readonly parentOrigin: string | null;
  readonly returnUrl: string | null;
  /** Calls per calendar month, both environments together; null: unlimited. */
  readonly usageLimit: number | null;
  /** Applies separately to create, read and cancel in each environment. */
  readonly rateLimitPerMinute: number;
  readonly suspended: boolean;
  readonly createdAt: Date;
}

/** A caller authenticated by a merchant's API key. */
export interface MerchantCaller {
  readonly kind: "merchant";
  readonly apiKeyId: string;
  readonly environment: Environment;
  readonly project: Project;
}

export type ServiceTokenScope = "read" | "write" | "ingest" | "admin";

/** A caller authenticated by a service token. */
export interface ServiceCaller {
  readonly kind: "service";
  /** Null for the installation's own admin token, which is not stored in the database. */
  readonly tokenId: string | null;
  readonly scope: ServiceTokenScope;
  /** The SMS source an ingest token speaks for; `cli` for admin tokens. */
  readonly source: string | null;
  /** The only project a read or write token may access; null: all. */
  readonly projectId: string | null;
  /** The only environment an ingest token may deliver to; null: both. */
  readonly environment: Environment | null;
  /** The only numbers an ingest token may deliver to; empty: all. */
  readonly numbers: readonly string[];
}

export type Caller = MerchantCaller | ServiceCaller;

/** The actor's name of the installation's own admin token. */
export const installation = "installation";

/** `tok_…`, or `installation`: what the log and the audit log call a token. */
export function tokenNameOf({ tokenId }: ServiceCaller): string {
  return tokenId === null ? installation : encodeId("tok_", tokenId);
}
