/** How long a start takes, with an existing embedded database and with a Postgres that is already running. */

import path from "node:path";
import { startEmbeddedPostgres } from "../src/storage/embedded/embedded-postgres.ts";
import type { Endings } from "./endings.ts";
import { median } from "./load.ts";
import { databaseUrlOf, startReady } from "./ready-service.ts";

export interface StartTimes {
  /** Milliseconds until ready; medians. */
  readonly embeddedMs: number;
  readonly besidePostgresMs: number;
}

export const startGoals: StartTimes = { embeddedMs: 2_000, besidePostgresMs: 1_000 };

const starts = 3;

/** Leaves the databases in `directory`. */
export async function measureStarts(directory: string, endings: Endings): Promise<StartTimes> {
  const embedded = { DATA_DIR: path.join(directory, "start-embedded") };
  const embeddedMs = await medianStart(directory, embedded, endings);
  const postgres = await startEmbeddedPostgres({
    dataDir: path.join(directory, "start-beside"),
    transport: "tcp",
  });
  endings.add(() => postgres.stop());
  const beside = { DATABASE_URL: databaseUrlOf(postgres.connection), PHONEPROOF_ADMIN_TOKEN: adminToken };
  const besidePostgresMs = await medianStart(directory, beside, endings);
  await postgres.stop();
  return { embeddedMs, besidePostgresMs };
}

/** Only for these services, which nobody else can reach. */
const adminToken = "start-time-bench-token-of-no-other-use";

async function medianStart(
  directory: string,
  settings: Readonly<Record<string, string>>,
  endings: Endings,
): Promise<number> {
  const times: number[] = [];
  // The first start creates the database and is not counted.
  for (let start = 0; start <= starts; start++) {
    const service = await startReady(directory, settings, ({ stop }) => endings.add(stop));
    await service.stop();
    if (start > 0) times.push(service.readyAfterMs);
  }
  return median(times);
}
