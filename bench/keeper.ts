/**
 * Cleans up after a benchmark that is killed and so cannot do it itself. The arguments are the service's process id and the
 * run's directory.
 */

import { rm } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";

const [pid = 0, directory = ""] = [Number(process.argv[2]), process.argv[3]];
const pollMs = 100;
/** The service forces its own exit after 14 s. */
const timeoutMs = 20_000;

function signal(name: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}

process.on("disconnect", async () => {
  signal("SIGTERM");
  for (let waited = 0; waited < timeoutMs && signal(0); waited += pollMs) await delay(pollMs);
  signal("SIGKILL");
  await rm(directory, { recursive: true, force: true, maxRetries: 3 });
  process.exit();
});
