/** One process of the service, supervised as by systemd or a container runtime: restarted if it dies. */

import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { endProcess, type Process, startProcess, until } from "./processes.ts";

export interface ServiceProcess {
  readonly name: string;
  readonly role: "api" | "worker";
  readonly httpPort: number;
  readonly grpcPort: number;
  readonly opsPort: number;
  pid(): number;
  /** Resolves once /readyz succeeds. */
  ready(): Promise<void>;
  /** Stops the process; resolves when it has ended, with its exit code or signal. */
  end(): Promise<string>;
  start(): void;
}

const program = path.join(import.meta.dirname, "../../bin/start.mjs");
const restartMs = 1_000;

export function startServiceProcess(options: {
  readonly name: string;
  readonly role: "api" | "worker";
  readonly ports: { readonly httpPort: number; readonly grpcPort: number; readonly opsPort: number };
  readonly settings: Readonly<Record<string, string>>;
  readonly logFile: string;
  readonly tell: (step: string) => void;
}): ServiceProcess {
  const { name, role, ports, tell } = options;
  const { PATH = "", HOME = "", TMPDIR = "" } = process.env;
  const env = {
    ...{ PATH, HOME, TMPDIR },
    ...options.settings,
    ROLES: role,
    PORT: String(ports.httpPort),
    GRPC_PORT: String(ports.grpcPort),
    OPS_PORT: String(ports.opsPort),
  };
  let wanted = true;
  let current = launch();

  function launch(): Process {
    const started = startProcess(
      { file: process.execPath, args: ["--disable-sigusr1", "--max-semi-space-size=16", program], env },
      options.logFile,
    );
    void started.ended.then(async (how) => {
      if (!wanted) return;
      tell(`${name}, pid ${started.pid}, ended unexpectedly: ${how}`);
      await delay(restartMs);
      // Meanwhile it may have been started again by hand: a second one would find the ports taken.
      if (wanted && current === started) current = launch();
    });
    return started;
  }

  return {
    name,
    role,
    ...ports,
    pid: () => current.pid,
    ready: () =>
      until(`${name} ready (see ${options.logFile})`, 60_000, async () => {
        const answer = await fetch(`http://127.0.0.1:${ports.opsPort}/readyz`, {
          signal: AbortSignal.timeout(3_000),
        });
        await answer.text();
        if (!answer.ok) throw new Error(`it answers ${answer.status}`);
      }),
    async end() {
      wanted = false;
      await endProcess(current, [["SIGTERM", 20_000]]);
      return current.ended;
    },
    start() {
      wanted = true;
      current = launch();
    },
  };
}
