/** Lists that commands read as a whole, page by page: an answer with many thousands would be larger than a client accepts. */

import { type ApiKey, ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import {
  type DestinationNumber,
  DestinationNumberService,
} from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import { type Project, ProjectService, type Usage } from "../gen/proto/phoneproof/v1/project_pb.ts";
import { type ServiceToken, ServiceTokenService } from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import type { Environment } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import type { ServiceClient } from "./client.ts";
import { gather } from "./paging.ts";

/** A service before pages returns everything, without a token. */
const whole = { pageToken: undefined, limit: Number.POSITIVE_INFINITY };

/** All projects, oldest first. */
export async function allProjects(client: ServiceClient): Promise<readonly Project[]> {
  const { items } = await gather(whole, async (page) => {
    const { projects, nextPageToken } = await client.call(ProjectService.method.listProjects, page);
    return { items: projects, nextPageToken };
  });
  return items;
}

/** All numbers in use, or those that the filter names, oldest first. */
export async function allNumbers(
  client: ServiceClient,
  filter: { readonly projectId?: string; readonly environment?: Environment },
): Promise<readonly DestinationNumber[]> {
  const { items } = await gather(whole, async (page) => {
    const { listDestinationNumbers } = DestinationNumberService.method;
    const answer = await client.call(listDestinationNumbers, { ...filter, ...page });
    return { items: answer.destinationNumbers, nextPageToken: answer.nextPageToken };
  });
  return items;
}

/** A project's keys, oldest first. */
export async function allApiKeys(client: ServiceClient, projectId: string): Promise<readonly ApiKey[]> {
  const { items } = await gather(whole, async (page) => {
    const answer = await client.call(ApiKeyService.method.listApiKeys, { projectId, ...page });
    return { items: answer.apiKeys, nextPageToken: answer.nextPageToken };
  });
  return items;
}

/** All service tokens, oldest first. */
export async function allServiceTokens(client: ServiceClient): Promise<readonly ServiceToken[]> {
  const { items } = await gather(whole, async (page) => {
    const answer = await client.call(ServiceTokenService.method.listServiceTokens, page);
    return { items: answer.serviceTokens, nextPageToken: answer.nextPageToken };
  });
  return items;
}

/** What projects were charged for, as ListUsage orders it. */
export async function allUsage(
  client: ServiceClient,
  { projectId, month }: { readonly projectId: string; readonly month: string },
): Promise<readonly Usage[]> {
  let inMonth = month;
  const { items } = await gather(whole, async (page) => {
    const answer = await client.call(ProjectService.method.listUsage, { projectId, month: inMonth, ...page });
    // All entries of all projects are of one month. If it is the current one, it may end before the next page.
    if (projectId === "") inMonth ||= answer.usage[0]?.month ?? "";
    return { items: answer.usage, nextPageToken: answer.nextPageToken };
  });
  return items;
}
