/**
 * `node bench/tenancy-timing.ts [pairs]`: checks that response times do not reveal whether another project's verification
 * exists. Each pair requests, with one project's key, a verification of another project and one that never existed, in
 * alternating order. Exits with 1 if the medians differ by more than 5 %.
 */

import { createClient } from "@connectrpc/connect";
import { Agent, request } from "undici";
import { encodeId, newId } from "../src/core/ids.ts";
import { VerificationService } from "../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { transportTo } from "../test/harness/grpc-transport.ts";
import { type Endings, runCounted } from "./endings.ts";
import { median } from "./load.ts";
import { createOne, type ServiceUnderLoad, startService } from "./service.ts";

const warmUpPairs = 300;
const allowedDifference = 0.05;

/** Requests a verification that the caller must not learn anything about. */
type Ask = (verificationId: string) => Promise<void>;

function questions({ httpPort, grpcAddress, loopProject }: ServiceUnderLoad): Record<string, Ask> {
  const authorization = `Bearer ${loopProject.keys.live}`;
  const dispatcher = new Agent({ connections: 1 });
  const overRest = async (method: "GET" | "POST", path: string) => {
    const url = `http://127.0.0.1:${httpPort}/v1/verifications/${path}`;
    const { statusCode, body } = await request(url, { method, headers: { authorization }, dispatcher });
    await body.dump();
    if (statusCode !== 404) throw new Error(`the service answered ${statusCode}`);
  };
  const client = createClient(VerificationService, transportTo(grpcAddress, authorization));
  const isRefused = async (answer: Promise<unknown>) => {
    const refused = await answer.then(
      () => false,
      () => true,
    );
    if (!refused) throw new Error("the service revealed another project's verification");
  };
  return {
    "REST read": (id) => overRest("GET", id),
    "REST cancel": (id) => overRest("POST", `${id}/cancel`),
    "gRPC get": (verificationId) => isRefused(client.getVerification({ verificationId })),
    "gRPC cancel": (verificationId) => isRefused(client.cancelVerification({ verificationId })),
  };
}

/** The duration of a request in milliseconds. */
async function timeOf(ask: Ask, verificationId: string): Promise<number> {
  const startedAt = performance.now();
  await ask(verificationId);
  return performance.now() - startedAt;
}

async function compare(ask: Ask, existing: readonly string[]): Promise<{ existing: number; never: number }> {
  const times: { existing: number[]; never: number[] } = { existing: [], never: [] };
  const warmUp = existing.slice(0, warmUpPairs);
  for (const [pair, id] of [...warmUp, ...existing].entries()) {
    const never = encodeId("vrf_", newId());
    const order = pair % 2 === 0 ? (["existing", "never"] as const) : (["never", "existing"] as const);
    for (const arm of order) {
      const time = await timeOf(ask, arm === "existing" ? id : never);
      if (pair >= warmUp.length) times[arm].push(time);
    }
  }
  return { existing: median(times.existing), never: median(times.never) };
}

async function run(pairs: number, endings: Endings): Promise<void> {
  const directory = await endings.directory();
  const service = await startService(directory, { execArgv: [] });
  endings.add(service.close);
  const existing: string[] = [];
  while (existing.length < pairs) existing.push(await createOne(service.httpPort, service.project.keys.live));
  const line = (name: string, cells: readonly string[]) =>
    name.padEnd(14) + cells.map((cell) => cell.padStart(12)).join("");
  console.log(`${pairs.toLocaleString("en")} interleaved pairs, medians in ms\n`);
  console.log(line("", ["another's", "never was", "difference"]));
  for (const [name, ask] of Object.entries(questions(service))) {
    const medians = await compare(ask, existing);
    const difference = medians.existing / medians.never - 1;
    if (!(Math.abs(difference) <= allowedDifference)) process.exitCode = 1;
    const percent = `${difference < 0 ? "" : "+"}${(difference * 100).toFixed(1)} %`;
    console.log(line(name, [medians.existing.toFixed(3), medians.never.toFixed(3), percent]));
  }
}

await runCounted({ usage: "tenancy-timing.ts [pairs]", usual: 1_000 }, run);
