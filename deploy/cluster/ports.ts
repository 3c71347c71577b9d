import { randomInt } from "node:crypto";
import { once } from "node:events";
import net from "node:net";

/** Below those that systems hand out by themselves: `to` is the first that is none. */
export const ownPorts = { from: 20_000, to: 30_000 };

/**
 * Of the loopback address and free at the moment. In `ownPorts` nobody takes one by chance before it is used, or while what
 * uses it is started again.
 */
export async function freePorts(count: number, { from, to } = ownPorts): Promise<number[]> {
  const servers = new Map<number, net.Server>();
  while (servers.size < count) {
    const port = randomInt(from, to);
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
