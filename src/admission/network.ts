import { isIPv6 } from "node:net";
import ipaddr from "ipaddr.js";

/** IPv6 ranges, by ipaddr.js's names, whose last 32 bits are an IPv4 address (RFC 6052, 6145, 4291). */
const embeddingRanges = new Set(["rfc6052", "rfc6145", "ipv4Mapped"]);

/** The interface of a link-local address, `%br-lan`. ipaddr.js refuses names with other characters than letters and digits. */
const zone = /%.*$/;

/**
 * The key under which an address is limited: for IPv4 the address itself, also when a translator or socket presents it as IPv6.
 * An IPv6 host can choose among 2^64 addresses, so its /64 network is the key, as `2001:db8:0:1`.
 */
export function networkOf(address: string): string {
  if (!isIPv6(address)) return address;
  const parsed = ipaddr.IPv6.parse(address.replace(zone, ""));
  if (!embeddingRanges.has(parsed.range())) {
    return parsed.parts
      .slice(0, 4)
      .map((part) => part.toString(16))
      .join(":");
  }
  return parsed.toByteArray().slice(-4).join(".");
}
