/**
 * Restricts webhooks to https and public addresses, with two checks, since connecting to a literal address makes no look-up: of
 * the URL's host if it is an address, in whatever spelling, and of every address that a name resolves to, at each connection.
 * The checked addresses are the ones connected to, so a name whose DNS answer changes in between (DNS rebinding) gains nothing.
 */

import type { LookupFunction } from "node:net";
import ipaddr from "ipaddr.js";
import { type ResolvedAddress, type ResolveName, resolveName } from "./name-resolution.ts";

export interface AddressPolicy {
  /** Why the URL is not allowed, judged by its text alone; null: it is allowed. */
  refusalOf(url: URL): string | null;
  /** The `lookup` option of `net.connect`. */
  readonly lookup: LookupFunction;
}

/** Said to a developer who sets a webhook on their own machine. */
const inDevelopment = "; for development, WEBHOOK_ALLOW_PRIVATE=true allows http and any address";

/**
 * Of each family. A name can have thousands, chosen by whoever has its DNS: an attempt would connect to one after the other, as long
 * as they refuse at once.
 */
const mostAddresses = 8;

/** Thrown for a connection that the policy does not allow. */
export class AddressRefused extends Error {}

export function createAddressPolicy(options: {
  /** For development: allows http and any address. */
  readonly allowPrivate: boolean;
  readonly resolve?: ResolveName;
}): AddressPolicy {
  const { allowPrivate, resolve = resolveName } = options;

  async function allowedAddresses(hostname: string): Promise<readonly ResolvedAddress[]> {
    const addresses = await resolve(hostname);
    for (const { address } of addresses) {
      const kind = allowPrivate ? null : specialKindOf(address);
      if (kind !== null) {
        throw new AddressRefused(`${hostname} leads to ${address}, which is not a public address (${kind})`);
      }
    }
    const tried = [4, 6].flatMap((family) =>
      addresses.filter((address) => address.family === family).slice(0, mostAddresses),
    );
    return addresses.filter((address) => tried.includes(address));
  }

  return {
    refusalOf(url) {
      if (url.protocol !== "https:" && !(allowPrivate && url.protocol === "http:")) {
        return allowPrivate ? "must be an http or https URL" : `must be an https URL${inDevelopment}`;
      }
      // `URL` has already removed the scheme's default port.
      if (url.port === "0") return "must not have port 0";
      if (allowPrivate) return null;
      const address = literalOf(url);
      // Loopback names of this machine, whatever a name server answers for them (RFC 6761).
      const isOwnName = /(^|\.)localhost\.?$/.test(url.hostname);
      const kind = isOwnName ? "loopback" : address && specialKindOf(address);
      return (
        kind &&
        `must not lead to ${address ?? url.hostname}, which is not a public address (${kind})${inDevelopment}`
      );
    },

    lookup(hostname, { all }, callback) {
      allowedAddresses(hostname).then(
        (addresses) => {
          const [first] = addresses;
          if (first === undefined) callback(new Error(`${hostname} has no address`), "");
          else if (all) callback(null, [...addresses]);
          else callback(null, first.address, first.family);
        },
        (error: NodeJS.ErrnoException) => callback(error, ""),
      );
    },
  };
}

/**
 * The address if the URL's host is one; null for a name. `URL` has already normalised decimal, octal and hexadecimal spellings.
 */
function literalOf({ hostname }: URL): string | null {
  const address = hostname.replace(/^\[|\]$/g, "");
  return ipaddr.isValid(address) ? address : null;
}

const translated = ipaddr.IPv6.parseCIDR("64:ff9b::/96");

/**
 * Why an address is not public; null if it is. IPv4 embedded in IPv6 is judged as IPv4, including the addresses that a name
 * server synthesises for NAT64 (64:ff9b::/96, RFC 6052); other embeddings (6to4, Teredo) are special in themselves. Of IPv6,
 * only 2000::/3 is allocated for public use.
 */
function specialKindOf(address: string): string | null {
  const parsed = ipaddr.process(address);
  const range = parsed.range();
  if (parsed instanceof ipaddr.IPv6 && parsed.match(translated)) {
    return specialKindOf(parsed.toByteArray().slice(-4).join("."));
  }
  if (range !== "unicast") return range;
  if (parsed instanceof ipaddr.IPv6 && (parsed.toByteArray()[0] ?? 0) >> 5 !== 1) return "not global";
  return null;
}
