/**
 * Everything that faults apply to: a Postgres, a network in front of it, processes of the service and, behind a balancer, their
 * clients at work.
 */

import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { newCredential } from "../../src/core/credential.ts";
import { type Balancer, startBalancer } from "./balancer.ts";
import { type DatabaseProxy, startDatabaseProxy } from "./database-proxy.ts";
import { type DatabaseServer, startDatabaseServer } from "./database-server.ts";
import { startEndpoint } from "./endpoint.ts";
import { type Installation, install } from "./installation.ts";
import { findViolations } from "./invariants.ts";
import { type Journal, openJournal } from "./journal.ts";
import { type Load, newKey, newPhone, startLoad } from "./load.ts";
import { type MerchantCalls, merchantCalls } from "./merchant-calls.ts";
import type { Random } from "./random.ts";
import { type ServiceLife, type ServiceProcess, startServiceProcess } from "./service-process.ts";
import { mountSmallDisk, smallDiskSettings, unmountSmallDisk } from "./small-disk.ts";
import { type SmsSource, startSmsSource } from "./sms-source.ts";
import { failOver, startPair } from "./standby.ts";
import { watchWindow } from "./window-visitor.ts";

export type Setting = "plain" | "skewed clocks" | "small disk" | "standby";

export interface WorldOptions {
  readonly random: Random;
  readonly processes: number;
  /** Where journal and logs are kept if there is a violation. */
  readonly keepIn: string;
  readonly setting: Setting;
}

export interface World {
  /** The database's directory. */
  readonly directory: string;
  readonly database: DatabaseServer;
  readonly network: DatabaseProxy;
  readonly processes: readonly ServiceProcess[];
  readonly journal: Journal;
  readonly installation: Installation;
  readonly balancer: Balancer;
  readonly calls: MerchantCalls;
  readonly load: Load;
  /** The time that the processes took to start, until they could answer. */
  readonly startedInMs: number;
  /** Kills the primary and promotes the standby. */
  failOver(): Promise<void>;
  /**
   * Resolves when every process can do everything again: create, read, cancel, verify by SMS. Returns the milliseconds that it
   * took.
   */
  recovered(): Promise<number>;
  /** Waits until no work is in progress and returns the violations. */
  check(): Promise<string[]>;
  close(): Promise<void>;
}

const settleTimeoutMs = 30_000;
const recoveryTimeoutMs = 60_000;
const windowTimeoutMs = 10_000;

export async function openWorld(options: WorldOptions): Promise<World> {
  const { random } = options;
  const directory = await mkdtemp(path.join(os.tmpdir(), `phoneproof-test-${process.pid}-faults-`));
  const journal = openJournal(path.join(options.keepIn, "journal.jsonl"));
  const onViolation = (text: string) => journal.append({ what: "violation", text });
  const closers: (() => Promise<void> | void)[] = [() => rm(directory, { recursive: true, force: true })];
  const close = async () => {
    for (const closer of closers.splice(0).reverse()) await closer();
    journal.close();
  };
  try {
    if (options.setting === "small disk") {
      const unmount = () => unmountSmallDisk(directory);
      mountSmallDisk(directory);
      process.once("exit", unmount);
      closers.push(() => void process.off("exit", unmount), unmount);
    }
    const settings = { max_connections: "60", ...(options.setting === "small disk" && smallDiskSettings) };
    const pair = options.setting === "standby" ? await startPair(directory, settings) : undefined;
    let database = pair?.primary ?? (await startDatabaseServer(directory, settings));
    for (const server of pair ? [pair.primary, pair.standby] : [database]) closers.push(() => server.stop());
    const network = await startDatabaseProxy(database);
    closers.push(() => network.close());
    const endpoint = await startEndpoint(journal);
    closers.push(() => endpoint.close());

    const { user, password, database: name } = database.connection;
    const adminToken = newCredential("svc");
    const starting = Array.from({ length: options.processes }, async (_, index) => {
      const { environment = {}, execArgv = [] } = options.setting === "skewed clocks" ? skewed(index) : {};
      const service = await startServiceProcess({
        name: `service-${index + 1}`,
        environment: {
          DATABASE_URL: `postgres://${user}:${password}@127.0.0.1:${network.port}/${name}`,
          PHONEPROOF_ADMIN_TOKEN: adminToken,
          PUBLIC_BASE_URL: "http://localhost",
          WEBHOOK_ALLOW_PRIVATE: "true",
          DATABASE_POOL_SIZE: "8",
          // The balancer here checks five times a second.
          DRAIN_SECONDS: "1",
          ...environment,
        },
        execArgv,
        logFile: path.join(options.keepIn, `service-${index + 1}.log`),
        onViolation,
      });
      closers.push(() => service.stop());
      return service;
    });
    const startingAt = performance.now();
    const processes = await Promise.all(starting);
    const startedInMs = performance.now() - startingAt;
    const first = processes[0]?.life;
    if (first === undefined) throw new Error("the service ended as soon as it had started");
    const installation = await install(first.grpcAddress, adminToken, endpoint.url);

    const balancer = startBalancer(processes);
    closers.push(() => balancer.close());
    const calls = merchantCalls({ journal, balancer, apiKey: installation.apiKey });
    const sources = installation.sources.map((source) =>
      startSmsSource({ ...source, journal, balancer, random: random.fork() }),
    );
    // Streams must end before their service does.
    closers.push(async () => void (await Promise.all(sources.map((source) => source.close()))));
    // The other processes may cache what they looked up before for up to a second.
    await delay(processes.length > 1 ? 1_000 : 0);
    const load = startLoad({ random: random.fork(), calls, sources, onViolation });
    closers.push(() => load.stop());

    /** Goes through a complete verification as a person would, with each step on this process only. */
    async function works(life: ServiceLife): Promise<boolean> {
      const key = newKey();
      const created = await calls.tryOnce(life, "create", key, { client_reference: key });
      if (created?.status !== 201) return false;
      const { id, destination, sms_text, verification_url } = JSON.parse(created.body);
      const only = { choose: async () => life };
      const watching = watchWindow({
        balancer: only,
        random,
        verificationUrl: verification_url,
        timeoutMs: windowTimeoutMs,
      });
      const message = { messageId: newKey(), from: newPhone(), to: destination, text: sms_text };
      if ((await sendOnce(only, message)) !== "VERIFIED") return false;
      const read = await calls.tryOnce(life, "read", id);
      const refused = await calls.tryOnce(life, "cancel", id);
      return read?.status === 200 && refused?.status === 409 && (await watching) === "verified";
    }

    async function sendOnce(
      only: Pick<Balancer, "choose">,
      message: Parameters<SmsSource["send"]>[0],
    ): Promise<string> {
      const [source] = installation.sources;
      if (source === undefined) throw new Error("there are two sources");
      const trial = startSmsSource({ ...source, journal, balancer: only, random });
      const receipt = trial.send(message);
      const none = delay(recoveryTimeoutMs, { outcome: "none" }, { ref: false });
      const { outcome } = await Promise.race([receipt, none]);
      await trial.close();
      return outcome;
    }

    return {
      directory,
      get database() {
        return database;
      },
      network,
      processes,
      journal,
      installation,
      balancer,
      calls,
      load,
      startedInMs,
      close,

      async failOver() {
        if (pair === undefined) throw new Error("there is no standby");
        await failOver(pair);
        database = pair.standby;
        network.target = database;
      },

      async recovered() {
        const startedAt = performance.now();
        await Promise.all(
          processes.map(async (service) => {
            while (!(await works(await service.running()))) {
              if (performance.now() - startedAt > recoveryTimeoutMs) {
                onViolation(`${service.name} does not work again after ${recoveryTimeoutMs / 1000} s`);
                return;
              }
              await delay(20);
            }
          }),
        );
        return Math.round(performance.now() - startedAt);
      },

      async check() {
        try {
          await load.pause();
          await settled(database);
        } catch (error) {
          onViolation((error as Error).message);
        }
        const violations = await findViolations(journal.read(), database);
        load.resume();
        return violations;
      },
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** The processes' clocks are an hour apart, on either side of the real time. */
function skewed(index: number) {
  const halfHourMs = 1_800_000;
  return {
    environment: { CLOCK_AHEAD_MS: String(index % 2 === 0 ? halfHourMs : -halfHourMs) },
    execArgv: ["--import", path.join(import.meta.dirname, "skewed-clock.ts")],
  };
}

/**
 * Waits until every event has reached the endpoint. A delivery attempt that a kill interrupted is made due at once instead of
 * waiting for its timeout.
 */
async function settled(database: DatabaseServer): Promise<void> {
  const deadline = performance.now() + settleTimeoutMs;
  const late = await database.query(
    "SELECT FROM webhook_delivery WHERE state = 'pending' AND next_attempt_at > now() + interval '60 seconds'",
  );
  if (late.length > 0) throw new Error(`${late.length} interrupted deliveries are not due within 60 s`);
  for (;;) {
    const [left] = await database.query<{ count: number }>(
      "SELECT count(*)::int AS count FROM webhook_delivery WHERE state = 'pending'",
    );
    if (left?.count === 0) return;
    if (performance.now() > deadline) throw new Error(`${left?.count} events do not reach the endpoint`);
    // An endpoint answers within milliseconds here: an attempt that began half a second ago and is not finished was
    // interrupted.
    await database.query(`
      UPDATE webhook_delivery d SET next_attempt_at = now() FROM webhook_attempt a
      WHERE d.state = 'pending' AND d.next_attempt_at > now() AND a.verification_id = d.verification_id
        AND a.number = d.attempts AND a.duration_ms IS NULL AND a.started_at < now() - interval '500 milliseconds'`);
    await delay(100);
  }
}
