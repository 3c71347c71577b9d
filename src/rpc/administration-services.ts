import type { ConnectRouter } from "@connectrpc/connect";
import type { AdministrationAs } from "../core/administration/administration.ts";
import { apiKeyRoutes } from "./api-key-service.ts";
import { adminMethods } from "./as-admin.ts";
import { auditRoutes } from "./audit-service.ts";
import { destinationNumberRoutes } from "./destination-number-service.ts";
import { erasureRoutes } from "./erasure-service.ts";
import { projectRoutes } from "./project-service.ts";
import { serviceTokenRoutes } from "./service-token-service.ts";
import { verificationHistoryRoutes } from "./verification-history-service.ts";
import { webhookRoutes } from "./webhook-service.ts";

/** Serves everything that requires an admin token. */
export function administrationRoutes(router: ConnectRouter, administrationAs: AdministrationAs): void {
  const asAdmin = adminMethods(administrationAs);
  projectRoutes(router, asAdmin);
  apiKeyRoutes(router, asAdmin);
  destinationNumberRoutes(router, asAdmin);
  serviceTokenRoutes(router, asAdmin);
  auditRoutes(router, asAdmin);
  webhookRoutes(router, asAdmin);
  verificationHistoryRoutes(router, asAdmin);
  erasureRoutes(router, administrationAs);
}
