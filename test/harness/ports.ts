import { freePorts as freeAmong } from "../../deploy/cluster/ports.ts";

/** Apart from those of deploy/cluster, which a test may start, and like them below the ephemeral ports. `to` is exclusive. */
const testPorts = { from: 10_000, to: 20_000 };
/** Test files run in parallel, and a port is used only some time after it was chosen: each vitest worker has its own range. */
const shares = 16;

export async function freePorts(count: number): Promise<number[]> {
  const width = (testPorts.to - testPorts.from) / shares;
  const from = testPorts.from + (Number(process.env.VITEST_POOL_ID ?? 0) % shares) * width;
  return freeAmong(count, { from, to: from + width });
}
