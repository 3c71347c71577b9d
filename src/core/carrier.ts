/** The networks of the contract. An MVNO's customer counts as on the host's network. */
export type Carrier = "SKT" | "KT" | "LGU+";

const spellings: ReadonlyMap<string, Carrier> = new Map([
  ["SKT", "SKT"],
  ["KT", "KT"],
  ["KTF", "KT"],
  ["LGU+", "LGU+"],
  ["LGU", "LGU+"],
  ["LGT", "LGU+"],
  ["LG U+", "LGU+"],
  ["LG U", "LGU+"],
]);

/** MCC-MNC. 450-02, 450-04 and others are left out on purpose: sources report only these three networks. */
const networkCode = /^450[ -]?(05|08|06)$/;
const networks: ReadonlyMap<string, Carrier> = new Map([
  ["05", "SKT"],
  ["08", "KT"],
  ["06", "LGU+"],
]);

/** `SKT_MVNO`: the host, then the marker. */
const hostThenMark = /^(.+?)[ _-]MVNO$/;
/**
 * `EXAMPLE_SKT`: the operator's name, then its host. The name has at least two characters, so that `S-KT` is not read as KT.
 */
const nameThenHost = /^(.{2,})[_-](SKT|KTF?|LG[ -]?U\+?|LGT)$/;

/**
 * The network that a source's carrier name stands for; null if it is not recognised: the contract requires null then, and a
 * guess would be passed on as a fact.
 */
export function normaliseCarrier(text: string): Carrier | null {
  return spellings.get(text) ?? recogniseCarrier(text);
}

function recogniseCarrier(text: string): Carrier | null {
  const name = text.normalize("NFKC").replace(/\s+/g, " ").trim().toUpperCase();
  if (name === "") return null;
  const networkNumber = networkCode.exec(name)?.[1];
  if (networkNumber !== undefined) return networks.get(networkNumber) ?? null;
  return carrierNamed(name) ?? hostOf(name);
}

function hostOf(name: string): Carrier | null {
  const marked = hostThenMark.exec(name)?.[1];
  if (marked !== undefined) return carrierNamed(marked);
  const [, operator, suffix] = nameThenHost.exec(name) ?? [];
  if (operator === undefined || suffix === undefined) return null;
  const host = carrierNamed(suffix);
  // A name with two networks (`KT_SKT`) is ambiguous.
  const isContradictory = operator.split(/[ _-]/).some((part) => (carrierNamed(part) ?? host) !== host);
  return isContradictory ? null : host;
}

function carrierNamed(name: string): Carrier | null {
  return spellings.get(name.replace("-", " ")) ?? null;
}
