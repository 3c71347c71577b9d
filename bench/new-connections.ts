/**
 * `node bench/new-connections.ts [seconds]`: reads by clients that open a connection for each request, alone and beside
 * clients that keep theirs and leave the service no time.
 */

import net from "node:net";
import { runCounted } from "./endings.ts";
import { HttpLoad } from "./http-load.ts";
import { type LoadResult, Tally } from "./load.ts";
import { merchantRequests } from "./requests.ts";
import { createOne, startService } from "./service.ts";

const newcomers = 100;
const kept = 200;

await runCounted({ usage: "new-connections.ts [seconds]", usual: 5 }, async (seconds, endings) => {
  const directory = await endings.directory();
  const service = await startService(directory, { execArgv: [] });
  endings.add(() => service.close());
  const merchant = merchantRequests(service.project.keys.live);
  const request = merchant.read(await createOne(service.httpPort, service.project.keys.live));
  const milliseconds = seconds * 1000;
  const closing = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");

  const load = await HttpLoad.open(service.httpPort, kept);
  endings.add(async () => load.close());
  const keep = (forMs: number) => load.run({ next: () => request, status: 200, milliseconds: forMs });
  await keep(milliseconds);
  await arrive(service.httpPort, closing, milliseconds);

  console.log(line("alone", await arrive(service.httpPort, closing, milliseconds)));
  const [arrived, stayed] = await Promise.all([
    arrive(service.httpPort, closing, milliseconds),
    keep(milliseconds),
  ]);
  console.log(line("together", arrived));
  console.log(line("  the kept", stayed));
});

/** Each of the clients sends its next request, on a new connection, when the previous one is answered. */
async function arrive(port: number, request: string, milliseconds: number): Promise<LoadResult> {
  const tally = new Tally();
  const deadline = performance.now() + milliseconds;
  const client = async () => {
    while (performance.now() < deadline) {
      const askedAt = performance.now();
      const answer = await ask(port, request);
      if (!answer.startsWith("HTTP/1.1 200 ")) throw new Error(`got ${answer.slice(0, 200)}`);
      tally.add(performance.now() - askedAt);
    }
  };
  await Promise.all(Array.from({ length: newcomers }, client));
  return tally.result();
}

function ask(port: number, request: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ host: "127.0.0.1", port }, () => socket.write(request));
    let answer = "";
    socket.setEncoding("latin1");
    socket.on("data", (piece) => {
      answer += piece;
    });
    socket.on("error", reject);
    socket.on("close", () => resolve(answer));
  });
}

function line(name: string, { answers, seconds, p50, p99 }: LoadResult): string {
  const rate = Math.round(answers / seconds).toLocaleString("en");
  return `${name.padEnd(12)}${rate.padStart(7)} a second; p50 ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms`;
}
