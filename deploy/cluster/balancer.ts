/** HAProxy in front of the processes with role api. */

import { writeFile } from "node:fs/promises";
import net from "node:net";
import path from "node:path";
import { endProcess, type Process, startProcess, until } from "./processes.ts";

export interface Backend {
  readonly name: string;
  readonly httpPort: number;
  readonly grpcPort: number;
  readonly opsPort: number;
}

export interface Balancer {
  readonly pid: number;
  /** HAProxy's runtime API socket. */
  readonly socket: string;
  /** Stops sending new requests to a backend; resolves when it has no requests in progress except gRPC streams. */
  drain(name: string): Promise<void>;
  /** Sends requests to the backend again; resolves once HAProxy considers it up. */
  admit(name: string): Promise<void>;
  stop(): Promise<void>;
}

/** The answer to merchants if no process is available, in the format of the service's own errors. */
const unavailable = [
  "HTTP/1.1 503 Service Unavailable",
  "content-type: application/json; charset=utf-8",
  "retry-after: 1",
  "",
  '{"error":{"code":"service_unavailable","message":"No process can answer at the moment. Try again with the same Idempotency-Key."}}',
].join("\r\n");

/** HAProxy splits unquoted words at spaces, and takes single quotes as a shell does. */
const quoted = (file: string) => `'${file.replaceAll("'", "'\\''")}'`;

function configurationOf(options: {
  readonly socket: string;
  readonly unavailableFile: string;
  readonly httpPort: number;
  readonly grpcPort: number;
  readonly backends: readonly Backend[];
}): string {
  const { socket, unavailableFile, httpPort, grpcPort, backends } = options;
  const servers = (port: "httpPort" | "grpcPort") =>
    backends.map((backend) => {
      const check = `check port ${backend.opsPort} inter 500ms fastinter 200ms fall 2 rise 1`;
      return `  server ${backend.name} 127.0.0.1:${backend[port]} ${check}`;
    });
  return [
    "global",
    `  stats socket ${quoted(socket)} mode 600 level admin`,
    "  hard-stop-after 10s",
    "",
    "defaults",
    "  timeout connect 2s",
    "  timeout client 75s",
    // Longer than any call may take, and longer than the interval of the verification window's heartbeat events.
    "  timeout server 30s",
    "  timeout check 3s",
    "  retries 3",
    "  option redispatch 1",
    "  balance leastconn",
    // Checks readiness, not liveness: a process that is starting or has no database gets no requests.
    "  option httpchk GET /readyz",
    "",
    "frontend merchants",
    "  mode http",
    `  bind 127.0.0.1:${httpPort}`,
    // Clients' own X-Forwarded-For is removed, because the service trusts this proxy's.
    "  http-request del-header x-forwarded-for",
    "  option forwardfor",
    "  default_backend api",
    "",
    "backend api",
    "  mode http",
    ...[502, 503, 504].map((status) => `  errorfile ${status} ${quoted(unavailableFile)}`),
    ...servers("httpPort"),
    "",
    // Plain TCP, since streams stay open for days and both ends check their connections by pings.
    "frontend internal",
    "  mode tcp",
    `  bind 127.0.0.1:${grpcPort}`,
    "  timeout client 24h",
    "  default_backend grpc",
    "",
    "backend grpc",
    "  mode tcp",
    "  timeout server 24h",
    // Not the address that the service trusts as a proxy's: here clients' own X-Forwarded-For is not removed.
    "  source 127.0.0.2",
    ...servers("grpcPort"),
    "",
  ].join("\n");
}

export async function startBalancer(options: {
  readonly directory: string;
  readonly binary: string;
  readonly httpPort: number;
  readonly grpcPort: number;
  readonly backends: readonly Backend[];
}): Promise<Balancer> {
  const { directory, binary } = options;
  const socket = path.join(directory, "haproxy.sock");
  const configuration = path.join(directory, "haproxy.cfg");
  const unavailableFile = path.join(directory, "unavailable.http");
  await writeFile(unavailableFile, unavailable);
  await writeFile(configuration, configurationOf({ ...options, socket, unavailableFile }));
  const balancer: Process = startProcess(
    { file: binary, args: ["-W", "-db", "-f", configuration] },
    path.join(directory, "log", "haproxy.log"),
  );
  const command = (line: string) => answerTo(socket, line);
  await until("HAProxy", 10_000, () => command("show info"));

  async function setState(name: string, state: "drain" | "ready"): Promise<void> {
    for (const backend of ["api", "grpc"]) await command(`set server ${backend}/${name} state ${state}`);
  }

  /** The columns of a server's line in HAProxy's statistics. */
  async function statistics(backend: string, name: string): Promise<Record<string, string>> {
    const [header = "", ...lines] = (await command("show stat")).split("\n");
    const columns = header.replace(/^# /, "").split(",");
    const values = lines
      .map((line) => line.split(","))
      .find(([of, server]) => of === backend && server === name);
    return Object.fromEntries(columns.map((column, index) => [column, values?.[index] ?? ""]));
  }

  return {
    pid: balancer.pid,
    socket,
    async drain(name) {
      await setState(name, "drain");
      await until(`${name} without calls`, 15_000, async () => {
        const { scur } = await statistics("api", name);
        if (scur !== "0") throw new Error(`${scur} in progress`);
      });
    },
    async admit(name) {
      await setState(name, "ready");
      await until(`${name} in use by HAProxy`, 15_000, async () => {
        for (const backend of ["api", "grpc"]) {
          const { status } = await statistics(backend, name);
          if (status !== "UP") throw new Error(`it is ${status}`);
        }
      });
    },
    stop: () => endProcess(balancer, [["SIGTERM", 3_000]]),
  };
}

/** Sends one line to HAProxy's runtime API and returns the answer. */
function answerTo(socket: string, line: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let answer = "";
    net
      .connect(socket, function (this: net.Socket) {
        this.end(`${line}\n`);
      })
      .setEncoding("utf8")
      .on("data", (text) => {
        answer += text;
      })
      .on("error", reject)
      .on("close", () => resolve(answer));
  });
}
