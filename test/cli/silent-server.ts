/** A server that accepts connections and never answers, like a frozen service, or a proxy whose service is gone. */

import { once } from "node:events";
import { createServer, type Socket } from "node:net";

export interface SilentServer {
  /** `host:port` */
  readonly address: string;
  /** Resolves when the first byte of any client arrives. */
  readonly dataReceived: Promise<void>;
  close(): void;
}

export async function startSilentServer(): Promise<SilentServer> {
  const sockets: Socket[] = [];
  const dataReceived = Promise.withResolvers<void>();
  const server = createServer((socket) => {
    sockets.push(socket.on("error", () => {}).on("data", () => dataReceived.resolve()));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    address: `127.0.0.1:${(server.address() as { port: number }).port}`,
    dataReceived: dataReceived.promise,
    close() {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}
