import { afterEach } from "vitest";
import { byTheClock, installClock, resetClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";

/**
 * Starts two processes, `here` and `there`, on one database, whose clock is set back to the real time after each test. `clocked`
 * are the settings with which `service`, which has the real time, can start another on the clock.
 */
export async function startClockedPair() {
  const service = await startTestService({ ROLES: "api" });
  await installClock(service.db);
  const clocked = { DATABASE_URL: byTheClock(service.databaseUrl) };
  const [here, there] = await Promise.all([service.startAnother(clocked), service.startAnother(clocked)]);
  afterEach(() => resetClock(service.db));
  return { service, clocked, here, there };
}
