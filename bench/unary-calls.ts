/**
 * `node bench/unary-calls.ts [rounds]`: measures creations and reads over gRPC, beside the bare server's, which has Connect and
 * nothing behind it, and beside the same calls over REST.
 */

import { randomUUID } from "node:crypto";
import { create, toBinary } from "@bufbuild/protobuf";
import { encodeId } from "../src/core/ids.ts";
import {
  CreateVerificationRequestSchema,
  GetVerificationRequestSchema,
  VerificationMode,
  VerificationService,
} from "../src/gen/proto/phoneproof/v1/verification_pb.ts";
import type { BareAddresses } from "./bare-server.ts";
import { ChildProgram } from "./child.ts";
import { runCounted } from "./endings.ts";
import { HttpLoad } from "./http-load.ts";
import type { Arm } from "./operations.ts";
import { type CpuClock, processClock } from "./process-cpu.ts";
import { creationBody, merchantRequests } from "./requests.ts";
import { measureInTurn, ratioOf } from "./rounds.ts";
import { startService } from "./service.ts";
import { UnaryLoad } from "./unary-load.ts";

const inProgress = 64;
/** Real clients share a few connections. */
const connections = 4;
const secondsPerRound = 2;

await runCounted({ usage: "unary-calls.ts [rounds]", usual: 5 }, async (rounds, endings) => {
  const directory = await endings.directory();
  const bare = new ChildProgram<object, BareAddresses>("bare-server.ts");
  endings.add(async () => bare.close());
  const bareAddress = (await bare.nextMessage()).grpcAddress;
  const service = await startService(directory, { execArgv: [] });
  endings.add(() => service.close());
  const { project, database, grpcAddress, httpPort } = service;
  const key = project.keys.live;
  const merchant = merchantRequests(key);
  const { rows } = await database.query<{ id: string }>(
    "SELECT id FROM verification WHERE project_id = $1 AND environment = 'test' LIMIT 1",
    [project.id],
  );
  const id = encodeId("vrf_", rows[0]?.id ?? "");

  const { createVerification, getVerification } = VerificationService.method;
  const body = JSON.parse(creationBody) as Record<string, string>;
  const creation = create(CreateVerificationRequestSchema, {
    mode: VerificationMode.MATCH,
    expectedPhone: body.expected_phone ?? "",
    clientReference: body.client_reference ?? "",
    state: body.state ?? "",
    parentOrigin: body.parent_origin ?? "",
    returnUrl: body.return_url ?? "",
  });
  const readMessage = toBinary(
    GetVerificationRequestSchema,
    create(GetVerificationRequestSchema, { verificationId: id }),
  );
  const operations = [
    {
      name: "create",
      method: createVerification,
      credential: key,
      message: () => {
        creation.idempotencyKey = randomUUID();
        return toBinary(CreateVerificationRequestSchema, creation);
      },
      request: () => merchant.create(),
      status: 201,
    },
    {
      name: "read",
      method: getVerification,
      credential: project.keys.test,
      message: () => readMessage,
      request: () => merchantRequests(project.keys.test).read(id),
      status: 200,
    },
  ];

  console.log(`${" ".repeat(22)}per s  p50 ms  p99 ms   CPU µs: server  Postgres   others`);
  for (const { name, method, credential, message, request, status } of operations) {
    const over = async (arm: "bare" | "service", address: string, cpu: CpuClock): Promise<Arm> => {
      const load = await UnaryLoad.open({
        address,
        method: `${method.parent.typeName}/${method.name}`,
        credential,
        connections,
        inProgress,
      });
      return {
        name: arm,
        cpu,
        postgresCpu: arm === "bare" ? () => null : service.postgresCpu,
        run: (milliseconds) => load.run({ next: message, milliseconds }),
        close: () => load.close(),
      };
    };
    const rest = await HttpLoad.open(httpPort, inProgress);
    const arms: Arm[] = [
      await over("bare", bareAddress, processClock(bare.pid)),
      await over("service", grpcAddress, service.cpu),
      {
        name: "REST",
        cpu: service.cpu,
        postgresCpu: service.postgresCpu,
        run: (milliseconds) => rest.run({ status, milliseconds, next: request }),
        close: () => rest.close(),
      },
    ];
    const figures = await measureInTurn(arms, { rounds, seconds: secondsPerRound });
    for (const { arm, medians } of figures) {
      const { perSecond, p50Ms, p99Ms, serverCpu, postgresCpu, others } = medians;
      const cells = [
        perSecond.toFixed(0).padStart(9),
        p50Ms.toFixed(2).padStart(8),
        p99Ms.toFixed(2).padStart(8),
        (serverCpu?.toFixed(1) ?? "–").padStart(17),
        (postgresCpu?.toFixed(1) ?? "–").padStart(10),
        (others === null ? "–" : `${(others * 100).toFixed(0)} %`).padStart(9),
      ];
      console.log(`${name.padEnd(8)}${arm.padEnd(10)}${cells.join("")}`);
    }
    const ratio = (to: Arm["name"]) => (ratioOf(figures, "service", to) ?? Number.NaN).toFixed(2);
    console.log(`${" ".repeat(8)}service by bare ${ratio("bare")}, by REST ${ratio("REST")}`);
    for (const arm of arms) arm.close();
  }
});
