/**
 * `node bench/cycle.ts [rounds] [connections of the peer's pool]`: measures complete verifications, from creation to webhook,
 * next to sending and verifying a code with better-auth (the peer) on the same Postgres. The first run installs the peer's
 * packages in bench/peer.
 */

import { mkdir, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { type Endings, runToItsEnd } from "./endings.ts";
import { bodyOf, type Exchange, HttpLoad } from "./http-load.ts";
import { median } from "./load.ts";
import { installPackages } from "./measuring-packages.ts";
import { type Arm, pendingThroughout } from "./operations.ts";
import {
  defaultPoolSize,
  type PeerUnderLoad,
  peerRequests,
  peerVersion,
  sentCode,
  startPeer,
} from "./peer.ts";
import { PendingVerifications } from "./pending-verifications.ts";
import { processClock } from "./process-cpu.ts";
import { reportProgress } from "./progress.ts";
import { figureCells, machine, machineLine } from "./report.ts";
import { creationBodyFor, encodeMessages, merchantRequests, senderOf } from "./requests.ts";
import { type ArmFigures, measureInTurn, ratioOf } from "./rounds.ts";
import { type ServiceUnderLoad, startService } from "./service.ts";
import { StreamLoad } from "./stream-load.ts";
import { WebhookReceiver } from "./webhook-receiver.ts";

const connections = 64;
const streams = 4;
const secondsPerRound = 3;
const resultFile = path.join(import.meta.dirname, "results/cycle.json");

/** Numbers that senderOf() turns into phones, outside the range of the bulk-inserted verifications. */
let persons = 50_000_000;

/** What is still outstanding after the last read of one of the service's rounds. */
interface Leftover {
  /** Webhooks that had not arrived yet. */
  readonly webhooks: number;
  readonly seconds: number;
}

const created = 201;
const ok = 200;

async function serviceArm(service: ServiceUnderLoad, endings: Endings) {
  const receiver = await WebhookReceiver.open();
  endings.add(() => receiver.close());
  await service.setWebhook(receiver.url);
  let http: HttpLoad | undefined;
  const sms = await StreamLoad.open(service.grpcAddress, service.ingestToken, { streams, groupsUnderWay: 1 });
  endings.add(() => sms.close());
  const merchants = [
    merchantRequests(service.project.keys.live),
    merchantRequests(service.project.keys.test),
  ];

  async function cycle(exchange: Exchange): Promise<void> {
    const person = persons++;
    const phone = senderOf(person);
    const merchant = merchants[person % merchants.length] as (typeof merchants)[number];
    const answer = await exchange(merchant.create(undefined, creationBodyFor(phone)), created);
    const verification = JSON.parse(bodyOf(answer)) as { id: string; destination: string; sms_text: string };
    const { id, destination, sms_text: text } = verification;
    const [group] = encodeMessages([{ messageId: `sms-${person}`, from: phone, to: destination, text }], 1);
    if (group !== undefined) await sms.deliver(group.frame);
    const read = merchant.read(id);
    while (!(await exchange(read, ok)).includes('"status":"verified"')) {}
  }

  const leftovers: Leftover[] = [];
  const arm: Arm = {
    name: "service",
    cpu: service.cpu,
    postgresCpu: service.postgresCpu,
    prepare: async () => {
      receiver.forget();
      // Opened only before the arm's first round: the service closes connections that send nothing for ten seconds.
      http ??= await HttpLoad.open(service.httpPort, connections);
      await service.database.query("ANALYZE");
    },
    async run(milliseconds) {
      const result = await http?.runCycles(milliseconds, cycle);
      if (result === undefined) throw new Error("a round was not prepared");
      const doneAt = performance.now();
      const webhooks = result.answers - receiver.events;
      await receiver.all(result.answers);
      const seconds = (performance.now() - doneAt) / 1000;
      leftovers.push({ webhooks, seconds });
      return { ...result, seconds: result.seconds + seconds };
    },
    close: () => http?.close(),
  };
  return { arm, leftovers };
}

async function peerArm(service: ServiceUnderLoad, peer: PeerUnderLoad): Promise<Arm> {
  const http = await HttpLoad.open(peer.port, connections);
  const cycle = async (exchange: Exchange) => {
    const phone = `+82${senderOf(persons++).slice(1)}`;
    const code = sentCode(await exchange(peerRequests.send(phone), ok));
    await exchange(peerRequests.verify(phone, code), ok);
  };
  return {
    name: "peer",
    cpu: processClock(peer.pid),
    postgresCpu: service.postgresCpu,
    prepare: async () => {
      await peer.database.query("ANALYZE");
    },
    run: (milliseconds) => http.runCycles(milliseconds, cycle),
    close: () => http.close(),
  };
}

function table(figures: readonly ArmFigures[], leftovers: readonly Leftover[]): string {
  const row = (cells: readonly string[]) =>
    cells.map((cell, index) => (index === 0 ? cell.padEnd(9) : cell.padStart(9))).join("");
  const lines = figures.map(({ arm, medians }) => row([arm, ...figureCells(medians)]));
  const webhooks = Math.round(median(leftovers.map((leftover) => leftover.webhooks)));
  const seconds = median(leftovers.map((leftover) => leftover.seconds));
  return [
    `${" ".repeat(36)}CPU µs per cycle`,
    row(["", "cycles/s", "p50 ms", "p99 ms", "server", "Postgres", "load", "others"]),
    ...lines,
    "",
    `service by peer: ${ratioOf(figures, "service", "peer")?.toFixed(2)}`,
    `after the last read of a round ${webhooks} webhooks were still outstanding: ${seconds.toFixed(2)} s, counted above`,
  ].join("\n");
}

async function bench(rounds: number, poolSize: number, endings: Endings): Promise<void> {
  const loadBefore = os.loadavg()[0] ?? 0;
  await installPackages("peer");
  const directory = await endings.directory();
  reportProgress("starting");
  // The webhook receiver is on this machine.
  const environment = { WEBHOOK_ALLOW_PRIVATE: "true" };
  const service = await startService(directory, { execArgv: [], environment });
  endings.add(service.close);
  const peer = await startPeer(service.databaseConnection, { poolSize, rows: pendingThroughout });
  endings.add(peer.close);
  reportProgress("creating pending verifications");
  await new PendingVerifications(service.database, service.project).take(0, pendingThroughout);
  const { arm, leftovers } = await serviceArm(service, endings);
  const arms = [await peerArm(service, peer), arm];
  reportProgress("measuring");
  for (const { close } of arms) endings.add(close);
  const figures = await measureInTurn(arms, { rounds, seconds: secondsPerRound });
  const { rows } = await service.database.query<{ server_version: string }>("SHOW server_version");
  const on = machine(rows[0]?.server_version ?? "unknown", loadBefore);
  reportProgress("done");
  process.stdout.write(
    `${machineLine(on)}; better-auth ${await peerVersion()}, pool of ${poolSize}\n` +
      `${connections} connections, medians of ${rounds} rounds of ${secondsPerRound} s, ` +
      `${pendingThroughout.toLocaleString("en")} verifications pending and users signed up\n\n` +
      // The first entry is from the warm-up.
      `${table(figures, leftovers.slice(1))}\n`,
  );
  await mkdir(path.dirname(resultFile), { recursive: true });
  await writeFile(
    resultFile,
    `${JSON.stringify({ machine: on, figures, aftermaths: leftovers }, null, 2)}\n`,
  );
}

const [rounds = 5, poolSize = defaultPoolSize] = process.argv.slice(2).map(Number);
if ([rounds, poolSize].every((value) => Number.isInteger(value) && value > 0)) {
  await runToItsEnd((endings) => bench(rounds, poolSize, endings));
} else {
  process.stderr.write("usage: node bench/cycle.ts [rounds] [connections of the peer's pool]\n");
  process.exitCode = 2;
}
