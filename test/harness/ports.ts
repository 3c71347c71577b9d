import { freePorts as freeAmong, ownPorts } from "../../deploy/cluster/ports.ts";

/** Test files run in parallel, and a port is used only some time after it was chosen: each vitest worker has its own range. */
const shares = 16;

export async function freePorts(count: number): Promise<number[]> {
  const width = (ownPorts.to - ownPorts.from) / shares;
  const from = ownPorts.from + (Number(process.env.VITEST_POOL_ID ?? 0) % shares) * width;
  return freeAmong(count, { from, to: from + width });
}
