/** Finds the addresses of a webhook's host, so that a name whose name server hangs holds up no others. */

import { lookup as lookUpBySystem, Resolver } from "node:dns/promises";
import { LRUCache } from "lru-cache";

export interface ResolvedAddress {
  readonly address: string;
  readonly family: number;
}

export type ResolveName = (hostname: string) => Promise<readonly ResolvedAddress[]>;

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
export async function resolveName(hostname: string): Promise<readonly ResolvedAddress[]> {
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
