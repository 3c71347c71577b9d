/** npm run start:cluster: starts the cluster, lists what runs where, and takes commands until Ctrl-C. */

import { once } from "node:events";
import { createServer } from "node:net";
import { createInterface } from "node:readline";
import { type Cluster, NotNow, startCluster } from "./cluster.ts";
import { findPrograms, MissingPrograms } from "./programs.ts";

const help = [
  "  roll        restarts each process, one after the other",
  "  failover    kills the primary and promotes the standby",
  "  rejoin      gives the primary a new standby",
  "  status      shows what runs where",
  "  Ctrl-C      stops everything",
];

const say = (line: string) => void process.stdout.write(`${line}\n`);
const tell = (step: string) => say(`  ${new Date().toISOString().slice(11, 23)}  ${step}`);

async function execute(cluster: Cluster, command: string): Promise<void> {
  if (command === "roll") await cluster.roll();
  else if (command === "failover") await cluster.failOver();
  else if (command === "rejoin") await cluster.rejoin();
  else if (command === "status") for (const line of await cluster.describe()) say(`  ${line}`);
  else {
    for (const line of help) say(line);
    return;
  }
  say(`  ${command}: done`);
}

function portIn(name: "PORT" | "GRPC_PORT", otherwise: number): number {
  const port = Number(process.env[name] || otherwise);
  if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new NotNow(`${name} must be a port`);
  return port;
}

/** Checks that the port is free: HAProxy would report this only in its own log, which is deleted with all other files. */
async function freePortIn(name: "PORT" | "GRPC_PORT", otherwise: number): Promise<number> {
  const port = portIn(name, otherwise);
  const server = createServer().listen(port, "127.0.0.1");
  try {
    await once(server, "listening");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
    throw new NotNow(`${name}: port ${port} on 127.0.0.1 is in use by another program`);
  }
  server.close();
  await once(server, "close");
  return port;
}

async function main(): Promise<void> {
  const stopped = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => stopped.abort());
  const programs = findPrograms();
  const cluster = await startCluster({
    programs,
    httpPort: await freePortIn("PORT", 8080),
    grpcPort: await freePortIn("GRPC_PORT", 50_051),
    adminToken: process.env.PHONEPROOF_ADMIN_TOKEN || undefined,
    logLevel: process.env.LOG_LEVEL || "info",
    tell,
  });
  try {
    if (!stopped.signal.aborted) await takeCommands(cluster, stopped.signal);
  } finally {
    say("  stopping everything");
    await cluster.stop();
  }
}

async function takeCommands(cluster: Cluster, stopped: AbortSignal): Promise<void> {
  say("");
  for (const line of await cluster.describe()) say(`  ${line}`);
  say("");
  say("  To use the command, in another terminal:");
  say(
    `    export PHONEPROOF_ADDRESS=${cluster.grpcAddress} PHONEPROOF_TOKEN=$(cat "${cluster.directory}/admin-token")`,
  );
  say("");
  for (const line of help) say(line);
  say("");
  const lines = createInterface({ input: process.stdin });
  const ended = new Promise<void>((resolve) => {
    stopped.addEventListener("abort", () => resolve(), { once: true });
  });
  let last = Promise.resolve();
  lines.on("line", (line) => {
    last = last
      .then(() => (stopped.aborted ? undefined : execute(cluster, line.trim())))
      .catch((error: Error) => say(`  ${line.trim()}: failed: ${error.message}`));
  });
  if (stopped.aborted) return;
  await ended;
  lines.close();
  await last;
}

try {
  await main();
} catch (error) {
  const expected = error instanceof MissingPrograms || error instanceof NotNow;
  process.stderr.write(`start:cluster: ${expected ? error.message : ((error as Error).stack ?? error)}\n`);
  process.exitCode = 1;
}
