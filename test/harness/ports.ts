import { freePorts as freeAmong, ownPorts } from "../../deploy/cluster/ports.ts";

/** Test files run beside each other, and what one has drawn is used only later: each that runs at a time has ports of its own. */
const shares = 16;

export async function freePorts(count: number): Promise<number[]> {
  const width = (ownPorts.to - ownPorts.from) / shares;
  const from = ownPorts.from + (Number(process.env.VITEST_POOL_ID ?? 0) % shares) * width;
  return freeAmong(count, { from, to: from + width });
}
