import { once } from "node:events";
import http2, { type ClientHttp2Session, type Http2Server } from "node:http2";
import type net from "node:net";
import { onTestFinished } from "vitest";

/** Has the server listen, and connects a client to it; both are closed once the test is over. */
export async function plainClient(server: Http2Server): Promise<ClientHttp2Session> {
  server.listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  const client = http2.connect(`http://127.0.0.1:${(server.address() as net.AddressInfo).port}`);
  onTestFinished(() => client.destroy());
  return client;
}
