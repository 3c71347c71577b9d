/** A TCP proxy that breaks connections in the middle of the data. */

import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";

/** Breaks the connections after this many more bytes from that side. */
export interface Cut {
  readonly from: "client" | "server";
  readonly bytes: number;
}

export interface CuttingProxy {
  /** `host:port` */
  readonly address: string;
  cuts(): number;
  /** Number of connections so far. */
  connections(): number;
  /** Bytes received from each side. */
  readonly passed: Readonly<Record<Cut["from"], number>>;
  /** Breaks all connections now. */
  breakAll(): void;
  close(): Promise<void>;
}

/**
 * Breaks all connections at each of the cuts, one after the other, and passes everything on after the last. `target` is
 * called for each connection.
 */
export async function startCuttingProxy(
  target: () => string,
  cuts: readonly Cut[] = [],
): Promise<CuttingProxy> {
  const open = new Set<Socket>();
  const passed = { client: 0, server: 0 };
  const left = [...cuts];
  let made = 0;
  let connections = 0;
  let next = left.shift();
  let after = { ...passed };

  const breakAll = () => {
    for (const socket of open) socket.resetAndDestroy();
  };

  const forward = (from: Cut["from"], source: Socket, sink: Socket) => {
    source.on("data", (bytes: Buffer) => {
      passed[from] += bytes.length;
      const beyond = next?.from === from ? passed[from] - after[from] - next.bytes : -1;
      if (beyond < 0) {
        if (sink.write(bytes)) return;
        source.pause();
        sink.once("drain", () => source.resume());
        return;
      }
      made += 1;
      next = left.shift();
      after = { ...passed };
      source.pause();
      // Part of the data is passed on, so that the cut falls in the middle of a frame.
      sink.write(bytes.subarray(0, bytes.length - beyond), breakAll);
    });
  };

  const server = createServer((client) => {
    connections += 1;
    const [host = "", port = ""] = target().split(":");
    const upstream = connect(Number(port), host);
    const end = () => {
      for (const socket of [client, upstream]) {
        socket.destroy();
        open.delete(socket);
      }
    };
    for (const socket of [client, upstream]) {
      open.add(socket);
      socket.on("error", end).on("close", end);
    }
    forward("client", client, upstream);
    forward("server", upstream, client);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port: own } = server.address() as { port: number };
  return {
    address: `127.0.0.1:${own}`,
    cuts: () => made,
    connections: () => connections,
    passed,
    breakAll,
    async close() {
      for (const socket of open) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}
