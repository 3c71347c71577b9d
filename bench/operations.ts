/** What is measured: each operation on its arms, the bare server (the ceiling) first. */

import type { Environment } from "../src/core/project.ts";
import type { BareAddresses } from "./bare-server.ts";
import type { ChildProgram } from "./child.ts";
import type { DatabaseLoopAnswer, DatabaseLoopRequest } from "./database-loop.ts";
import { HttpLoad, type HttpRound } from "./http-load.ts";
import type { LoadResult } from "./load.ts";
import type { PendingVerifications, SeededVerification } from "./pending-verifications.ts";
import { type CpuClock, processClock } from "./process-cpu.ts";
import { encodeMessages, type MerchantRequests, merchantRequests } from "./requests.ts";
import type { ServiceUnderLoad } from "./service.ts";
import { type EncodedGroup, StreamLoad } from "./stream-load.ts";

export const operationNames = ["create", "replay", "read", "cancel", "inbound", "backlog"] as const;
export type OperationName = (typeof operationNames)[number];

export type ArmName =
  | "bare"
  | "service"
  | "database"
  | "peer"
  | "REST"
  | `tracing ${"off" | "on"}`
  | `${number} process${"" | "es"}`
  | `${number} process${"" | "es"}, standby`;

/** One implementation of an operation. */
export interface Arm {
  readonly name: ArmName;
  readonly cpu: CpuClock;
  readonly postgresCpu: CpuClock;
  /**
   * Not timed; runs before each round. `most` is how many items the round may use up; by default half as many again as the last
   * round used.
   */
  readonly prepare?: (most?: number) => Promise<void>;
  run(milliseconds: number): Promise<LoadResult>;
  /** The same at a constant rate, if the arm supports it. */
  readonly pace?: (milliseconds: number, perSecond: number) => Promise<LoadResult>;
  close(): void;
}

export interface Subjects {
  readonly service: ServiceUnderLoad;
  readonly bare: { readonly addresses: BareAddresses; readonly pid: number };
  readonly databaseLoop: ChildProgram<DatabaseLoopRequest, DatabaseLoopAnswer>;
  readonly pending: PendingVerifications;
  readonly connections: number;
}

/** Verifications that are never touched, so that every statement runs on large tables. */
export const pendingThroughout = 100_000;
const replayedKeys = 10_000;
/** Half of them are verified. */
const readVerifications = 20_000;
/** Initial supply for an operation that uses verifications up; after the first round the actual need is known. */
const firstSupply = 30_000;

const streams = 4;
/** Outstanding messages, on all streams together. */
const messagesUnderWay = 1_000;
/** Messages per request in the `backlog` operation; sent singly they would measure the cost of framing. */
const backlogGroup = 100;

const created = 201;
const ok = 200;

/** Opens the arms of an operation; they keep their connections from round to round. */
export const openArms: Record<OperationName, (subjects: Subjects) => Promise<Arm[]>> = {
  async create(subjects) {
    const inTurn = cycle(merchants(subjects));
    const next = () => inTurn().create();
    return [
      await bareArm(subjects, { status: created, next }),
      await serviceArm(subjects, { status: created, next }),
      await databaseArm(subjects),
    ];
  },

  async replay(subjects) {
    const inTurn = cycle(merchants(subjects));
    const requests = Array.from({ length: replayedKeys }, () => inTurn().create());
    await sendAll(subjects, created, requests);
    const next = cycle(shuffled(requests));
    return [
      await bareArm(subjects, { status: created, next }),
      await serviceArm(subjects, { status: ok, next }),
    ];
  },

  async read(subjects) {
    const { service, pending } = subjects;
    const verifications = await pending.take(readVerifications, pendingThroughout);
    const verified = verifications.slice(readVerifications / 2).map(({ sms }) => sms);
    await deliverAll(service, encodeMessages(verified, backlogGroup));
    const merchantOf = merchantsByEnvironment(subjects);
    const requests = verifications.map(({ environment, id }) => merchantOf[environment].read(id));
    const next = cycle(shuffled(requests));
    return [await bareArm(subjects, { status: ok, next }), await serviceArm(subjects, { status: ok, next })];
  },

  async cancel(subjects) {
    const merchantOf = merchantsByEnvironment(subjects);
    const requestsOf = (verifications: readonly SeededVerification[]) =>
      verifications.map(({ environment, id }) => merchantOf[environment].cancel(id));
    const supply = new Supply(subjects.pending, requestsOf);
    const next = cycle(requestsOf(await subjects.pending.take(1, pendingThroughout)));
    const service = await serviceArm(subjects, { status: ok, next: () => supply.next() });
    return [
      await bareArm(subjects, { status: ok, next }),
      { ...service, prepare: (most) => supply.fill(most) },
    ];
  },

  /** One message per request, as a gateway forwards messages as they arrive. */
  inbound: (subjects) => streamArms(subjects, 1),

  /** Groups of messages, as a gateway sends a backlog: after an interruption or while it is throttled. */
  backlog: (subjects) => streamArms(subjects, backlogGroup),
};

async function streamArms(subjects: Subjects, groupSize: number): Promise<Arm[]> {
  const { service, bare, pending } = subjects;
  const options = { streams, groupsUnderWay: Math.ceil(messagesUnderWay / streams / groupSize) };
  const groupsOf = (verifications: readonly SeededVerification[]) =>
    encodeMessages(
      verifications.map(({ sms }) => sms),
      groupSize,
    );
  const supply = new Supply(pending, groupsOf);
  const nextBare = cycle(groupsOf(await pending.take(1_000, pendingThroughout)));
  const bareLoad = await StreamLoad.open(bare.addresses.grpcAddress, "", options);
  const serviceLoad = await StreamLoad.open(service.grpcAddress, service.ingestToken, options);
  return [
    {
      name: "bare",
      ...clocksOf("bare", subjects),
      run: (milliseconds) => bareLoad.run({ next: nextBare, milliseconds }),
      close: () => bareLoad.close(),
    },
    {
      name: "service",
      ...clocksOf("service", subjects),
      prepare: (most) => supply.fill(most),
      run: (milliseconds) => serviceLoad.run({ next: () => supply.next(), milliseconds }),
      pace: (milliseconds, perSecond) =>
        serviceLoad.pace({ next: () => supply.next(), milliseconds }, perSecond / groupSize),
      close: () => serviceLoad.close(),
    },
  ];
}

/** One per environment, used in turn: rate limits are separate, but the usage row is shared. */
function merchants(subjects: Subjects): MerchantRequests[] {
  return Object.values(merchantsByEnvironment(subjects));
}

function merchantsByEnvironment({ service }: Subjects): Record<Environment, MerchantRequests> {
  const { live, test } = service.project.keys;
  return { live: merchantRequests(live), test: merchantRequests(test) };
}

type HttpWork = Pick<HttpRound, "status" | "next">;

const bareArm = (subjects: Subjects, work: HttpWork) =>
  httpArm("bare", subjects, subjects.bare.addresses.httpPort, work);
const serviceArm = (subjects: Subjects, work: HttpWork) =>
  httpArm("service", subjects, subjects.service.httpPort, work);

async function httpArm(
  name: "bare" | "service",
  subjects: Subjects,
  port: number,
  work: HttpWork,
): Promise<Arm> {
  const load = await HttpLoad.open(port, subjects.connections);
  return {
    name,
    ...clocksOf(name, subjects),
    run: (milliseconds) => load.run({ ...work, milliseconds }),
    pace: (milliseconds, perSecond) => load.pace({ ...work, milliseconds }, perSecond),
    close: () => load.close(),
  };
}

async function databaseArm({ service, databaseLoop, connections }: Subjects): Promise<Arm> {
  const { id, template } = service.loopProject;
  const target = { connections, projectId: id, template };
  await ask({ kind: "open", connection: service.databaseConnection, target });
  return {
    name: "database",
    cpu: () => null,
    postgresCpu: service.postgresCpu,
    async run(milliseconds) {
      const answer = await ask({ kind: "run", milliseconds });
      if (answer.kind !== "ran") throw new Error("the database loop gave an unexpected answer");
      return answer.result;
    },
    close() {
      databaseLoop.send({ kind: "close" });
    },
  };

  async function ask(request: DatabaseLoopRequest): Promise<DatabaseLoopAnswer> {
    const answer = await databaseLoop.ask(request);
    if (answer.kind === "failed") throw new Error(`the database loop failed: ${answer.message}`);
    return answer;
  }
}

function clocksOf(name: "bare" | "service", { service, bare }: Subjects): Pick<Arm, "cpu" | "postgresCpu"> {
  return name === "bare"
    ? { cpu: processClock(bare.pid), postgresCpu: () => null }
    : { cpu: service.cpu, postgresCpu: service.postgresCpu };
}

async function sendAll(
  { service, connections }: Subjects,
  status: number,
  requests: readonly string[],
): Promise<void> {
  const load = await HttpLoad.open(service.httpPort, connections);
  try {
    await load.run({ status, next: once(requests), milliseconds: Number.POSITIVE_INFINITY });
  } finally {
    load.close();
  }
}

async function deliverAll(service: ServiceUnderLoad, groups: readonly EncodedGroup[]): Promise<void> {
  const load = await StreamLoad.open(service.grpcAddress, service.ingestToken, {
    streams,
    groupsUnderWay: 2,
  });
  try {
    await load.run({ next: once(groups), milliseconds: Number.POSITIVE_INFINITY });
  } finally {
    load.close();
  }
}

/** The items that an operation uses up, prepared between rounds. */
class Supply<Item> {
  readonly #pending: PendingVerifications;
  readonly #make: (verifications: readonly SeededVerification[]) => Item[];
  #items: Item[] = [];
  #used = 0;
  /** Verifications per item. */
  #size = 1;

  constructor(pending: PendingVerifications, make: (verifications: readonly SeededVerification[]) => Item[]) {
    this.#pending = pending;
    this.#make = make;
  }

  next(): Item | undefined {
    const item = this.#items[this.#used];
    if (item !== undefined) this.#used++;
    return item;
  }

  async fill(most = Math.ceil(this.#used * this.#size * 1.5)): Promise<void> {
    const left = this.#items.slice(this.#used);
    const wanted = Math.max(firstSupply, most);
    const missing = wanted - left.length * this.#size;
    const verifications = missing > 0 ? await this.#pending.take(missing, pendingThroughout) : [];
    const made = this.#make(verifications);
    if (made.length > 0) this.#size = verifications.length / made.length;
    this.#items = [...left, ...made];
    this.#used = 0;
  }
}

function once<Item>(items: readonly Item[]): () => Item | undefined {
  let taken = 0;
  return () => items[taken++];
}

function cycle<Item>(items: readonly Item[]): () => Item {
  let taken = 0;
  return () => items[taken++ % items.length] as Item;
}

function shuffled<Item>(items: readonly Item[]): Item[] {
  const shuffling = [...items];
  for (let index = shuffling.length - 1; index > 0; index--) {
    const other = Math.floor(Math.random() * (index + 1));
    [shuffling[index], shuffling[other]] = [shuffling[other] as Item, shuffling[index] as Item];
  }
  return shuffling;
}
