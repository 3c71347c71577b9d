/**
 * `node bench/tracing.ts [rounds]`: measures creations and reads with tracing off, the default, and with every request traced
 * and exported to a collector that discards the data. Each service has its own Postgres with full durability, and the two are
 * measured in turn.
 */

import { mkdtemp } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { runCounted } from "./endings.ts";
import { HttpLoad } from "./http-load.ts";
import type { Arm } from "./operations.ts";
import { merchantRequests } from "./requests.ts";
import { type ArmFigures, measureInTurn, ratioOf } from "./rounds.ts";
import { createOne, type ServiceUnderLoad, startService } from "./service.ts";

const connections = 64;
const secondsPerRound = 2;

await runCounted({ usage: "tracing.ts [rounds]", usual: 5 }, async (rounds, endings) => {
  const directory = await endings.directory();
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
  const read =
    operation === "read" ? merchant.read(await createOne(service.httpPort, service.project.keys.live)) : "";
  return {
    name,
    cpu: service.cpu,
    postgresCpu: service.postgresCpu,
    run: (milliseconds) =>
      load.run(
        operation === "read"
          ? { status: 200, milliseconds, next: () => read }
          : { status: 201, milliseconds, next: () => merchant.create() },
      ),
    close: () => load.close(),
  };
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
