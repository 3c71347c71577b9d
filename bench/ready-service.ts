/** Starts a service with given settings and measures the time until it is ready. */

import { readFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import { freePorts } from "../deploy/cluster/ports.ts";
import { type Daemon, startDaemon } from "./child.ts";
import { startFlags } from "./start-flags.ts";

export interface ReadyService extends Daemon {
  readonly httpPort: number;
  /** `host:port` */
  readonly grpcAddress: string;
  /** From starting the process to its first successful answer at /readyz. */
  readonly readyAfterMs: number;
}

const root = path.join(import.meta.dirname, "..");
const timeoutMs = 60_000;
const pollMs = 5;

/**
 * Starts it on ports of its own, with its output in `directory`. It gets none of the caller's settings: a DATABASE_URL or
 * another log level would change what is measured. `onSpawn` must make sure that the process ends with the run.
 */
export async function startReady(
  directory: string,
  settings: Readonly<Record<string, string>>,
  onSpawn: (daemon: Daemon) => void,
  execArgv: readonly string[] = [],
): Promise<ReadyService> {
  const [port = 0, grpcPort = 0, opsPort = 0] = await freePorts(3);
  const outputFile = path.join(directory, "service.log");
  const { PATH = "", HOME = "", TMPDIR = "" } = process.env;
  const startedAt = performance.now();
  const daemon = startDaemon({
    program: path.join(root, "bin/start.mjs"),
    execArgv: [...startFlags, ...execArgv],
    outputFile,
    environment: {
      PATH,
      HOME,
      TMPDIR,
      NODE_ENV: "production",
      PORT: String(port),
      GRPC_PORT: String(grpcPort),
      OPS_PORT: String(opsPort),
      ...settings,
    },
  });
  onSpawn(daemon);
  let ended: string | undefined;
  daemon.exited.then((how) => {
    ended = how;
  });
  while (!(await isReady(opsPort))) {
    if (ended !== undefined || performance.now() - startedAt > timeoutMs) {
      await daemon.stop();
      throw new Error(`the service did not start (${ended ?? "no answer"}): ${await lastLines(outputFile)}`);
    }
    await delay(pollMs);
  }
  const readyAfterMs = performance.now() - startedAt;
  return { ...daemon, httpPort: port, grpcAddress: `127.0.0.1:${grpcPort}`, readyAfterMs };
}

const isReady = (port: number) =>
  fetch(`http://127.0.0.1:${port}/readyz`).then(
    ({ ok }) => ok,
    () => false,
  );

const lastLines = async (file: string) =>
  (await readFile(file, "utf8")).trim().split("\n").slice(-3).join("\n");

export function databaseUrlOf({ host, port, user, password, database }: pg.ClientConfig): string {
  const url = new URL(`postgres://${host}:${port}/${database}`);
  Object.assign(url, { username: user, password });
  return url.href;
}
