/**
 * A process that runs one command after another, because starting a process takes most of a command's time. It reports a
 * command as ended when nothing is left that would keep a process alive.
 */

import { setTimeout as delay } from "node:timers/promises";
import { execute } from "../../src/cli/execute.ts";
import type { Finished } from "./command.ts";

export interface Order {
  readonly args: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly cwd: string;
}

process.on("message", async (order: Order) => {
  process.send?.(await runOrder(order));
});

async function runOrder({ args, environment, cwd }: Order): Promise<Finished> {
  const own = process.getActiveResourcesInfo();
  process.chdir(cwd);
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, environment);
  process.exitCode = undefined;
  const [stdout, stderr] = [capture(process.stdout), capture(process.stderr)];
  try {
    await execute(args);
    await untilOnly(own);
  } finally {
    stdout.end();
    stderr.end();
  }
  return { code: Number(process.exitCode ?? 0), stdout: stdout.text(), stderr: stderr.text() };
}

async function untilOnly(own: readonly string[]): Promise<void> {
  const deadline = performance.now() + 60_000;
  while (process.getActiveResourcesInfo().length > own.length) {
    if (performance.now() > deadline) throw new Error(`kept alive by ${process.getActiveResourcesInfo()}`);
    await delay(1);
  }
}

function capture(stream: NodeJS.WriteStream): { text(): string; end(): void } {
  const { write } = stream;
  let text = "";
  stream.write = (chunk: Uint8Array | string) => {
    text += Buffer.from(chunk).toString("utf8");
    return true;
  };
  return {
    text: () => text,
    end: () => {
      stream.write = write;
    },
  };
}
