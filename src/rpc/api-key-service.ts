import { create } from "@bufbuild/protobuf";
import { type Duration, timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { ApiKey } from "../core/administration/api-keys.ts";
import { encodeId } from "../core/ids.ts";
import { ApiKeySchema, ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import type { AsAdmin } from "./as-admin.ts";
import { environmentMessage, optionalTimestamp, requiredEnvironmentOf } from "./messages.ts";

/** Serves what an admin token may do with merchants' keys. */
export function apiKeyRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(ApiKeyService, {
    createApiKey: asAdmin(async ({ apiKeys }, { projectId, environment, name, expiresIn }) => {
      const { apiKey, secret } = await apiKeys.create({
        projectId,
        environment: requiredEnvironmentOf(environment),
        name,
        expiresInSeconds: secondsOf(expiresIn),
      });
      return { apiKey: apiKeyMessage(apiKey), secret };
    }),
    listApiKeys: asAdmin(async (administration, { projectId, pageSize, pageToken }) => {
      const { apiKeys, nextPageToken } = await administration.apiKeys.list(projectId, {
        pageSize,
        pageToken,
      });
      return { apiKeys: apiKeys.map(apiKeyMessage), nextPageToken };
    }),
    rotateApiKey: asAdmin(async ({ apiKeys }, { apiKeyId, overlap }) => {
      const { apiKey, secret, replaced } = await apiKeys.rotate(apiKeyId, secondsOf(overlap));
      return { apiKey: apiKeyMessage(apiKey), secret, replaced: apiKeyMessage(replaced) };
    }),
    revokeApiKey: asAdmin(async ({ apiKeys }, { apiKeyId }) => ({
      apiKey: apiKeyMessage(await apiKeys.revoke(apiKeyId)),
    })),
  });
}

function secondsOf(duration: Duration | undefined): number | null {
  return duration === undefined ? null : Number(duration.seconds) + duration.nanos / 1e9;
}

function apiKeyMessage(key: ApiKey) {
  return create(ApiKeySchema, {
    id: encodeId("key_", key.id),
    projectId: encodeId("prj_", key.projectId),
    environment: environmentMessage(key.environment),
    name: key.name,
    ending: key.ending,
    createdAt: timestampFromDate(key.createdAt),
    expiresAt: optionalTimestamp(key.expiresAt),
    revokedAt: optionalTimestamp(key.revokedAt),
    lastUsedAt: optionalTimestamp(key.lastUsedAt),
  });
}
