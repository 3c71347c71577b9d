import { isIP } from "node:net";

/** A request's origin as REST and gRPC both know it; `ip` is the client's, as trusted proxies report it. */
export interface Arrival {
  readonly ip: string;
  readonly raw: { readonly socket: { readonly remoteAddress?: string | undefined } };
}

/** An address as some proxies write it: with the client's port, an IPv6 address in brackets. */
const withPort = /^(?:\[([^[\]]+)\]|([\d.]+))(?::\d{1,5})?$/;

/**
 * The client's IP address, without a port; the peer's own if a proxy reports something that is no IP address. A client that
 * appeared under a different address with each connection would evade every limit.
 */
export function clientAddress({ ip, raw }: Arrival): string {
  if (isIP(ip) !== 0) return ip;
  const [, bracketed, plain] = withPort.exec(ip) ?? [];
  const address = bracketed ?? plain ?? "";
  return isIP(address) !== 0 ? address : (raw.socket.remoteAddress ?? "");
}
