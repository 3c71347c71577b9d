/** The service as a separate process, as in production, with an output and a memory of its own. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { atFileEnd } from "../harness/endings.ts";
import { plainEnvironment } from "../harness/environment.ts";
import type { TestService } from "../harness/service.ts";

export interface ServiceProcess {
  readonly pid: number;
  readonly httpUrl: string;
  /** `host:port` */
  readonly grpcAddress: string;
  readonly opsUrl: string;
  /** Everything it has written so far to standard output and standard error. */
  output(): string;
  /** Resident memory. */
  memoryMiB(): Promise<number>;
  stop(): Promise<void>;
}

const program = path.join(import.meta.dirname, "../../bin/start.mjs");

/** Another process with the database and the admin token of a service under test. */
export async function startServiceProcess(
  { databaseUrl, adminToken }: TestService,
  environment: Record<string, string> = {},
): Promise<ServiceProcess> {
  const child = spawn(process.execPath, [program], {
    env: plainEnvironment({
      PORT: "0",
      GRPC_PORT: "0",
      OPS_PORT: "0",
      DATABASE_URL: databaseUrl,
      PHONEPROOF_ADMIN_TOKEN: adminToken,
      ...environment,
    }),
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  }
  const exited = once(child, "exit");
  // After the exit, when all its output has been read.
  const closed = once(child, "close");
  const stop = async () => {
    child.kill("SIGTERM");
    await closed;
  };
  atFileEnd(stop);
  const running = () =>
    output
      .split("\n")
      .slice(0, -1)
      .find((line) => line.includes('"phoneproof is running"'));
  while (running() === undefined) {
    if (child.exitCode !== null) throw new Error(`the service did not start: ${output}`);
    await Promise.race([once(child.stdout, "data"), exited]);
  }
  const { http, grpc, ops } = JSON.parse(running() ?? "");
  return {
    pid: child.pid ?? 0,
    httpUrl: http.replace("localhost", "127.0.0.1"),
    grpcAddress: grpc,
    opsUrl: `http://${ops}`,
    output: () => output,
    async memoryMiB() {
      const metrics = await (await fetch(`http://${ops}/metrics`)).text();
      return Number(/^process_resident_memory_bytes (\S+)$/m.exec(metrics)?.[1]) / 2 ** 20;
    },
    stop,
  };
}
