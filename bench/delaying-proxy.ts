/**
 * A TCP proxy that delays everything, as a distance does: without limiting how much is on its way. A child of its own, since the
 * load generator's process would add its own pauses. The arguments are the port to forward to and the delay in milliseconds, in
 * each direction; the port that it listens on comes as a message.
 */

import { type AddressInfo, connect, createServer, type Socket } from "node:net";

const [port = 0, delayMs = 0] = process.argv.slice(2).map(Number);

function forward(source: Socket, sink: Socket): void {
  source.setNoDelay();
  source.on("data", (bytes) => setTimeout(() => sink.write(bytes), delayMs));
  source.on("error", () => {});
  source.on("close", () => sink.destroy());
}

const server = createServer((client) => {
  const upstream = connect(port, "127.0.0.1");
  forward(client, upstream);
  forward(upstream, client);
});
server.listen(0, "127.0.0.1", () => process.send?.((server.address() as AddressInfo).port));
process.on("disconnect", () => process.exit());
