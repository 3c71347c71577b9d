/**
 * `node bench/tracing.ts [rounds]`: measures creations and reads with tracing off, the default, and with every request traced
 * and exported to a collector that discards the data. Each service has its own Postgres with full durability, and the two are
 * measured in turn.
 */

import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import os from "node:os";
import path from "node:path";
import { runToItsEnd } from "./endings.ts";
import { HttpLoad } from "./http-load.ts";
import type { Arm } from "./operations.ts";
import { merchantRequests } from "./requests.ts";
import { type ArmFigures, measureInTurn, ratioOf } from "./rounds.ts";
import { type ServiceUnderLoad, startService } from "./service.ts";

const connections = 64;
const secondsPerRound = 2;

await runToItsEnd(async (endings) => {
  const rounds = Number(process.argv[2] ?? 5);
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error("rounds must be a whole number from 1");
  const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-bench-"));
  endings.add(() => rm(directory, { recursive: true, force: true, maxRetries: 5 }));
  let received = 0;
  const collector = createServer((request, response) => {
    request.on("data", (chunk: Buffer) => {
      received += chunk.length;
    });
    request.on("end", () => response.writeHead(200).end());
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => collector.once("listening", resolve));
  endings.add(async () => void collector.close());
  const endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;

  const services: [Arm["name"], ServiceUnderLoad][] = [];
  for (const [name, environment] of [
    ["tracing off", {}],
    ["tracing on", { OTEL_EXPORTER_OTLP_ENDPOINT: endpoint }],
  ] as const) {
    const service = await startService(await mkdtemp(path.join(directory, "data-")), {
      execArgv: [],
      environment,
    });
    endings.add(() => service.close());
    services.push([name, service]);
  }
  for (const operation of ["create", "read"] as const) {
    const arms = await Promise.all(services.map(([name, service]) => armOf(name, service, operation)));
    print(operation, await measureInTurn(arms, { rounds, seconds: secondsPerRound }));
    for (const arm of arms) arm.close();
  }
  console.log(`\nthe collector got ${Math.round(received / 1e6)} MB`);
});

async function armOf(
  name: Arm["name"],
  service: ServiceUnderLoad,
  operation: "create" | "read",
): Promise<Arm> {
  const load = await HttpLoad.open(service.httpPort, connections);
  const merchant = merchantRequests(service.project.keys.live);
  const read = operation === "read" ? merchant.read(await createOne(service)) : "";
  return {
    name,
    cpu: service.cpu,
    postgresCpu: service.postgresCpu,
    run: (milliseconds) =>
      load.run(
        operation === "read"
          ? { status: 200, milliseconds, next: () => read }
          : { status: 201, milliseconds, next: () => merchant.create(randomUUID()) },
      ),
    close: () => load.close(),
  };
}

async function createOne({ httpPort, project }: ServiceUnderLoad): Promise<string> {
  const answer = await fetch(`http://127.0.0.1:${httpPort}/v1/verifications`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${project.keys.live}`,
      "content-type": "application/json",
      "idempotency-key": randomUUID(),
    },
    body: "{}",
  });
  return ((await answer.json()) as { id: string }).id;
}

function print(operation: string, figures: readonly ArmFigures[]): void {
  for (const { arm, medians } of figures) {
    const { perSecond, serverCpu } = medians;
    const cpu = serverCpu === null ? "" : `${serverCpu.toFixed(0).padStart(6)} µs of CPU a request`;
    console.log(`${operation.padEnd(8)}${arm.padEnd(13)}${perSecond.toFixed(0).padStart(7)} a second${cpu}`);
  }
  console.log(
    `${" ".repeat(8)}on / off     ${(ratioOf(figures, "tracing on", "tracing off") ?? 0).toFixed(2).padStart(7)}`,
  );
}
