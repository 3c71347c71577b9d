/** Several processes of the service on one Postgres. */

import { mkdir } from "node:fs/promises";
import path from "node:path";
import { ChildProgram } from "./child.ts";
import type { Endings } from "./endings.ts";
import { type ReadyService, startReady } from "./ready-service.ts";

/** The first process has both roles, the others only that of the API. */
export async function startFleet(
  size: number,
  settings: { readonly databaseUrl: string; readonly adminToken: string },
  directory: string,
  endings: Endings,
): Promise<ReadyService[]> {
  const processes: ReadyService[] = [];
  while (processes.length < size) {
    const own = path.join(directory, `process-${processes.length}`);
    await mkdir(own);
    const started = await startReady(
      own,
      {
        ROLES: processes.length === 0 ? "api,worker" : "api",
        DATABASE_URL: settings.databaseUrl,
        PHONEPROOF_ADMIN_TOKEN: settings.adminToken,
        LOG_LEVEL: "info",
      },
      ({ stop }) => endings.add(stop),
    );
    processes.push(started);
    const keeper = new ChildProgram("keeper.ts", [String(started.pid), own]);
    endings.add(() => started.stop().then(() => keeper.close()));
  }
  return processes;
}
