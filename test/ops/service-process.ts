/** The service as a separate process, whose standard output a test may leave unread. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, constants, mkdtempSync, openSync, rmSync } from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { Readable } from "node:stream";
import { onTestFinished, vi } from "vitest";
import { plainEnvironment } from "../harness/environment.ts";
import { freePorts } from "../harness/ports.ts";

const program = path.join(import.meta.dirname, "../../bin/start.mjs");

export interface ServiceProcess {
  readonly child: ChildProcess;
  readonly httpUrl: string;
  readonly opsUrl: string;
  /** Standard output, which flows into `text` unless it is paused; empty if the output is a file. */
  readonly output: Readable;
  text(): string;
  /** Resolves with the exit code. */
  ended(): Promise<number | null>;
}

/** The kind of standard output: Node gives its child processes a socket, shells and containers a pipe. */
export type OutputKind = "socket" | "pipe";

/** Starts the service and resolves once it is ready. It is killed at the end of the test. */
export async function startProcess(
  environment: Record<string, string>,
  kind: OutputKind | { readonly file: string } = "socket",
): Promise<ServiceProcess> {
  // Ports are chosen here because a log that nobody reads cannot say which ones the service took.
  const [httpPort, opsPort] = await freePorts(2);
  const pipe = kind === "pipe" ? openPipe() : undefined;
  const file = typeof kind === "object" ? openSync(kind.file, "a") : undefined;
  const child = spawn(process.execPath, [program], {
    stdio: ["ignore", pipe?.writeEnd ?? file ?? "pipe", "inherit"],
    env: plainEnvironment({
      PORT: String(httpPort),
      GRPC_PORT: "0",
      OPS_PORT: String(opsPort),
      PHONEPROOF_ADMIN_TOKEN: "an-admin-token-that-is-long-enough",
      DRAIN_SECONDS: "0",
      ...environment,
    }),
  });
  if (pipe) closeSync(pipe.writeEnd);
  if (file !== undefined) closeSync(file);
  const exited = once(child, "exit") as Promise<[number | null]>;
  onTestFinished(async () => {
    child.kill("SIGKILL");
    await exited;
    output?.destroy();
  });
  const output = pipe?.readEnd ?? child.stdout;
  let text = "";
  output?.setEncoding("utf8").on("data", (chunk: string) => {
    text += chunk;
  });
  const opsUrl = `http://127.0.0.1:${opsPort}`;
  await vi.waitUntil(
    async () => {
      if (child.exitCode !== null) throw new Error(`the service has ended: ${text}`);
      return (await fetch(`${opsUrl}/readyz`).catch(() => undefined))?.status === 200;
    },
    { timeout: 60_000, interval: 50 },
  );
  return {
    child,
    httpUrl: `http://127.0.0.1:${httpPort}`,
    opsUrl,
    output: output ?? Readable.from([]),
    text: () => text,
    ended: async () => (await exited)[0],
  };
}

export function openPipe(): { readonly readEnd: net.Socket; readonly writeEnd: number } {
  const directory = mkdtempSync(path.join(os.tmpdir(), "phoneproof-pipe-"));
  const file = path.join(directory, "pipe");
  execFileSync("mkfifo", [file]);
  const readEnd = new net.Socket({
    fd: openSync(file, constants.O_RDONLY | constants.O_NONBLOCK),
    readable: true,
    writable: false,
  });
  const writeEnd = openSync(file, constants.O_WRONLY);
  rmSync(directory, { recursive: true });
  return { readEnd, writeEnd };
}
