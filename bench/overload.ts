/**
 * `node bench/overload.ts [times] [seconds]`: sends creations at a multiple of the service's maximum rate, whether or not
 * earlier ones have been answered. Reports how many are served, how many are refused and how soon, the peak memory, the CPU
 * of an answer in the service and in Postgres, and how long until the service is as fast as before.
 */

import os from "node:os";
import { runToItsEnd } from "./endings.ts";
import { HttpLoad } from "./http-load.ts";
import type { LoadResult } from "./load.ts";
import { residentMiB } from "./memory.ts";
import { merchantRequests } from "./requests.ts";
import { type ServiceUnderLoad, startService } from "./service.ts";

const busyConnections = 64;
const busyMs = 5_000;
/** More than the service's queue admits, so that it has to refuse some. */
const connections = 12_000;

await runToItsEnd(async (endings) => {
  const times = Number(process.argv[2] ?? 10);
  const seconds = Number(process.argv[3] ?? 60);
  if (!(times >= 1 && times <= 100)) throw new Error("times must be a number from 1 to 100");
  if (!(seconds >= 1 && seconds <= 600)) throw new Error("seconds must be a number from 1 to 600");
  const directory = await endings.directory();
  const service = await startService(directory, { execArgv: [] });
  endings.add(() => service.close());
  // The load generator has the lower priority: if both need a core, the generator waits.
  os.setPriority(19);
  const merchant = merchantRequests(service.project.keys.live);
  const next = () => merchant.create();

  const busy = await HttpLoad.open(service.httpPort, busyConnections);
  const full = async () => {
    const cpu = cpuOf(service);
    const { answers, seconds: took } = await busy.run({ next, status: 201, milliseconds: busyMs });
    return { perSecond: answers / took, cpu: cpu(answers) };
  };
  await full();
  const { perSecond: before, cpu: usual } = await full();
  console.log(
    `kept busy     ${rate(before)} created, ${residentMiB(service.pid).toFixed(0)} MiB; an answer took ${usual}`,
  );

  const many = await HttpLoad.open(service.httpPort, connections);
  let mostMiB = 0;
  const watch = setInterval(() => {
    mostMiB = Math.max(mostMiB, residentMiB(service.pid));
  }, 500);
  const cpu = cpuOf(service);
  const { answers, unsent } = await many.flood({ next, milliseconds: seconds * 1000 }, before * times);
  clearInterval(watch);
  const sent = [...answers.values()].reduce((sum, result) => sum + result.answers, 0);
  console.log(
    `${`${times} times`.padEnd(12)}  ${rate((sent + unsent) / seconds)} wanted, ${rate(sent / seconds)} sent on ${connections} connections`,
  );
  for (const [status, result] of [...answers].sort(([one], [other]) => one - other)) {
    console.log(`  ${status}         ${line(result, seconds, before)}`);
  }
  console.log(`  memory      ${mostMiB.toFixed(0).padStart(7)} MiB at most; an answer took ${cpu(sent)}`);
  many.close();

  const again = await HttpLoad.open(service.httpPort, 1);
  const askedAt = performance.now();
  await again.run({ next: once(next), status: 201, milliseconds: 60_000 });
  console.log(`afterwards    the first created after ${Math.round(performance.now() - askedAt)} ms`);
  const { perSecond: after } = await full();
  console.log(`              ${rate(after)} created, ${(after / before).toFixed(2)} of before`);
  again.close();
  busy.close();
});

/** Starts counting; the returned function says what one of this many answers took of the service's and Postgres' CPU. */
function cpuOf({ cpu, postgresCpu }: ServiceUnderLoad): (answers: number) => string {
  const [own, postgres] = [cpu() ?? Number.NaN, postgresCpu() ?? Number.NaN];
  return (answers) => {
    const [ownEach, postgresEach] = [cpu() ?? Number.NaN, postgresCpu() ?? Number.NaN].map((now, index) =>
      ((now - (index === 0 ? own : postgres)) / answers).toFixed(0),
    );
    return `${ownEach} and ${postgresEach} µs of CPU`;
  };
}

function line({ answers, p50, p99 }: LoadResult, seconds: number, before: number): string {
  const perSecond = answers / seconds;
  return `${rate(perSecond)}, ${(perSecond / before).toFixed(2)} of before; p50 ${p50.toFixed(0)} ms, p99 ${p99.toFixed(0)} ms`;
}

function rate(perSecond: number): string {
  return `${Math.round(perSecond).toLocaleString("en").padStart(7)} a second`;
}

function once(next: () => string): () => string | undefined {
  let asked = false;
  return () => {
    if (asked) return undefined;
    asked = true;
    return next();
  };
}
