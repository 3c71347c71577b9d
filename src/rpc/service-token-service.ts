import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { ServiceToken } from "../core/administration/service-tokens.ts";
import { encodeId } from "../core/ids.ts";
import type { ServiceTokenScope as ScopeName } from "../core/project.ts";
import {
  ServiceTokenSchema,
  ServiceTokenScope,
  ServiceTokenService,
} from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import type { AsAdmin } from "./as-admin.ts";
import { enumName, environmentMessage, environmentOf, type Found, optionalTimestamp } from "./messages.ts";

const scopes: Record<ScopeName, ServiceTokenScope> = {
  read: ServiceTokenScope.READ,
  write: ServiceTokenScope.WRITE,
  ingest: ServiceTokenScope.INGEST,
  admin: ServiceTokenScope.ADMIN,
};

/** Serves what an admin token may do with tokens of internal services. */
export function serviceTokenRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(ServiceTokenService, {
    createServiceToken: asAdmin(
      async ({ serviceTokens }, { scope, name, source, projectId, environment, numbers }) => {
        const found: Found = { violations: [] };
        const { serviceToken, secret } = await serviceTokens.create(
          {
            scope: scope === ServiceTokenScope.UNSPECIFIED ? null : enumName("scope", scopes, scope, found),
            name,
            source,
            projectId,
            environment: environmentOf(environment, found),
            numbers,
          },
          found.violations,
        );
        return { serviceToken: tokenMessage(serviceToken), secret };
      },
    ),
    listServiceTokens: asAdmin(async (administration, { pageSize, pageToken }) => {
      const { serviceTokens, nextPageToken } = await administration.serviceTokens.list({
        pageSize,
        pageToken,
      });
      return { serviceTokens: serviceTokens.map(tokenMessage), nextPageToken };
    }),
    revokeServiceToken: asAdmin(async ({ serviceTokens }, { serviceTokenId }) => ({
      serviceToken: tokenMessage(await serviceTokens.revoke(serviceTokenId)),
    })),
  });
}

function tokenMessage(token: ServiceToken) {
  return create(ServiceTokenSchema, {
    id: encodeId("tok_", token.id),
    scope: scopes[token.scope],
    name: token.name,
    source: token.source ?? "",
    projectId: token.projectId === null ? "" : encodeId("prj_", token.projectId),
    environment: environmentMessage(token.environment),
    numbers: [...token.numbers],
    ending: token.ending,
    createdAt: timestampFromDate(token.createdAt),
    revokedAt: optionalTimestamp(token.revokedAt),
    lastUsedAt: optionalTimestamp(token.lastUsedAt),
  });
}
