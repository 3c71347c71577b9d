/**
 * Where a webhook may lead: https, and only to public addresses. Two checks, since a connection to an address makes no
 * look-up: of the URL's host where it is an address, in whichever spelling, and of every address a name resolves to,
 * at each connection. The addresses that were checked are the ones connected to, so a name that changes its mind
 * in between changes nothing.
 */

import { lookup as lookUpBySystem, Resolver } from "node:dns/promises";
import type { LookupFunction } from "node:net";
import ipaddr from "ipaddr.js";

export interface ResolvedAddress {
  readonly address: string;
  readonly family: number;
}

export type ResolveName = (hostname: string) => Promise<readonly ResolvedAddress[]>;

export interface AddressPolicy {
  /** Why a URL may not be called, as far as it says so itself; null: it may. */
  refusalOf(url: URL): string | null;
  /** For `net.connect`. */
  readonly lookup: LookupFunction;
}

/** A connection that the policy does not allow. */
export class AddressRefused extends Error {}

export function createAddressPolicy(options: {
  /** For development: http and any address. */
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
    return addresses;
  }

  return {
    refusalOf(url) {
      if (url.protocol !== "https:" && !(allowPrivate && url.protocol === "http:")) {
        return allowPrivate ? "must be an http or https URL" : "must be an https URL";
      }
      // URL has taken the scheme's own port away.
      if (url.port === "0") return "must not have port 0";
      if (allowPrivate) return null;
      const address = literalOf(url);
      // Whatever a name server says of them, these are this machine's own (RFC 6761).
      const isOwnName = /(^|\.)localhost\.?$/.test(url.hostname);
      const kind = isOwnName ? "loopback" : address && specialKindOf(address);
      return kind && `must not lead to ${address ?? url.hostname}, which is not a public address (${kind})`;
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

/** The address that a URL's host is; null for a name. `URL` has brought decimal, octal and hex spellings to one. */
function literalOf({ hostname }: URL): string | null {
  const address = hostname.replace(/^\[|\]$/g, "");
  return ipaddr.isValid(address) ? address : null;
}

const translated = ipaddr.IPv6.parseCIDR("64:ff9b::/96");

/**
 * What is special about an address; null for a public one. IPv4 in IPv6 is judged as the IPv4 it is, also where a name server
 * has made an address for NAT64 of it (64:ff9b::/96, RFC 6052); other ways to embed one (6to4, Teredo) are special as such. Of
 * IPv6 only 2000::/3 is given out for public use.
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

/** At most one look-up of this kind at a time: they block one of libuv's few threads for as long as they take. */
let systemLookups: Promise<unknown> = Promise.resolve();

function resolveBySystem(hostname: string): Promise<readonly ResolvedAddress[]> {
  const turn = systemLookups.then(() => lookUpBySystem(hostname, { all: true }));
  systemLookups = turn.catch(() => {});
  return turn;
}

const noSuchName = new Set(["ENOTFOUND", "ENODATA", "ECONNREFUSED"]);

/**
 * A name's addresses by DNS, without blocking a thread: `dns.lookup` has two, which two endpoints whose name server
 * hangs would keep from everybody else. What DNS does not know may be in this machine's own hosts file.
 */
async function resolveName(hostname: string): Promise<readonly ResolvedAddress[]> {
  if (!hostname.includes(".") || /\.localhost\.?$/.test(hostname)) return resolveBySystem(hostname);
  const resolver = new Resolver({ timeout: 2_000, tries: 2 });
  const [four, six] = await Promise.allSettled([resolver.resolve4(hostname), resolver.resolve6(hostname)]);
  const addresses = [
    ...(four.status === "fulfilled" ? four.value.map((address) => ({ address, family: 4 })) : []),
    ...(six.status === "fulfilled" ? six.value.map((address) => ({ address, family: 6 })) : []),
  ];
  if (addresses.length > 0) return addresses;
  for (const answer of [four, six]) {
    if (answer.status === "rejected" && !noSuchName.has(answer.reason.code)) throw answer.reason;
  }
  return resolveBySystem(hostname);
}
