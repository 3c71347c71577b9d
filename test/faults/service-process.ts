/** `src/start.ts` as a process of its own, started again when it dies, as an init system would. */

import { closeSync, openSync, readSync, statSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { startDaemon } from "../../bench/child.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { signalIfThere } from "./database-server.ts";

export const program = path.join(import.meta.dirname, "../../src/start.ts");
const startPatienceMs = 60_000;

/** One life of a process. */
export interface ServiceLife {
  readonly name: string;
  readonly pid: number;
  readonly httpUrl: string;
  readonly grpcAddress: string;
  readonly opsUrl: string;
  /** It was killed: what was under way on it may have no answer. */
  killed: boolean;
  /** A balancer sends it nothing more. */
  out: boolean;
  readonly exited: Promise<string>;
}

export interface ServiceProcess {
  readonly name: string;
  /** Undefined while it is not there. */
  life: ServiceLife | undefined;
  /** Kills it; it comes back by itself. */
  kill(): void;
  /** Ends it in order and starts it again. */
  restart(): Promise<void>;
  /** Resolves when it runs. */
  running(): Promise<ServiceLife>;
  stop(): Promise<void>;
}

export interface ServiceOptions {
  readonly name: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly execArgv?: readonly string[];
  readonly logFile: string;
  /** What must never happen. */
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

  /** Every start that fails, as it does while the database is away, is followed by another. */
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
        if (!life.killed && !ending) onViolation(`${life.name} ended by itself: ${how}`);
        if (ending && how !== "it ended with exit code 0")
          onViolation(`${life.name} did not end well: ${how}`);
        ending = false;
      } else {
        await daemon.exited;
        await delay(50);
      }
      process.off("exit", endEarly);
      tellFaults();
    }
  }

  /** Lines of the log that only a fault of the service itself makes. */
  function tellFaults(): void {
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
      const deadline = performance.now() + startPatienceMs;
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
        // As Ctrl-C does: nobody is left who would have to hear of it first.
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

/** Undefined where it has ended without saying that it runs. */
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
