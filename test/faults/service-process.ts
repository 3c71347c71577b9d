/** Runs `bin/start.mjs` as a separate process and restarts it when it dies, as an init system would. */

import { closeSync, openSync, readSync, statSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { startDaemon } from "../../bench/child.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { signalIfThere } from "./database-server.ts";

export const program = path.join(import.meta.dirname, "../../bin/start.mjs");
const startTimeoutMs = 60_000;

/** One run of the process, from start to exit. */
export interface ServiceLife {
  readonly name: string;
  readonly pid: number;
  readonly httpUrl: string;
  readonly grpcAddress: string;
  readonly opsUrl: string;
  /** Whether it was killed: its calls in progress may remain unanswered. */
  killed: boolean;
  /** Whether the balancer has taken it out of rotation. */
  out: boolean;
  readonly exited: Promise<string>;
}

export interface ServiceProcess {
  readonly name: string;
  /** Undefined while the process is not running. */
  life: ServiceLife | undefined;
  /** Kills the process; it is restarted automatically. */
  kill(): void;
  /** Shuts the process down cleanly and starts it again. */
  restart(): Promise<void>;
  /** Resolves when the process is running. */
  running(): Promise<ServiceLife>;
  stop(): Promise<void>;
}

export interface ServiceOptions {
  readonly name: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly execArgv?: readonly string[];
  readonly logFile: string;
  /** Called for each violation of an invariant. */
  readonly onViolation: (text: string) => void;
}

export async function startServiceProcess(options: ServiceOptions): Promise<ServiceProcess> {
  const { name, logFile, onViolation } = options;
  const environment = plainEnvironment({
    PORT: "0",
    GRPC_PORT: "0",
    OPS_PORT: "0",
    LOG_LEVEL: "info",
    ...options.environment,
  });
  let lives = 0;
  let stopping = false;
  let ending = false;
  let logged = 0;
  const endAtOnce = () => service.life && signalIfThere(service.life.pid, "SIGKILL");

  /** Restarts the process forever: a start may fail, for example while the database is away. */
  async function live(): Promise<void> {
    while (!stopping) {
      const daemon = startDaemon({
        program,
        execArgv: options.execArgv ?? [],
        environment,
        outputFile: logFile,
      });
      let exit: string | undefined;
      void daemon.exited.then((how) => {
        exit = how;
      });
      const endEarly = () => signalIfThere(daemon.pid, "SIGKILL");
      process.once("exit", endEarly);
      const from = statSync(logFile).size;
      const addresses = await readAddresses(logFile, from, () => exit !== undefined);
      if (addresses !== undefined && exit === undefined) {
        lives += 1;
        const life: ServiceLife = {
          name: `${name}#${lives}`,
          pid: daemon.pid,
          ...addresses,
          killed: false,
          out: false,
          exited: daemon.exited,
        };
        service.life = life;
        const how = await daemon.exited;
        service.life = undefined;
        if (!life.killed && !ending) onViolation(`${life.name} ended unexpectedly: ${how}`);
        if (ending && how !== "it ended with exit code 0")
          onViolation(`${life.name} did not end cleanly: ${how}`);
        ending = false;
      } else {
        await daemon.exited;
        await delay(50);
      }
      process.off("exit", endEarly);
      reportErrors();
    }
  }

  /** Reports log lines of level error and above, which only a fault of the service itself causes. */
  function reportErrors(): void {
    const text = readFrom(logFile, logged);
    logged += Buffer.byteLength(text);
    for (const line of text.split("\n")) {
      if (/^\{"level":[56]0,/.test(line)) onViolation(`${name} logged ${line.slice(0, 1_000)}`);
    }
  }

  const service: ServiceProcess = {
    name,
    life: undefined,
    kill() {
      if (service.life === undefined) return;
      service.life.killed = true;
      signalIfThere(service.life.pid, "SIGKILL");
    },
    async restart() {
      const { life } = service;
      if (life === undefined) return;
      ending = true;
      signalIfThere(life.pid, "SIGTERM");
      await life.exited;
      await service.running();
    },
    async running() {
      const deadline = performance.now() + startTimeoutMs;
      while (service.life === undefined || service.life.killed) {
        if (performance.now() > deadline) throw new Error(`${name} does not start: see ${logFile}`);
        await delay(10);
      }
      return service.life;
    },
    async stop() {
      stopping = true;
      if (service.life !== undefined) {
        ending = true;
        // As Ctrl-C does: there are no clients left, so no draining is needed.
        signalIfThere(service.life.pid, "SIGINT");
      }
      await living;
      process.off("exit", endAtOnce);
    },
  };
  closeSync(openSync(logFile, "a"));
  process.once("exit", endAtOnce);
  const living = live();
  await service.running();
  return service;
}

type Addresses = Pick<ServiceLife, "httpUrl" | "grpcAddress" | "opsUrl">;

/** Undefined if the process ended without reporting that it is running. */
export async function readAddresses(
  logFile: string,
  from: number,
  hasEnded: () => boolean,
): Promise<Addresses | undefined> {
  for (;;) {
    const ended = hasEnded();
    const line = readFrom(logFile, from)
      .split("\n")
      .find((text) => text.endsWith('"msg":"phoneproof is running"}'));
    if (line !== undefined) {
      const { http, grpc, ops } = JSON.parse(line) as { http: string; grpc: string; ops: string };
      return { httpUrl: http.replace("localhost", "127.0.0.1"), grpcAddress: grpc, opsUrl: `http://${ops}` };
    }
    if (ended) return undefined;
    await delay(20);
  }
}

function readFrom(file: string, offset: number): string {
  const fd = openSync(file, "r");
  try {
    const buffer = Buffer.alloc(Math.max(0, statSync(file).size - offset));
    return buffer.toString("utf8", 0, readSync(fd, buffer, 0, buffer.length, offset));
  } finally {
    closeSync(fd);
  }
}
