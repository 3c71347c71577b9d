/** Nothing breaks here: the faults are in time, order and repetition. */

import { setTimeout as delay } from "node:timers/promises";
import { decodeId } from "../../src/core/ids.ts";
import { type Cut, startCuttingProxy } from "../cli/cutting-proxy.ts";
import { moveExpiry } from "../harness/expiry.ts";
import type { Fault } from "./faults.ts";
import { newKey, newPhone } from "./load.ts";
import type { Random } from "./random.ts";
import type { ServiceLife } from "./service-process.ts";
import { type SmsMessage, type SmsSource, startSmsSource } from "./sms-source.ts";
import type { World } from "./world.ts";

interface Pending {
  readonly id: string;
  readonly message: SmsMessage;
}

async function createPending({ calls }: World, random: Random): Promise<Pending> {
  const key = newKey();
  const { body } = await calls.create(random, key, { client_reference: key });
  const { id, destination, sms_text } = JSON.parse(body);
  return { id, message: { messageId: newKey(), from: newPhone(), to: destination, text: sms_text } };
}

/** Lets the verification expire in this many milliseconds by the database's clock. */
async function expireIn({ database }: World, { id }: Pending, milliseconds: number): Promise<void> {
  const db = {
    query: async (text: string, values: unknown[]) => ({ rows: await database.query(text, values) }),
  };
  await moveExpiry(db, {
    expiresAt: "now() + make_interval(secs => $2::float8 / 1000)",
    where: "id = $1",
    values: [decodeId("vrf_", id), milliseconds],
  });
}

const races = 1_000;
const racesAtOnce = 25;
/** The time span within which the contenders start. */
const photoFinishMs = 30;

/** SMS, cancel, read and expiry at the same moment: each client's answer is compared with the rows afterwards. */
async function race(world: World, source: SmsSource, random: Random): Promise<void> {
  const pending = await createPending(world, random);
  const ends = [
    () => source.send(pending.message),
    () => world.calls.cancel(random.fork(), pending.id),
    () => world.calls.read(random.fork(), pending.id),
  ];
  const contenders = random.shuffle(ends).slice(0, 2 + random.below(2));
  if (random.chance(0.5)) await expireIn(world, pending, random.between(0, photoFinishMs));
  await Promise.all(
    contenders.map(async (contend) => {
      await delay(random.between(0, photoFinishMs));
      await contend();
    }),
  );
}

const messagesAWorld = 80;

function someCuts(random: Random): Cut[] {
  return Array.from({ length: 1 + random.below(6) }, () => ({
    from: random.pick(["client", "server"] as const),
    bytes: 20 + random.below(6_000),
  }));
}

export const orderFaults: readonly Fault[] = [
  {
    name: "races",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply(world, random) {
      const { journal, balancer, installation } = world;
      const [{ name, token } = { name: "", token: "" }] = installation.sources;
      const source = startSmsSource({ name, token, journal, balancer, random: random.fork() });
      for (let left = races; left > 0; left -= racesAtOnce) {
        await Promise.all(Array.from({ length: racesAtOnce }, () => race(world, source, random.fork())));
      }
      await source.close();
    },
  },
  {
    // Sends each message over both connections of one source, in different orders, and under another id over the other source;
    // then some of them once more.
    name: "inbound-disorder",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply(world, random) {
      const { journal, balancer, installation, processes, database } = world;
      const proxies = new Map<ServiceLife, Awaited<ReturnType<typeof startCuttingProxy>>>();
      for (const service of processes) {
        const life = await service.running();
        proxies.set(life, await startCuttingProxy(() => life.grpcAddress, someCuts(random)));
      }
      const stream = ({ name, token }: { readonly name: string; readonly token: string }) =>
        startSmsSource({
          name,
          token,
          journal,
          balancer,
          random: random.fork(),
          addressOf: (life) => proxies.get(life)?.address ?? life.grpcAddress,
          isCut: () => true,
        });
      const [one, other] = installation.sources;
      if (one === undefined || other === undefined) throw new Error("there are two sources");
      const streams = [stream(one), stream(one), stream(other)] as const;
      const pendings = await Promise.all(
        Array.from({ length: messagesAWorld }, () => createPending(world, random.fork())),
      );
      const messages = pendings.map(({ message }) => message);
      const elsewhere = messages.map((message) => ({
        ...message,
        messageId: `${message.messageId}-elsewhere`,
      }));
      await Promise.all([
        ...messages.map((message) => streams[0].send(message)),
        ...random.shuffle(messages).map((message) => streams[1].send(message)),
        ...random.shuffle(elsewhere).map((message) => streams[2].send(message)),
      ]);
      await Promise.all(
        messages.slice(random.below(messages.length)).map((message) => streams[1].send(message)),
      );
      await Promise.all(streams.map((source) => source.close()));
      await Promise.all([...proxies.values()].map((proxy) => proxy.close()));
      const [verified] = await database.query<{ count: number }>(
        "SELECT count(*)::int AS count FROM verification WHERE status = 'verified' AND id = ANY ($1::uuid[])",
        [pendings.map(({ id }) => decodeId("vrf_", id))],
      );
      if (verified?.count !== pendings.length) {
        journal.append({ what: "violation", text: `${verified?.count} of ${pendings.length} were verified` });
      }
    },
  },
  {
    // One clock is half an hour ahead, the other half an hour behind: both processes must give the same answers.
    name: "skewed-clocks",
    setting: "skewed clocks",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply(world, random) {
      const { journal, calls, processes, database } = world;
      const lives = await Promise.all(processes.map((service) => service.running()));
      for (let left = 20; left > 0; left--) {
        const pending = await createPending(world, random);
        await expireIn(world, pending, 400);
        let ended = false;
        while (!ended) {
          const [before] = await database.query<{ over: boolean; now: Date }>(
            "SELECT expires_at <= now() AS over, now() AS now FROM verification WHERE id = $1",
            [decodeId("vrf_", pending.id)],
          );
          const answers = await Promise.all(lives.map((life) => calls.tryOnce(life, "read", pending.id)));
          const [after] = await database.query<{ over: boolean }>(
            "SELECT expires_at <= now() AS over FROM verification WHERE id = $1",
            [decodeId("vrf_", pending.id)],
          );
          for (const answer of answers) {
            const { status, server_time } = JSON.parse(answer?.body ?? "{}");
            const early = status === "expired" && after?.over === false;
            const late = status === "pending" && before?.over === true;
            const off = Math.abs(Date.parse(server_time) - (before?.now.getTime() ?? 0));
            if (early || late || !(off < 60_000)) {
              journal.append({ what: "violation", text: `${answer?.body} at ${before?.now.toISOString()}` });
            }
          }
          ended = before?.over === true;
        }
      }
    },
  },
];
