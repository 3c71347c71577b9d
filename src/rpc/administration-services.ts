import { create } from "@bufbuild/protobuf";
import { type Duration, timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { AdministrationAs } from "../core/administration/administration.ts";
import type { ApiKey } from "../core/administration/api-keys.ts";
import type { AuditEntry } from "../core/administration/audit.ts";
import type { ProjectChanges } from "../core/administration/projects.ts";
import type { ServiceToken } from "../core/administration/service-tokens.ts";
import type { DestinationNumber } from "../core/directory.ts";
import { encodeId } from "../core/ids.ts";
import type {
  CodeFormat as CodeFormatName,
  Project,
  ServiceTokenScope as ScopeName,
} from "../core/project.ts";
import { defaultSmsTemplate } from "../core/sms-text.ts";
import type { FieldViolation } from "../failures.ts";
import { ApiKeySchema, ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditEntrySchema, AuditService } from "../gen/proto/phoneproof/v1/audit_pb.ts";
import {
  DestinationNumberSchema,
  DestinationNumberService,
} from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import {
  CodeFormat,
  type CreateProjectRequest,
  ProjectSchema,
  ProjectService,
  type UpdateProjectRequest,
} from "../gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenSchema,
  ServiceTokenScope,
  ServiceTokenService,
} from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import { adminMethods } from "./as-admin.ts";
import { erasureRoutes } from "./erasure-service.ts";
import {
  environmentAmong,
  environmentMessage,
  environmentOf,
  knownAmong,
  requiredEnvironmentOf,
} from "./messages.ts";
import { webhookRoutes } from "./webhook-service.ts";

const codeFormats: Record<CodeFormatName, CodeFormat> = {
  numeric: CodeFormat.NUMERIC,
  alphanumeric: CodeFormat.ALPHANUMERIC,
};
const scopes: Record<ScopeName, ServiceTokenScope> = {
  read: ServiceTokenScope.READ,
  write: ServiceTokenScope.WRITE,
  ingest: ServiceTokenScope.INGEST,
  admin: ServiceTokenScope.ADMIN,
};

/** Serves what an admin token may do. */
export function administrationRoutes(router: ConnectRouter, administrationAs: AdministrationAs): void {
  const asAdmin = adminMethods(administrationAs);

  router.service(ProjectService, {
    createProject: asAdmin(async ({ projects }, request) => {
      const violations: FieldViolation[] = [];
      const project = await projects.create(createdSettings(request, violations), violations);
      return { project: projectMessage(project) };
    }),
    getProject: asAdmin(async ({ projects }, { projectId }) => ({
      project: projectMessage(await projects.get(projectId)),
    })),
    listProjects: asAdmin(async ({ projects }) => ({
      projects: (await projects.list()).map(projectMessage),
    })),
    updateProject: asAdmin(async ({ projects }, request) => {
      const violations: FieldViolation[] = [];
      const changes = changedSettings(request, violations);
      return { project: projectMessage(await projects.update(request.projectId, changes, violations)) };
    }),
    suspendProject: asAdmin(async ({ projects }, { projectId }) => ({
      project: projectMessage(await projects.suspend(projectId)),
    })),
    resumeProject: asAdmin(async ({ projects }, { projectId }) => ({
      project: projectMessage(await projects.resume(projectId)),
    })),
  });

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
    listApiKeys: asAdmin(async ({ apiKeys }, { projectId }) => ({
      apiKeys: (await apiKeys.list(projectId)).map(apiKeyMessage),
    })),
    rotateApiKey: asAdmin(async ({ apiKeys }, { apiKeyId, overlap }) => {
      const { apiKey, secret, replaced } = await apiKeys.rotate(apiKeyId, secondsOf(overlap));
      return { apiKey: apiKeyMessage(apiKey), secret, replaced: apiKeyMessage(replaced) };
    }),
    revokeApiKey: asAdmin(async ({ apiKeys }, { apiKeyId }) => ({
      apiKey: apiKeyMessage(await apiKeys.revoke(apiKeyId)),
    })),
  });

  router.service(DestinationNumberService, {
    addDestinationNumber: asAdmin(async ({ destinationNumbers }, { number, environment, projectId }) => ({
      destinationNumber: numberMessage(
        await destinationNumbers.add(number, requiredEnvironmentOf(environment), projectId),
      ),
    })),
    listDestinationNumbers: asAdmin(async ({ destinationNumbers }, { projectId, environment }) => ({
      destinationNumbers: (await destinationNumbers.list(projectId, environmentOf(environment))).map(
        numberMessage,
      ),
    })),
    removeDestinationNumber: asAdmin(async ({ destinationNumbers }, { number }) => ({
      destinationNumber: numberMessage(await destinationNumbers.remove(number)),
    })),
  });

  router.service(ServiceTokenService, {
    createServiceToken: asAdmin(
      async ({ serviceTokens }, { scope, source, projectId, environment, numbers }) => {
        const violations: FieldViolation[] = [];
        const { serviceToken, secret } = await serviceTokens.create(
          {
            scope:
              scope === ServiceTokenScope.UNSPECIFIED ? null : knownAmong("scope", scopes, scope, violations),
            source,
            projectId,
            environment: environmentAmong(environment, violations),
            numbers,
          },
          violations,
        );
        return { serviceToken: tokenMessage(serviceToken), secret };
      },
    ),
    listServiceTokens: asAdmin(async ({ serviceTokens }) => ({
      serviceTokens: (await serviceTokens.list()).map(tokenMessage),
    })),
    revokeServiceToken: asAdmin(async ({ serviceTokens }, { serviceTokenId }) => ({
      serviceToken: tokenMessage(await serviceTokens.revoke(serviceTokenId)),
    })),
  });

  router.service(AuditService, {
    listAuditEntries: asAdmin(async ({ audit }, { projectId, actor, pageSize, pageToken }) => {
      const page = await audit.list({ projectId, actor, pageSize, pageToken });
      return { entries: page.entries.map(auditMessage), nextPageToken: page.nextPageToken };
    }),
  });

  webhookRoutes(router, asAdmin);
  erasureRoutes(router, administrationAs);
}

function createdSettings(request: CreateProjectRequest, violations: FieldViolation[]): ProjectChanges {
  return {
    ...settingsOf(request, violations),
    name: request.name,
    smsTemplate: request.smsTemplate,
    parentOrigin: request.parentOrigin,
    returnUrl: request.returnUrl,
    usageLimit: numberOf(request.usageLimit),
  };
}

/** In an update the empty string and -1 say "none", since absence says "as it is". */
function changedSettings(request: UpdateProjectRequest, violations: FieldViolation[]): ProjectChanges {
  const usageLimit = numberOf(request.usageLimit);
  return {
    ...settingsOf(request, violations),
    name: request.name,
    smsTemplate: emptyToNull(request.smsTemplate),
    parentOrigin: emptyToNull(request.parentOrigin),
    returnUrl: emptyToNull(request.returnUrl),
    usageLimit: usageLimit === -1 ? null : usageLimit,
  };
}

function settingsOf(
  request: CreateProjectRequest | UpdateProjectRequest,
  violations: FieldViolation[],
): ProjectChanges {
  const { codeFormat, codeLength, validitySeconds, rateLimitPerMinute } = request;
  return {
    codeFormat:
      codeFormat === CodeFormat.UNSPECIFIED
        ? undefined
        : (knownAmong("code_format", codeFormats, codeFormat, violations) ?? undefined),
    codeLength,
    validitySeconds,
    rateLimitPerMinute,
  };
}

const emptyToNull = (text: string | undefined) => (text === "" ? null : text);
const numberOf = (whole: bigint | undefined) => (whole === undefined ? undefined : Number(whole));

function secondsOf(duration: Duration | undefined): number | null {
  return duration === undefined ? null : Number(duration.seconds) + duration.nanos / 1e9;
}

function projectMessage(project: Project) {
  const { parentOrigin, returnUrl, usageLimit } = project;
  return create(ProjectSchema, {
    id: encodeId("prj_", project.id),
    name: project.name,
    codeFormat: codeFormats[project.codeFormat],
    codeLength: project.codeLength,
    validitySeconds: project.validitySeconds,
    smsTemplate: project.smsTemplate ?? defaultSmsTemplate,
    ...(parentOrigin === null ? {} : { parentOrigin }),
    ...(returnUrl === null ? {} : { returnUrl }),
    ...(usageLimit === null ? {} : { usageLimit: BigInt(usageLimit) }),
    rateLimitPerMinute: project.rateLimitPerMinute,
    suspended: project.suspended,
    createdAt: timestampFromDate(project.createdAt),
  });
}

function apiKeyMessage(key: ApiKey) {
  return create(ApiKeySchema, {
    id: encodeId("key_", key.id),
    projectId: encodeId("prj_", key.projectId),
    environment: environmentMessage(key.environment),
    name: key.name,
    ending: key.ending,
    createdAt: timestampFromDate(key.createdAt),
    ...(key.expiresAt && { expiresAt: timestampFromDate(key.expiresAt) }),
    ...(key.revokedAt && { revokedAt: timestampFromDate(key.revokedAt) }),
    ...(key.lastUsedAt && { lastUsedAt: timestampFromDate(key.lastUsedAt) }),
  });
}

function numberMessage(number: DestinationNumber) {
  return create(DestinationNumberSchema, {
    number: number.number,
    environment: environmentMessage(number.environment),
    projectId: number.projectId === null ? "" : encodeId("prj_", number.projectId),
    createdAt: timestampFromDate(number.createdAt),
  });
}

function tokenMessage(token: ServiceToken) {
  return create(ServiceTokenSchema, {
    id: encodeId("tok_", token.id),
    scope: scopes[token.scope],
    source: token.source ?? "",
    projectId: token.projectId === null ? "" : encodeId("prj_", token.projectId),
    environment: environmentMessage(token.environment),
    numbers: [...token.numbers],
    ending: token.ending,
    createdAt: timestampFromDate(token.createdAt),
    ...(token.revokedAt && { revokedAt: timestampFromDate(token.revokedAt) }),
    ...(token.lastUsedAt && { lastUsedAt: timestampFromDate(token.lastUsedAt) }),
  });
}

function auditMessage({ id, occurredAt, actor, act }: AuditEntry) {
  return create(AuditEntrySchema, {
    id: encodeId("aud_", id),
    occurredAt: timestampFromDate(occurredAt),
    actor: actor.name,
    address: actor.address,
    requestId: actor.requestId,
    action: act.action,
    subject: act.subject,
    projectId: act.projectId === null ? "" : encodeId("prj_", act.projectId),
    details: { ...act.details },
  });
}
