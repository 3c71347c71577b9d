import { isIP } from "node:net";

/** What both faces know of where a request comes from: Fastify's, with proxies that are trusted taken out of `ip`. */
export interface Arrival {
  readonly ip: string;
  readonly raw: { readonly socket: { readonly remoteAddress?: string | undefined } };
}

/** An address as some proxies write it: with the client's port, an IPv6 one in brackets. */
const withPort = /^(?:\[([^[\]]+)\]|([\d.]+))(?::\d{1,5})?$/;

/**
 * The client's IP address; the peer's own where a proxy says something that is none. A client that could have
 * another address for each connection would be limited by none.
 */
export function clientAddress({ ip, raw }: Arrival): string {
  if (isIP(ip) !== 0) return ip;
  const [, bracketed, plain] = withPort.exec(ip) ?? [];
  const address = bracketed ?? plain ?? "";
  return isIP(address) !== 0 ? address : (raw.socket.remoteAddress ?? "");
}
