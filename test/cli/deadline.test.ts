import { createServer, type Socket } from "node:net";
import { afterAll, expect, test } from "vitest";
import { ServiceClient } from "../../src/cli/client.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";

const sockets: Socket[] = [];
const silent = createServer((socket) => {
  sockets.push(socket.on("error", () => {}));
});
await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
const { port } = silent.address() as { port: number };
const address = {
  host: "127.0.0.1",
  port,
  tls: false,
  shown: `127.0.0.1:${port}`,
};
const client = new ServiceClient(address, { secret: "token", source: "the test" });

afterAll(() => {
  client.close();
  for (const socket of sockets) socket.destroy();
  silent.close();
});

test.for([
  100, 1_500,
])("a call without an answer for %i ms fails with a message that names its deadline", async (deadlineMs) => {
  const call = client.call(WebhookService.method.sendTestWebhook, {}, { deadlineMs });
  await expect(call).rejects.toMatchObject({
    exitCode: 3,
    message: `the service at ${address.shown} did not answer within ${deadlineMs / 1000} s`,
  });
});
