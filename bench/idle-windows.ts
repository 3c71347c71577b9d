/**
 * `node bench/idle-windows.ts [windows]`: ten thousand open verification windows in which nothing happens. Measures their cost
 * to the service in memory, CPU time and transactions, and the CPU time for all of them to recover after notifications may have
 * been lost. Linux only: memory is read from /proc, and the clients use several addresses in 127/8.
 */

import net from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { newId } from "../src/core/ids.ts";
import { newWindowToken, windowTokenDigest } from "../src/core/window-token.ts";
import { runCounted } from "./endings.ts";
import { residentMiB } from "./memory.ts";
import { type ServiceUnderLoad, startService } from "./service.ts";
import { insertLike } from "./template.ts";

const idleSeconds = 30;
const openTimeoutMs = 120_000;

/** An address may make 3,000 requests a minute. */
const windowsPerAddress = 2_000;
/** The kernel's accept queue is short. */
const openingAtOnce = 200;

/** Inserts pending verifications and returns their window tokens. */
async function makeWindows({ database, project }: ServiceUnderLoad, count: number): Promise<string[]> {
  const ids = Array.from({ length: count }, newId);
  const tokens = ids.map(() => newWindowToken());
  const verification = insertLike(project.template, "verification", {
    id: "id",
    created_at: "now()",
    expires_at: "now() + interval '1 hour'",
  });
  const code = insertLike(project.template, "live_code", {
    code: "id::text",
    verification_id: "id",
    expires_at: "now() + interval '1 hour'",
    window_digest: "decode(digest, 'hex')",
  });
  await database.query(
    `WITH seed AS (SELECT * FROM unnest($1::uuid[], $2::text[]) AS seed (id, digest)), coded AS (${code} FROM seed)
     ${verification} FROM seed`,
    [ids, tokens.map(windowTokenDigest)],
  );
  return tokens;
}

/** Resolves once the window has received its first state event. */
function openWindow(port: number, n: number, token: string): Promise<net.Socket> {
  return new Promise((resolve, reject) => {
    const localAddress = `127.0.0.${2 + Math.floor(n / windowsPerAddress)}`;
    const socket = net.connect({ host: "127.0.0.1", port, localAddress });
    socket.setEncoding("latin1");
    let response = "";
    const listen = (text: string) => {
      response += text;
      if (!response.includes("event: state")) return;
      socket.off("data", listen);
      socket.resume();
      resolve(socket);
    };
    socket.on("data", listen);
    socket.on("error", reject);
    socket.on("close", () => reject(new Error(`a window was not opened: ${response.slice(0, 100)}`)));
    socket.write(`GET /v/${token}/events HTTP/1.1\r\nHost: localhost:${port}\r\n\r\n`);
  });
}

async function openWindows(port: number, tokens: readonly string[]): Promise<net.Socket[]> {
  const count = tokens.length;
  const sockets: net.Socket[] = [];
  const deadline = Date.now() + openTimeoutMs;
  for (let first = 0; first < count; first += openingAtOnce) {
    if (Date.now() > deadline) throw new Error("the windows took too long to open");
    const size = Math.min(openingAtOnce, count - first);
    sockets.push(
      ...(await Promise.all(
        tokens.slice(first, first + size).map((token, index) => openWindow(port, first + index, token)),
      )),
    );
  }
  return sockets;
}

async function transactions({ database }: ServiceUnderLoad): Promise<number> {
  await database.query("SELECT pg_stat_clear_snapshot()");
  const { rows } = await database.query(
    "SELECT xact_commit::float8 AS commits FROM pg_stat_database WHERE datname = current_database()",
  );
  return rows[0].commits;
}

/** What the service uses while nothing happens. */
async function idle(service: ServiceUnderLoad) {
  const [cpu, commits] = [service.cpu() ?? 0, await transactions(service)];
  await delay(idleSeconds * 1000);
  return {
    cpuPercent: ((service.cpu() ?? 0) - cpu) / idleSeconds / 10_000,
    transactionsPerSecond: ((await transactions(service)) - commits) / idleSeconds,
    memoryMiB: residentMiB(service.pid),
  };
}

/** CPU seconds of the service until all windows have read their state again after the connection for notifications was lost. */
async function cutNoticeConnections(service: ServiceUnderLoad): Promise<number> {
  const before = service.cpu() ?? 0;
  await service.database.query(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'phoneproof-notices'",
  );
  await delay(5_000);
  return ((service.cpu() ?? 0) - before) / 1_000_000;
}

await runCounted({ usage: "idle-windows.ts [windows]", usual: 10_000 }, async (count, endings) => {
  const directory = await endings.directory();
  const service = await startService(directory, { execArgv: [] });
  endings.add(() => service.close());
  const tokens = await makeWindows(service, count);
  const without = await idle(service);
  const startedAt = performance.now();
  const sockets = await openWindows(service.httpPort, tokens);
  const openSeconds = (performance.now() - startedAt) / 1000;
  const within = await idle(service);
  const gapSeconds = await cutNoticeConnections(service);
  const closed = sockets.filter((socket) => socket.destroyed).length;
  for (const socket of sockets) socket.destroy();
  const kibEach = ((within.memoryMiB - without.memoryMiB) * 1024) / count;
  const line = (name: string, cells: readonly number[]) =>
    name.padEnd(28) + cells.map((cell) => cell.toFixed(1).padStart(12)).join("");
  console.log(
    [
      `${count.toLocaleString("en")} idle windows (${closed} lost), opened in ${openSeconds.toFixed(1)} s`,
      "",
      `${"".padEnd(28)}${"without".padStart(12)}${"with".padStart(12)}`,
      line("resident memory, MiB", [without.memoryMiB, within.memoryMiB]),
      line("processor, %", [without.cpuPercent, within.cpuPercent]),
      line("transactions per s", [without.transactionsPerSecond, within.transactionsPerSecond]),
      "",
      `${kibEach.toFixed(1)} KiB a window; ${gapSeconds.toFixed(1)} s of CPU to check again after lost notifications`,
    ].join("\n"),
  );
});
