import { randomInt } from "node:crypto";
import { once } from "node:events";
import net from "node:net";
import { atFileEnd } from "./endings.ts";

/**
 * Apart from those of deploy/cluster, which a test may start, and like them below the ephemeral ports. `to` is exclusive. A port is used
 * only some time after it was chosen, while other processes, of this run and of others, choose theirs: each takes a block, and
 * listens on its first port for as long as the process lives, which keeps the others away.
 */
const blocks = { from: 10_000, to: 20_000, size: 100 };

let ownBlock: Promise<number> | undefined;
let lastTried = 0;

export async function freePorts(count: number): Promise<number[]> {
  ownBlock ??= takeBlock();
  const from = await ownBlock;
  const ports: number[] = [];
  while (ports.length < count) {
    // In turn, so that none comes again before it is used.
    lastTried = (lastTried % (blocks.size - 1)) + 1;
    const port = from + lastTried;
    const server = await listenOn(port);
    if (server === undefined) continue;
    server.close();
    await once(server, "close");
    ports.push(port);
  }
  return ports;
}

async function takeBlock(): Promise<number> {
  for (;;) {
    const from = blocks.from + blocks.size * randomInt((blocks.to - blocks.from) / blocks.size);
    const server = await listenOn(from);
    if (server === undefined) continue;
    server.unref();
    return from;
  }
}

/** Undefined: another process listens on it. */
async function listenOn(port: number): Promise<net.Server | undefined> {
  const server = net.createServer().listen(port, "127.0.0.1");
  return once(server, "listening").then(
    () => server,
    () => undefined,
  );
}

/** A port of 127.0.0.1 on which nothing listens, and nothing can, until the end of the test file: a connection has it at its own end. */
export async function deadPort(): Promise<number> {
  const server = net.createServer((accepted) => void accepted.on("error", () => {}).unref());
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const socket = net.connect((server.address() as net.AddressInfo).port, "127.0.0.1");
  await Promise.all([once(server, "connection"), once(socket, "connect")]);
  server.close();
  atFileEnd(() => socket.destroy());
  return (socket.unref().address() as net.AddressInfo).port;
}

/** `host:port`, with such a port. */
export const deadAddress = async () => `127.0.0.1:${await deadPort()}`;
