/**
 * `node bench/shares.ts FILE.cpuprofile`: shows how a process's CPU time is distributed over its parts. Time in the engine and
 * in Node's own modules is attributed to the calling code; system calls on sockets are listed separately.
 */

import { readFile } from "node:fs/promises";
import { parseArgs } from "node:util";

interface ProfileNode {
  readonly id: number;
  readonly callFrame: { readonly functionName: string; readonly url: string };
  readonly children?: readonly number[];
}

interface CpuProfile {
  readonly nodes: readonly ProfileNode[];
  /** Ids of nodes. */
  readonly samples: readonly number[];
  /** Microseconds before each sample. */
  readonly timeDeltas: readonly number[];
}

/** A frame belongs to the first part whose pattern matches its URL; a stack belongs to its topmost frame that matches any. */
const parts: readonly (readonly [part: string, addresses: RegExp])[] = [
  ["HTTP/2 and gRPC framing", /node:internal\/http2|node:http2|@connectrpc\//],
  ["HTTP/1.1", /node:_http|node:http/],
  [
    "log and metrics",
    /sonic-boom|\/pino|request-log\.ts|src\/log|src\/ops\/|prom-client|answered-(request|call)\.ts/,
  ],
  ["JSON and validation", /fast-json-stringify|ajv/],
  ["Fastify and routes", /fastify|find-my-way|src\/gateway\/(?!admit)/],
  ["admission", /src\/admission\/|admit\.ts|rate-limiter-flexible|lru-cache/],
  ["protobuf messages", /@bufbuild\/|src\/rpc\/messages\.ts/],
  ["database driver", /node_modules\/pg/],
  ["batches and statements", /src\/storage\//],
  ["core", /src\/(core|rpc)\//],
  ["promises, ticks, timers", /task_queues|node:internal\/timers|node:timers/],
];

const inKernel = /^(writeUtf8String|writeLatin1String|writeAsciiString|writeBuffer|writev)$/;
const special: ReadonlyMap<string, string> = new Map([
  ["(garbage collector)", "garbage collection"],
  ["(program)", "the engine itself"],
]);

const { positionals } = parseArgs({ allowPositionals: true });
const [file] = positionals;
if (file === undefined) {
  process.stderr.write("node bench/shares.ts FILE.cpuprofile\n");
  process.exit(2);
}
const profile = JSON.parse(await readFile(file, "utf8")) as CpuProfile;
const callers = new Map<number, ProfileNode>();
for (const node of profile.nodes) for (const child of node.children ?? []) callers.set(child, node);

const partOf = new Map<number, string | null>();
for (const node of profile.nodes) partOf.set(node.id, part(node));

const spent = new Map<string, number>();
let total = 0;
for (const [index, id] of profile.samples.entries()) {
  const name = partOf.get(id);
  if (name === null || name === undefined) continue;
  const time = profile.timeDeltas[index] ?? 0;
  spent.set(name, (spent.get(name) ?? 0) + time);
  total += time;
}
for (const [name, time] of [...spent].sort(([, one], [, other]) => other - one)) {
  console.log(`${((time / total) * 100).toFixed(1).padStart(5)} %  ${name}`);
}

/** The part that a sample belongs to; null if the process was idle. */
function part(leaf: ProfileNode): string | null {
  const { functionName } = leaf.callFrame;
  if (functionName === "(idle)") return null;
  const known = special.get(functionName);
  if (known !== undefined) return known;
  let asked = "the rest";
  for (let node: ProfileNode | undefined = leaf; node !== undefined; node = callers.get(node.id)) {
    const { url } = node.callFrame;
    const found = parts.find(([, addresses]) => addresses.test(url));
    if (found !== undefined) {
      asked = found[0];
      break;
    }
  }
  if (!inKernel.test(functionName)) return asked;
  return asked === "database driver" ? "kernel: sockets to Postgres" : "kernel: sockets to clients";
}
