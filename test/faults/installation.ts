/** Creates a merchant's project with a webhook, and two SMS sources, over gRPC as an operator would. */

import { createClient } from "@connectrpc/connect";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { transportTo } from "../harness/grpc-transport.ts";

export interface Installation {
  readonly apiKey: string;
  readonly destination: string;
  readonly sources: readonly { readonly name: string; readonly token: string }[];
}

export async function install(
  grpcAddress: string,
  adminToken: string,
  webhookUrl: string,
): Promise<Installation> {
  const transport = transportTo(grpcAddress, `Bearer ${adminToken}`);
  const { project } = await createClient(ProjectService, transport).createProject({
    name: "Shop",
    rateLimitPerMinute: 1_000_000,
  });
  const projectId = project?.id ?? "";
  const environment = Environment.LIVE;
  const destination = "02000001";
  await createClient(DestinationNumberService, transport).addDestinationNumber({
    number: destination,
    environment,
    projectId,
  });
  await createClient(WebhookService, transport).setWebhook({ projectId, environment, url: webhookUrl });
  const { secret: apiKey } = await createClient(ApiKeyService, transport).createApiKey({
    projectId,
    environment,
  });
  const tokens = createClient(ServiceTokenService, transport);
  const sources = ["first-carrier", "second-carrier"].map(async (name) => {
    const { secret } = await tokens.createServiceToken({ scope: ServiceTokenScope.INGEST, source: name });
    return { name, token: secret };
  });
  return { apiKey, destination, sources: await Promise.all(sources) };
}
