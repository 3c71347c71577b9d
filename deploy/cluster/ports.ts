import { randomInt } from "node:crypto";
import { once } from "node:events";
import net from "node:net";

/** Below the ephemeral ports of operating systems. `to` is exclusive. */
const ownPorts = { from: 20_000, to: 30_000 };

/**
 * Ports of the loopback address that are free at the moment. Within `ownPorts` no other process gets one by chance before it is
 * used, or while the process that uses it is restarted.
 */
export async function freePorts(count: number): Promise<number[]> {
  const servers = new Map<number, net.Server>();
  while (servers.size < count) {
    const port = randomInt(ownPorts.from, ownPorts.to);
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
