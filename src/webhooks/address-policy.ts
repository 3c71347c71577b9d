/**
 * Restricts webhooks to https and public addresses, with two checks, since connecting to a literal address makes no look-up: of
 * the URL's host if it is an address, in whatever spelling, and of every address that a name resolves to, at each connection.
 * The checked addresses are the ones connected to, so a name whose DNS answer changes in between (DNS rebinding) gains nothing.
 */

import { lookup as lookUpBySystem, Resolver } from "node:dns/promises";
import type { LookupFunction } from "node:net";
import ipaddr from "ipaddr.js";
import { LRUCache } from "lru-cache";

export interface ResolvedAddress {
  readonly address: string;
  readonly family: number;
}

export type ResolveName = (hostname: string) => Promise<readonly ResolvedAddress[]>;

export interface AddressPolicy {
  /** Why the URL is not allowed, judged by its text alone; null: it is allowed. */
  refusalOf(url: URL): string | null;
  /** The `lookup` option of `net.connect`. */
  readonly lookup: LookupFunction;
}

/** Said to a developer who sets a webhook on their own machine. */
const inDevelopment = "; for development, WEBHOOK_ALLOW_PRIVATE=true allows http and any address";

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
    return addresses;
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

/** As long as an exchange may take: a look-up whose turn comes later is not wanted any more. */
const wantedForMs = 15_000;

/** A look-up that takes longer is slow. The hosts file takes no time, and DNS has answered before, so few are. */
const slowAfterMs = 1_000;

interface Slowness {
  /** By performance.now(). */
  readonly since: number;
  /** "slow": for the first time, perhaps by chance. Such a name is pardoned once; one that was slow again never. */
  readonly state: "slow" | "pardoned" | "slow again";
}

/** Names whose last system look-up was slow. Bounded, since anybody's URL can be one. */
const slowNames = new LRUCache<string, Slowness>({ max: 1_000 });

/** Look-ups that are done one after the other. */
interface Lane {
  last: Promise<unknown>;
}

/** One for names that were slow last time: otherwise one that always hangs would keep all others from ever having their turn. */
const quickLane: Lane = { last: Promise.resolve() };
const slowLane: Lane = { last: Promise.resolve() };

function inTurn<T>(lane: Lane, work: () => Promise<T>): Promise<T> {
  const turn = lane.last.then(work);
  lane.last = turn.catch(() => {});
  return turn;
}

/**
 * Runs at most two system look-ups at a time, one in each lane, since each blocks one of libuv's few threads until it ends. While
 * one hangs, exchanges give up on those behind it, which must not hold up later ones in their turn.
 */
async function resolveBySystem(hostname: string): Promise<readonly ResolvedAddress[]> {
  const askedAt = performance.now();

  async function lookUp(): Promise<readonly ResolvedAddress[]> {
    const startedAt = performance.now();
    const known = slowNames.get(hostname);
    if (startedAt - askedAt > wantedForMs) {
      // Behind another slow name it would perhaps never have its turn again.
      if (known?.state === "slow") slowNames.set(hostname, { ...known, state: "pardoned" });
      throw new Error(`${hostname} was not looked up in time`);
    }
    try {
      return await lookUpBySystem(hostname, { all: true });
    } finally {
      const now = performance.now();
      if (now - startedAt <= slowAfterMs) slowNames.delete(hostname);
      else if (known === undefined) slowNames.set(hostname, { since: now, state: "slow" });
      // Of deliveries that were under way in the same slow moment, only the first counts.
      else if (askedAt > known.since) slowNames.set(hostname, { since: now, state: "slow again" });
    }
  }

  const isSlow = () => (slowNames.get(hostname)?.state ?? "pardoned") !== "pardoned";
  // A name may turn out to be slow while it waits for its turn behind itself.
  const found = isSlow() ? null : await inTurn(quickLane, async () => (isSlow() ? null : lookUp()));
  return found ?? inTurn(slowLane, lookUp);
}

const noSuchName = new Set(["ENOTFOUND", "ENODATA", "ECONNREFUSED"]);

/**
 * Once one query has found addresses, the other, for those of the other family, has this long. Some name servers never answer
 * queries for AAAA records; without the limit each connection would wait six seconds per server for them.
 */
const otherFamilyMs = 500;

/**
 * Resolves a name by DNS without blocking a thread: `dns.lookup` can use two, so two endpoints with a hanging name server would
 * block all other look-ups. A name that DNS does not know may still be in this machine's hosts file.
 */
async function resolveName(hostname: string): Promise<readonly ResolvedAddress[]> {
  if (!hostname.includes(".") || /\.localhost\.?$/.test(hostname)) return resolveBySystem(hostname);
  const resolver = new Resolver({ timeout: 2_000, tries: 2 });
  let timer: NodeJS.Timeout | undefined;
  const found = (values: string[]) => {
    if (values.length > 0) timer ??= setTimeout(() => resolver.cancel(), otherFamilyMs);
    return values;
  };
  const [four, six] = await Promise.allSettled([
    resolver.resolve4(hostname).then(found),
    resolver.resolve6(hostname).then(found),
  ]);
  clearTimeout(timer);
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
