/** Starts the phoneproof command as a person or a script does. */

import { type ChildProcess, fork, spawn } from "node:child_process";
import { once } from "node:events";
import type { Socket } from "node:net";
import { fileURLToPath } from "node:url";
import { plainEnvironment } from "../harness/environment.ts";
import type { TestService } from "../harness/service.ts";
import type { Order } from "./command-host.ts";

export interface Finished {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Running {
  readonly child: ChildProcess;
  /** All of standard output so far. */
  stdout(): string;
  stderr(): string;
  /** Resolves when standard output has `count` lines, or with fewer when the command ends. */
  lines(count: number): Promise<string[]>;
  readonly finished: Promise<Finished>;
}

type Environment = Readonly<Record<string, string>>;

const root = fileURLToPath(new URL("../..", import.meta.url));
export const launcher = fileURLToPath(new URL("../../bin/phoneproof.mjs", import.meta.url));
const demo = fileURLToPath(new URL("../../src/cli/demo.ts", import.meta.url));

/** With the compile cache, as in npm's scripts. */
function commandEnvironment(environment: Environment): Record<string, string> {
  const { NODE_COMPILE_CACHE = "" } = process.env;
  return plainEnvironment({ NODE_COMPILE_CACHE, TZ: "Asia/Seoul", ...environment });
}

export function towards(service: TestService): Environment {
  return { PHONEPROOF_ADDRESS: service.grpcAddress, PHONEPROOF_TOKEN: service.adminToken };
}

export function startNode(args: readonly string[], environment: Environment, cwd = root): Running {
  return startProgram([process.execPath, ...args], environment, cwd);
}

/** Starts a program with its arguments. */
export function startProgram(
  [program = "", ...args]: readonly string[],
  environment: Environment,
  cwd = root,
): Running {
  const child = spawn(program, args, { cwd, env: commandEnvironment(environment) });
  let stdout = "";
  let stderr = "";
  let waiting: (() => void)[] = [];
  const wake = () => {
    const woken = waiting;
    waiting = [];
    for (const resolve of woken) resolve();
  };
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    stdout += text;
    wake();
  });
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    stderr += text;
  });
  let closed = false;
  const finished = once(child, "close").then(([code]): Finished => {
    closed = true;
    wake();
    return { code: code as number | null, stdout, stderr };
  });
  return {
    child,
    stdout: () => stdout,
    stderr: () => stderr,
    finished,
    async lines(count) {
      while (!closed && stdout.split("\n").length <= count) {
        await new Promise<void>((resolve) => {
          waiting.push(resolve);
        });
      }
      return stdout.split("\n").slice(0, count);
    },
  };
}

export function startCommand(args: readonly string[], environment: Environment, cwd = root): Running {
  return startNode([launcher, ...args], environment, cwd);
}

export function startDemo(environment: Environment, args: readonly string[] = []): Running {
  return startNode([demo, ...args], environment);
}

/** Runs the command in its own process until it ends; `input` is its standard input. */
export async function runProcess(
  args: readonly string[],
  environment: Environment,
  options: { input?: string; cwd?: string } = {},
): Promise<Finished> {
  const { child, finished } = startCommand(args, environment, options.cwd);
  child.stdin?.on("error", () => {});
  child.stdin?.end(options.input ?? "");
  return finished;
}

/** Runs the command without standard input in a process that is reused for other commands, which is faster. */
export async function run(args: readonly string[], environment: Environment, cwd = root): Promise<Finished> {
  const host = idleHosts.pop() ?? startHost();
  const answer = once(host, "message");
  const order: Order = { args, environment: commandEnvironment(environment), cwd };
  host.send(order);
  const [finished] = (await answer) as [Finished];
  idleHosts.push(host);
  return finished;
}

/** Kept until this process ends. */
const idleHosts: ChildProcess[] = [];

function startHost(): ChildProcess {
  const host = fork(fileURLToPath(new URL("command-host.ts", import.meta.url)), {
    execPath: process.execPath,
    execArgv: [],
    env: commandEnvironment({}),
    // Nothing is written to standard output, but some commands refuse to run if nobody could read it.
    stdio: ["ignore", "pipe", "ignore", "ipc"],
  });
  host.unref();
  (host.stdout as Socket | null)?.unref();
  host.channel?.unref();
  host.on("exit", (code) => {
    throw new Error(`the process for commands ended with ${code}`);
  });
  return host;
}

/**
 * The lines of the command's output for people in a terminal of so many columns; throws if it fails, or says more beside them than that
 * there are further ones.
 */
export async function linesOf(
  columns: number,
  args: readonly string[],
  environment: Environment,
): Promise<string[]> {
  const { code, stdout, stderr } = await run(args, { ...environment, COLUMNS: String(columns) });
  if (code !== 0 || !/^(There may be more: [^\n]+\n)?$/.test(stderr)) {
    throw new Error(`phoneproof ${args.join(" ")}: exit ${code}, ${stdout} ${stderr}`);
  }
  return stdout.trimEnd().split("\n");
}

/** The parsed output of the command with `--json`; throws unless it is exactly one line and the exit code is 0. */
export async function answerOf(args: readonly string[], environment: Environment) {
  const { code, stdout, stderr } = await run([...args, "--json"], environment);
  if (code !== 0 || stderr !== "" || stdout.indexOf("\n") !== stdout.length - 1) {
    throw new Error(`phoneproof ${args.join(" ")}: exit ${code}, ${stdout} ${stderr}`);
  }
  // biome-ignore lint/suspicious/noExplicitAny: tests compare it with the expected value.
  return JSON.parse(stdout) as any;
}
