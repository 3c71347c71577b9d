/** A merchant's project, its settings, and what a key or token opens. */

/** Every one there is. */
export const environments = ["live", "test"] as const;

export type Environment = (typeof environments)[number];

export type CodeFormat = "numeric" | "alphanumeric";

/** The seconds a project may give its verifications. */
export const validityRange = { min: 60, max: 3_600 } as const;

export interface Project {
  /** A UUID; `prj_…` only at the edges, as all ids. */
  readonly id: string;
  readonly name: string;
  readonly codeFormat: CodeFormat;
  readonly codeLength: number;
  readonly validitySeconds: number;
  /** Null: the default template. */
  readonly smsTemplate: string | null;
  readonly parentOrigin: string | null;
  readonly returnUrl: string | null;
  /** Calls a calendar month, both environments together; null: unlimited. */
  readonly usageLimit: number | null;
  /** For each of create, read and cancel, in each environment. */
  readonly rateLimitPerMinute: number;
  readonly suspended: boolean;
  readonly createdAt: Date;
}

/** Who calls with a merchant's API key. */
export interface MerchantCaller {
  readonly kind: "merchant";
  readonly apiKeyId: string;
  readonly environment: Environment;
  readonly project: Project;
}

export type ServiceTokenScope = "read" | "write" | "ingest" | "admin";

/** Who calls with a service token. */
export interface ServiceCaller {
  readonly kind: "service";
  /** Null for the installation's own admin token, which is in no table. */
  readonly tokenId: string | null;
  readonly scope: ServiceTokenScope;
  /** The SMS source an ingest token speaks for; `cli` for admin tokens. */
  readonly source: string | null;
  /** The only project a read or write token may touch; null: all. */
  readonly projectId: string | null;
  /** The only environment an ingest token may deliver to; null: both. */
  readonly environment: Environment | null;
  /** The only numbers an ingest token may deliver to; none: all. */
  readonly numbers: readonly string[];
}

export type Caller = MerchantCaller | ServiceCaller;
