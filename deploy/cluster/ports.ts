import { randomInt } from "node:crypto";
import { once } from "node:events";
import net from "node:net";

/**
 * Of the loopback address, free at the moment, and below those that systems hand out by themselves, so that nobody takes
 * one by chance before it is used, or while what uses it is started again.
 */
export async function freePorts(count: number): Promise<number[]> {
  const servers = new Map<number, net.Server>();
  while (servers.size < count) {
    const port = 20_000 + randomInt(10_000);
    const server = net.createServer().listen(port, "127.0.0.1");
    const isFree = await once(server, "listening").then(
      () => true,
      () => false,
    );
    if (isFree) servers.set(port, server);
  }
  for (const server of servers.values()) {
    server.close();
    await once(server, "close");
  }
  return [...servers.keys()];
}
