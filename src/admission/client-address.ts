import { isIP } from "node:net";
import { compile } from "@fastify/proxy-addr";

/** A request's origin as REST and gRPC both know it; `ip` is the client's, as trusted proxies report it. */
export interface Arrival {
  readonly ip: string;
  readonly raw: { readonly socket: { readonly remoteAddress?: string | undefined } };
}

/** An address as some proxies write it: with the client's port, an IPv6 address in brackets. */
const withPort = /^(?:\[([^[\]]+)\]|([\d.]+))(?::\d{1,5})?$/;

function withoutPort(text: string): string | null {
  if (isIP(text) !== 0) return text;
  const [, bracketed, plain] = withPort.exec(text) ?? [];
  const address = bracketed ?? plain ?? "";
  return isIP(address) === 0 ? null : address;
}

/** How a socket that listens on `::` presents an IPv4 address. */
const mapped = /^::ffff:(?=[\d.]+$)/i;

/**
 * The client's IP address, without a port; the peer's own if a proxy reports something that is no IP address. A client that
 * appeared under a different address with each connection would evade every limit.
 */
export function clientAddress({ ip, raw }: Arrival): string {
  return (withoutPort(ip) ?? raw.socket.remoteAddress ?? "").replace(mapped, "");
}

/**
 * Fastify's option `trustProxy`. Given the addresses themselves, it would take a proxy that another one reports with its port for
 * the client, and so all clients of that proxy for one.
 */
export function trustIn(proxies: readonly string[]): false | ((address: string, hop: number) => boolean) {
  if (proxies.length === 0) return false;
  const isTrusted = compile([...proxies]);
  return (address, hop) => isTrusted(withoutPort(address) ?? "", hop);
}
