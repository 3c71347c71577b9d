/** Wires administration: the core's rules on the Prisma stores. */

import type { Administration } from "./core/administration/administration.ts";
import { administerApiKeys } from "./core/administration/api-keys.ts";
import { type Act, type Actor, readAudit } from "./core/administration/audit.ts";
import { administerDestinationNumbers } from "./core/administration/destination-numbers.ts";
import { administerErasures } from "./core/administration/erasure.ts";
import { administerProjects } from "./core/administration/projects.ts";
import { administerServiceTokens } from "./core/administration/service-tokens.ts";
import { reportUsage } from "./core/administration/usage.ts";
import { readVerificationHistories } from "./core/administration/verification-history.ts";
import { administerWebhooks } from "./core/administration/webhooks.ts";
import { announcing, createAdminister } from "./storage/administration/administer.ts";
import { createApiKeyStore } from "./storage/administration/api-keys.ts";
import { createAuditStore } from "./storage/administration/audit.ts";
import { createDestinationNumberStore } from "./storage/administration/destination-numbers.ts";
import { createProjectStore } from "./storage/administration/projects.ts";
import { createServiceTokenStore } from "./storage/administration/service-tokens.ts";
import { createUsageStore } from "./storage/administration/usage.ts";
import { createVerificationHistoryStore } from "./storage/administration/verification-history.ts";
import { createWebhookStore } from "./storage/administration/webhooks.ts";
import { createConcurrencyLimit } from "./storage/concurrency-limit.ts";
import type { Database } from "./storage/database.ts";
import type { CachedDirectory } from "./storage/directory.ts";
import { createErasureStore } from "./storage/erasure.ts";
import { withPrisma } from "./storage/prisma.ts";
import { takeTurns } from "./storage/turns.ts";
import type { Endpoints } from "./webhooks/endpoints.ts";
import { createSendSample } from "./webhooks/sample.ts";

export interface OpenAdministration {
  /** The administrative operations as `actor`, under whose name the audit log records them. */
  as(actor: Actor): Administration;
  /** Adds an act that was performed elsewhere to the audit log. */
  writeDown(actor: Actor, act: Act): Promise<void>;
}

export async function openAdministration(parts: {
  readonly database: Database;
  readonly directory: CachedDirectory;
  readonly endpoints: Endpoints;
}): Promise<OpenAdministration> {
  const { directory, endpoints } = parts;
  const database = await withPrisma(parts.database);
  const limit = createConcurrencyLimit(parts.database);
  const inTurn = takeTurns();
  return {
    as(actor) {
      const administer = createAdminister(database, actor, limit);
      const announced = announcing(administer, directory);
      const audit = createAuditStore(database, actor);
      return {
        projects: administerProjects({ projects: createProjectStore(database, announced) }),
        apiKeys: administerApiKeys({ apiKeys: createApiKeyStore(database, announced) }),
        destinationNumbers: administerDestinationNumbers({
          destinationNumbers: createDestinationNumberStore(database, announced),
        }),
        serviceTokens: administerServiceTokens({
          serviceTokens: createServiceTokenStore(database, announced),
        }),
        webhooks: administerWebhooks({
          webhooks: createWebhookStore(database, administer),
          refusalOf: endpoints.refusalOf,
          sendSample: createSendSample(endpoints),
          audit,
        }),
        usage: reportUsage({ usage: createUsageStore(database) }),
        audit: readAudit({ audit }),
        erasures: administerErasures({ erasures: createErasureStore(database, inTurn), audit }),
        verificationHistories: readVerificationHistories({
          histories: createVerificationHistoryStore(database),
        }),
      };
    },
    writeDown: (actor, act) => createAuditStore(database, actor).add(act),
  };
}
