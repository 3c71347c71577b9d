import fc from "fast-check";
import { afterAll, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookEventType } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createWebhookDeliveries } from "../../src/storage/webhook-deliveries.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService } from "../harness/service.ts";
import { eventsOf } from "../service/pending.ts";
import { newPhone } from "../service/sms-source.ts";
import { withinLimit } from "../service/time-limit.ts";
import { isVerifiedBy, type Payload, startReceiver } from "./receiver.ts";
import { everything, openShop } from "./shop.ts";

/** An API process only: a worker is started at the end of each history; workers that die before are simulated. */
const service = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });
const verifications = service.client(VerificationService);
const receiver = await startReceiver();
const database = openDatabase({ connectionString: service.databaseUrl }, { poolSize: 2, onError: () => {} });
const deliveries = createWebhookDeliveries(database, { onDisabled: () => {} });
afterAll(() => database.close());

const runs = 12;
const timeLimitMs = 20_000;

const kinds = ["verified", "expired", "cancelled"] as const;
type Kind = (typeof kinds)[number];
const eventTypes: Record<Kind, WebhookEventType> = {
  verified: WebhookEventType.VERIFICATION_VERIFIED,
  expired: WebhookEventType.VERIFICATION_EXPIRED,
  cancelled: WebhookEventType.VERIFICATION_CANCELLED,
};

const which = fc.nat(99);
const step = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constant("create") }) },
  { weight: 7, arbitrary: fc.record({ do: fc.constant("end"), which, as: fc.constantFrom(...kinds) }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant("set"),
      endpoint: fc.constantFrom("a", "b", "c"),
      events: fc.subarray([...kinds], { minLength: 1 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("rotate") }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("remove") }) },
  // Claims what is due, like a worker that dies before it sends.
  { weight: 3, arbitrary: fc.record({ do: fc.constant("die") }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("leases end") }) },
);
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

interface Webhook {
  readonly path: string;
  readonly secret: string;
  readonly events: readonly Kind[];
}

interface Verification {
  readonly id: string;
  readonly destination: string;
  readonly smsText: string;
  /** The webhook in force at its creation. */
  readonly webhook: Webhook | null;
  /** The first end; later attempts to end it change nothing. */
  end: Kind | null;
}

async function live(steps: readonly Step[]): Promise<void> {
  const shop = await openShop(service);
  const made: Verification[] = [];
  let webhook = null as Webhook | null;

  async function endIt(verification: Verification, as: Kind): Promise<void> {
    const { id, destination, smsText } = verification;
    if (as === "verified") {
      await service.sms({ from: newPhone(), to: destination, text: smsText });
    } else if (as === "cancelled") {
      await verifications.cancelVerification({ verificationId: id }).catch(() => undefined);
    } else if (verification.end === null) {
      await moveExpiry(service.db, {
        expiresAt: "now() - interval '1 h'",
        where: "id = $1",
        values: [decodeId("vrf_", id)],
      });
      await verifications.getVerification({ verificationId: id });
    }
    verification.end ??= as;
  }

  for (const step of steps) {
    if (step.do === "create") {
      made.push({ ...(await shop.create()), webhook, end: null });
    } else if (step.do === "end") {
      const verification = made[step.which % Math.max(1, made.length)];
      if (verification) await endIt(verification, step.as);
    } else if (step.do === "set") {
      const { endpoint, events } = step;
      const path = `/${shop.projectId}/${endpoint}`;
      const types = events.map((kind) => eventTypes[kind]);
      const { secret } = await shop.setWebhook(`${receiver.origin}${path}`, types);
      webhook = { path, secret, events };
    } else if (step.do === "rotate") {
      if (webhook) webhook = { ...webhook, secret: await shop.rotateSecret() };
    } else if (step.do === "remove") {
      if (webhook) await shop.removeWebhook();
      webhook = null;
    } else if (step.do === "die") {
      await deliveries.claim(everything);
    } else {
      await endLeases();
    }
  }

  await endLeases();
  const worker = await service.startAnother({ ROLES: "worker" });
  await vi.waitUntil(
    async () => {
      const { rows } = await service.db.query(
        "SELECT count(*)::int AS pending FROM webhook_delivery WHERE state = 'pending'",
      );
      return rows[0].pending === 0;
    },
    { timeout: 45_000, interval: 50 },
  );
  await worker.close();

  const requests = receiver.received.map((request) => ({
    ...request,
    payload: JSON.parse(request.body) as Payload,
  }));
  receiver.received.length = 0;
  for (const { id, webhook, end } of made) {
    expect(await eventsOf(service.db, id)).toEqual(end === null ? [] : [`verification.${end}`]);
    const received = requests.filter(({ payload }) => payload.data.id === id);
    if (end === null || webhook === null || !webhook.events.includes(end)) {
      expect(received).toEqual([]);
      continue;
    }
    expect(received.length).toBeGreaterThanOrEqual(1);
    for (const request of received) {
      expect(request.path).toBe(webhook.path);
      expect(request.headers["webhook-id"]).toBe(id.replace("vrf_", "evt_"));
      expect(request.payload.type).toBe(`verification.${end}`);
      expect(isVerifiedBy(request, webhook.secret)).toBe(true);
    }
  }
}

/** Ends all leases, so that what a dead worker claimed can be claimed again. */
async function endLeases(): Promise<void> {
  await service.db.query("UPDATE webhook_delivery SET next_attempt_at = now() WHERE state = 'pending'");
}

test("in random histories with dying workers, each ending is one event, sent to the captured webhook", async () => {
  const steps = fc.array(step, { minLength: 15, maxLength: 50, size: "max" });
  await fc.assert(fc.asyncProperty(steps, withinLimit(timeLimitMs, live)), { numRuns: runs });
});
