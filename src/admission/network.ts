import { isIPv6 } from "node:net";
import ipaddr from "ipaddr.js";

/** Of what RFC 6052, 6145 and 4291 embed IPv4 in, in ipaddr.js's words: the last 32 bits are the address. */
const embeddingRanges = new Set(["rfc6052", "rfc6145", "ipv4Mapped"]);

/**
 * What an address counts as: itself, if it is IPv4, also where a translator or a socket shows it as IPv6. An IPv6 host
 * has 2^64 addresses to choose from: its network counts as one, as `2001:db8:0:1`.
 */
export function networkOf(address: string): string {
  if (!isIPv6(address)) return address;
  const parsed = ipaddr.IPv6.parse(address);
  if (!embeddingRanges.has(parsed.range())) {
    return parsed.parts
      .slice(0, 4)
      .map((part) => part.toString(16))
      .join(":");
  }
  return parsed.toByteArray().slice(-4).join(".");
}
