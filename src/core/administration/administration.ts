import type { ApiKeys } from "./api-keys.ts";
import type { Actor, AuditLog } from "./audit.ts";
import type { DestinationNumbers } from "./destination-numbers.ts";
import type { Erasures } from "./erasure.ts";
import type { Projects } from "./projects.ts";
import type { ServiceTokens } from "./service-tokens.ts";
import type { UsageReport } from "./usage.ts";
import type { VerificationHistories } from "./verification-history.ts";
import type { Webhooks } from "./webhooks.ts";

/** Everything an administrator may do. */
export interface Administration {
  readonly projects: Projects;
  readonly apiKeys: ApiKeys;
  readonly destinationNumbers: DestinationNumbers;
  readonly serviceTokens: ServiceTokens;
  readonly webhooks: Webhooks;
  readonly usage: UsageReport;
  readonly audit: AuditLog;
  readonly erasures: Erasures;
  readonly verificationHistories: VerificationHistories;
}

/**
 * Administration on behalf of `actor`. Each act is audited under this actor, in the transaction that performs it, or before it
 * where no single transaction performs it.
 */
export type AdministrationAs = (actor: Actor) => Promise<Administration>;
