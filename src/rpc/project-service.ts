import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { ProjectChanges } from "../core/administration/projects.ts";
import type { MonthlyUsage } from "../core/administration/usage.ts";
import { encodeId } from "../core/ids.ts";
import type { CodeFormat as CodeFormatName, Project } from "../core/project.ts";
import { defaultSmsTemplate } from "../core/sms-text.ts";
import {
  CodeFormat,
  type CreateProjectRequest,
  ProjectSchema,
  ProjectService,
  type UpdateProjectRequest,
  UsageSchema,
} from "../gen/proto/phoneproof/v1/project_pb.ts";
import type { AsAdmin } from "./as-admin.ts";
import { emptyToNull, enumName, type Found } from "./messages.ts";

const codeFormats: Record<CodeFormatName, CodeFormat> = {
  numeric: CodeFormat.NUMERIC,
  alphanumeric: CodeFormat.ALPHANUMERIC,
};

/** Serves what an admin token may do with projects. */
export function projectRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(ProjectService, {
    createProject: asAdmin(async ({ projects }, request) => {
      const found: Found = { violations: [] };
      const project = await projects.create(createdSettings(request, found), found.violations);
      return { project: projectMessage(project) };
    }),
    getProject: asAdmin(async ({ projects }, { projectId }) => ({
      project: projectMessage(await projects.get(projectId)),
    })),
    listProjects: asAdmin(async ({ projects }, { pageSize, pageToken }) => {
      const page = await projects.list({ pageSize, pageToken });
      return { projects: page.projects.map(projectMessage), nextPageToken: page.nextPageToken };
    }),
    listUsage: asAdmin(async ({ usage }, { projectId, month, pageSize, pageToken }) => {
      const page = await usage.list({ projectId, month, pageSize, pageToken });
      return { usage: page.usage.map(usageMessage), nextPageToken: page.nextPageToken };
    }),
    updateProject: asAdmin(async ({ projects }, request) => {
      const found: Found = { violations: [] };
      const changes = changedSettings(request, found);
      return { project: projectMessage(await projects.update(request.projectId, changes, found.violations)) };
    }),
    suspendProject: asAdmin(async ({ projects }, { projectId }) => ({
      project: projectMessage(await projects.suspend(projectId)),
    })),
    resumeProject: asAdmin(async ({ projects }, { projectId }) => ({
      project: projectMessage(await projects.resume(projectId)),
    })),
  });
}

function createdSettings(request: CreateProjectRequest, found: Found): ProjectChanges {
  return {
    ...settingsOf(request, found),
    name: request.name,
    smsTemplate: request.smsTemplate,
    parentOrigin: request.parentOrigin,
    returnUrl: request.returnUrl,
    usageLimit: numberOf(request.usageLimit),
  };
}

/** In an update, the empty string and -1 mean "none", since absence means "unchanged". */
function changedSettings(request: UpdateProjectRequest, found: Found): ProjectChanges {
  const usageLimit = numberOf(request.usageLimit);
  return {
    ...settingsOf(request, found),
    name: request.name,
    smsTemplate: emptyToNull(request.smsTemplate),
    parentOrigin: emptyToNull(request.parentOrigin),
    returnUrl: emptyToNull(request.returnUrl),
    usageLimit: usageLimit === -1 ? null : usageLimit,
  };
}

function settingsOf(request: CreateProjectRequest | UpdateProjectRequest, found: Found): ProjectChanges {
  const { codeFormat, codeLength, validitySeconds, rateLimitPerMinute } = request;
  return {
    codeFormat:
      codeFormat === CodeFormat.UNSPECIFIED
        ? undefined
        : (enumName("code_format", codeFormats, codeFormat, found) ?? undefined),
    codeLength,
    validitySeconds,
    rateLimitPerMinute,
  };
}

const numberOf = (whole: bigint | undefined) => (whole === undefined ? undefined : Number(whole));

function projectMessage(project: Project) {
  const { usageLimit } = project;
  return create(ProjectSchema, {
    id: encodeId("prj_", project.id),
    name: project.name,
    codeFormat: codeFormats[project.codeFormat],
    codeLength: project.codeLength,
    validitySeconds: project.validitySeconds,
    smsTemplate: project.smsTemplate ?? defaultSmsTemplate,
    parentOrigin: project.parentOrigin ?? undefined,
    returnUrl: project.returnUrl ?? undefined,
    usageLimit: usageLimit === null ? undefined : BigInt(usageLimit),
    rateLimitPerMinute: project.rateLimitPerMinute,
    suspended: project.suspended,
    createdAt: timestampFromDate(project.createdAt),
  });
}

function usageMessage({ projectId, limit, calls, ...usage }: MonthlyUsage) {
  return create(UsageSchema, {
    ...usage,
    projectId: encodeId("prj_", projectId),
    calls: BigInt(calls),
    usageLimit: limit === null ? undefined : BigInt(limit),
  });
}
