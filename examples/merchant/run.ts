/** npm run example: prepares the demo project for the merchant in this folder and starts the merchant's server. */

import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import { findAddress, findToken } from "../../src/cli/address.ts";
import { CliError, report, wrongUsage } from "../../src/cli/cli-error.ts";
import { ServiceClient } from "../../src/cli/client.ts";
import { exit } from "../../src/cli/exit.ts";
import { allProjects } from "../../src/cli/whole-lists.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { SettingError, withListenErrors } from "../../src/setting-errors.ts";
import { createMerchant } from "./server.ts";

const environment = Environment.TEST;
const name = "examples/merchant";
const daySeconds = 86_400n;

const { PORT, PUBLIC_BASE_URL, MERCHANT_PORT } = process.env;
const port = Number(MERCHANT_PORT || "3000");
const origin = `http://localhost:${port}`;
const apiUrl = (PUBLIC_BASE_URL || `http://localhost:${PORT || "8080"}`).replace(/\/+$/, "");

async function prepare(client: ServiceClient) {
  const projects = await allProjects(client);
  // Only the project "Demo" may be used, because its addresses and its webhook are replaced.
  const demo = projects.find((project) => project.name === "Demo" && !project.suspended);
  if (demo === undefined)
    throw new CliError(1, "not_found", 'the example needs an active project "Demo", and there is none');
  const projectId = demo.id;
  await client.call(ProjectService.method.updateProject, {
    projectId,
    parentOrigin: origin,
    returnUrl: `${origin}/back`,
  });
  const { apiKeys } = await client.call(ApiKeyService.method.listApiKeys, { projectId });
  for (const key of apiKeys) {
    if (key.name === name && !key.revokedAt)
      await client.call(ApiKeyService.method.revokeApiKey, { apiKeyId: key.id });
  }
  const { secret: apiKey } = await client.call(ApiKeyService.method.createApiKey, {
    projectId,
    environment,
    name,
    expiresIn: { seconds: daySeconds },
  });
  return { apiKey, webhookSecret: await setWebhook(client, projectId) };
}

/** The webhook's secret; null if the service does not accept http webhooks. */
async function setWebhook(client: ServiceClient, projectId: string): Promise<string | null> {
  try {
    const url = `${origin}/webhook`;
    return (await client.call(WebhookService.method.setWebhook, { projectId, environment, url })).secret;
  } catch (error) {
    if (!(error instanceof CliError) || error.code !== "validation_failed") throw error;
    console.log(
      "No webhook was set. To receive webhooks too, start the service with WEBHOOK_ALLOW_PRIVATE=true.",
    );
    return null;
  }
}

/**
 * A project has one registered origin. The verification window reports only to it, and the session cookie belongs to it, so
 * requests to another name of this machine are redirected there.
 */
function underItsOrigin(shop: RequestListener): RequestListener {
  const { host } = new URL(origin);
  return (request, response) => {
    if (request.headers.host === host) shop(request, response);
    else response.writeHead(307, { location: `${origin}${request.url}` }).end();
  };
}

/** Called before the project is changed: if the port were in use, the project's new addresses would lead nowhere. */
async function listen(listener: RequestListener): Promise<void> {
  if (!/^\d*$/.test(MERCHANT_PORT ?? "") || port < 1 || port > 65_535) {
    throw wrongUsage("MERCHANT_PORT must be a port from 1 to 65535");
  }
  const server = createServer(listener).listen(port, "127.0.0.1");
  await withListenErrors("MERCHANT", "127.0.0.1", port, () => once(server, "listening")).catch(
    (error: unknown) => {
      throw error instanceof SettingError ? wrongUsage(error.message) : error;
    },
  );
}

try {
  const address = findAddress(undefined);
  const client = new ServiceClient(address, findToken(undefined, address));
  const merchant = Promise.withResolvers<RequestListener>();
  await listen(async (request, response) => (await merchant.promise)(request, response));
  const { apiKey, webhookSecret } = await prepare(client).finally(() => client.close());
  const shop = createMerchant({ apiUrl, apiKey, webhookSecret, origin, log: console.log });
  merchant.resolve(underItsOrigin(shop));
  console.log(`The shop is open at ${origin} (Ctrl-C closes it).`);
} catch (error) {
  process.exitCode = report(error, false);
  await exit();
}
