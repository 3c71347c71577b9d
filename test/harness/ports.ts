import { once } from "node:events";
import net from "node:net";
import { freePorts as freeAmong } from "../../deploy/cluster/ports.ts";
import { atFileEnd } from "./endings.ts";

/** Apart from those of deploy/cluster, which a test may start, and like them below the ephemeral ports. `to` is exclusive. */
const testPorts = { from: 10_000, to: 20_000 };
/** Test files run in parallel, and a port is used only some time after it was chosen: each vitest worker has its own range. */
const shares = 16;

export async function freePorts(count: number): Promise<number[]> {
  const width = (testPorts.to - testPorts.from) / shares;
  const from = testPorts.from + (Number(process.env.VITEST_POOL_ID ?? 0) % shares) * width;
  return freeAmong(count, { from, to: from + width });
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
