import type { ServerResponse } from "node:http";
import {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  expect,
  onTestFinished,
  test,
  vi,
} from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import type { ClaimBounds } from "../../src/core/webhook.ts";
import { WebhookEventType } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { EndpointSlots } from "../../src/jobs/endpoint-slots.ts";
import { type Database, openDatabase } from "../../src/storage/database.ts";
import { createWebhookDeliveries, type WebhookDeliveries } from "../../src/storage/webhook-deliveries.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { answerWith, type Receiver, startReceiver, untilReceived } from "./receiver.ts";
import { cancelledCopies, delivered, deliveryWhen, openShop, type Shop } from "./shop.ts";

/** So many events of each shop: one that the service notices as it happens, and others that are due with it. */
async function eventsAtOnce(service: TestService, shops: readonly Shop[], count: number): Promise<void> {
  const created = await Promise.all(shops.map((shop) => shop.create()));
  for (const { id } of created) {
    await service.db.query(
      `WITH ${cancelledCopies(count - 1)}
       INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
       SELECT id, webhook_configuration_id, 'pending', 0, now() FROM made`,
      [decodeId("vrf_", id)],
    );
  }
  await Promise.all(shops.map((shop, index) => shop.cancel(created[index]?.id ?? "")));
}

/** Events of as many other endpoints, each a version of the webhook of the verification, whose URLs begin with `urls`. */
async function eventsOfOthers(
  service: TestService,
  verificationId: string,
  {
    endpoints,
    eventsEach,
    urls,
    due,
  }: { endpoints: number; eventsEach: number; urls: string /** SQL */; due: string },
): Promise<void> {
  await service.db.query(
    `WITH ${cancelledCopies(eventsEach * endpoints)},
     version AS (
       INSERT INTO webhook_configuration (id, project_id, environment, version, url, events, secret, replaced_at)
       SELECT gen_random_uuid(), w.project_id, w.environment, w.version + n, $2 || n, w.events, w.secret, now()
       FROM verification v JOIN webhook_configuration w ON w.id = v.webhook_configuration_id,
         generate_series(1, ${endpoints}) n
       WHERE v.id = $1
       RETURNING id, version
     )
     INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
     SELECT m.id, v.id, 'pending', 0, ${due}
     FROM (SELECT id, row_number() OVER () % ${endpoints} AS n FROM made) m
     JOIN (SELECT id, row_number() OVER () - 1 AS n FROM version) v USING (n)`,
    [decodeId("vrf_", verificationId), urls],
  );
}

describe("a service with endpoints that hang", () => {
  let service: TestService;

  beforeAll(async () => {
    service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
  });

  test("they delay no others, not even on the same host, and have at most two requests in progress each", async () => {
    const hanging = new Map<string, ServerResponse[]>();
    const receiver = await startReceiver((response, { path }) => {
      if (path.startsWith("/ok")) return void response.writeHead(204).end();
      hanging.set(path, [...(hanging.get(path) ?? []), response]);
    });
    const healthy = await Promise.all(Array.from({ length: 5 }, () => openShop(service)));
    for (const [index, shop] of healthy.entries()) {
      await shop.setWebhook(`${receiver.origin}/ok${index}`);
      await deliveryWhen(service, await shop.event(), delivered);
    }
    // More endpoints than the service has slots for endpoints that never answered. Without timers none times out meanwhile.
    suppressTimers(15_000);
    const stuck = await Promise.all(Array.from({ length: 10 }, () => openShop(service)));
    await Promise.all(
      stuck.map(async (shop, tens) => {
        for (let ones = 0; ones < 10; ones++) {
          await shop.setWebhook(`${receiver.origin}/hang${10 * tens + ones}`);
          await eventsAtOnce(service, [shop], 3);
        }
      }),
    );
    await vi.waitUntil(() => [...hanging.values()].flat().length >= 192, { timeout: 45_000 });

    // These would wait forever if they were queued behind the hanging ones.
    for (const shop of healthy) await deliveryWhen(service, await shop.event(), delivered);
    const underWay = [...hanging.values()].map(
      (responses) => responses.filter(({ destroyed }) => !destroyed).length,
    );
    expect(Math.max(...underWay)).toBe(2);

    // Events queued for a hanging endpoint are sent as soon as it answers.
    for (const response of hanging.get("/hang0")?.splice(0) ?? []) response.writeHead(204).end();
    await vi.waitUntil(() => (hanging.get("/hang0")?.length ?? 0) > 0, { timeout: 45_000 });
    receiver.answer = answerWith(204);
    for (const response of [...hanging.values()].flat()) response.destroy();
  });

  test("forty prompt endpoints that start to hang at once, with many events each, delay no event of another", async () => {
    const hanging: ServerResponse[] = [];
    const receiver = await startReceiver();
    const prompt = await Promise.all(Array.from({ length: 40 }, () => openShop(service)));
    const healthy = await openShop(service);
    await healthy.setWebhook(`${receiver.origin}/ok`);
    for (const [index, shop] of prompt.entries()) await shop.setWebhook(`${receiver.origin}/${index}`);
    // On a slow machine, an answer could take longer than a quick endpoint's, and those that hang first could count as slow before the
    // others hang.
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
    onTestFinished(() => clock.mockRestore());
    await Promise.all([...prompt, healthy].map((shop) => shop.event()));
    await untilReceived(receiver, 41);
    suppressTimers(15_000);
    receiver.answer = (response, { path }) => {
      if (path === "/ok") response.writeHead(204).end();
      else hanging.push(response);
    };
    const own = await Promise.all(Array.from({ length: 10 }, () => healthy.create()));
    await eventsAtOnce(service, prompt, 10);
    await vi.waitUntil(() => hanging.length >= 256, { timeout: 45_000, interval: 5 });
    clock.mockRestore();

    for (const { id } of own) {
      await healthy.cancel(id);
      const event = id.replace("vrf_", "evt_");
      const isThere = () => receiver.received.some(({ headers }) => headers["webhook-id"] === event);
      await vi.waitUntil(isThere, { timeout: 45_000, interval: 5 });
    }
    const { rows } = await service.db.query(
      "SELECT number::int FROM webhook_attempt WHERE verification_id = ANY ($1)",
      [own.map(({ id }) => decodeId("vrf_", id))],
    );
    expect(rows).toEqual(own.map(() => ({ number: 1 })));
    for (const response of hanging) response.destroy();
  });

  test("an endpoint with a backlog does not delay the only event of another", async () => {
    const busy = await openShop(service);
    const quiet = await openShop(service);
    suppressTimers(15_000);
    const { promise: goingOn, resolve: goOn } = Promise.withResolvers<void>();
    const slow = await startReceiver((response) => {
      void goingOn.then(() => response.writeHead(204).end());
    });
    const receiver = await startReceiver();
    await busy.setWebhook(slow.url);
    await quiet.setWebhook(receiver.url);
    await eventsAtOnce(service, [busy], 300);
    const id = await quiet.event();
    await deliveryWhen(service, id, delivered);
    expect(slow.received.length).toBeLessThan(300);
    goOn();
    await untilReceived(slow, 300);
  });
});

describe("the most requests in progress", () => {
  let service: TestService;
  let healthy: Shop;
  let receiver: Receiver;
  /** The requests without an answer, by path. */
  let hanging: Map<string, ServerResponse[]>;

  beforeEach(async () => {
    service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
    receiver = await startReceiver();
    healthy = await openShop(service);
    await healthy.setWebhook(`${receiver.origin}/ok`);
    hanging = new Map();
    onTestFinished(async () => {
      for (const response of [...hanging.values()].flat()) response.destroy();
      await service.close();
    });
    suppressTimers(15_000);
  });

  function hangAllOthers(): void {
    receiver.answer = (response, { path }) => {
      if (path === "/ok") response.writeHead(204).end();
      else hanging.set(path, [...(hanging.get(path) ?? []), response]);
    };
  }

  const inAll = () => [...hanging.values()].flat().length;

  /** After so many are in progress, what is due is claimed twice, by the next claims at the earliest. */
  async function countedAfter(count: number): Promise<number> {
    await vi.waitUntil(() => inAll() >= count, { timeout: 45_000, interval: 5 });
    for (const _ of ["once", "twice"]) await deliveryWhen(service, await healthy.event(), delivered);
    return inAll();
  }

  test("endpoints that have never answered have 256 together", async () => {
    hangAllOthers();
    const endpoints = 200;
    await eventsOfOthers(service, await healthy.event(), {
      endpoints,
      eventsEach: 3,
      urls: `${receiver.origin}/hang`,
      due: "now()",
    });
    expect(await countedAfter(256)).toBe(256);
    expect(hanging.size).toBe(endpoints);
  });

  test("one that was prompt has 64, and all of them together have 96 more than eight each", async () => {
    const prompt = [await openShop(service), await openShop(service)];
    for (const [index, shop] of prompt.entries()) await shop.setWebhook(`${receiver.origin}/${index}`);
    // However slow this machine, they answer promptly.
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
    onTestFinished(() => clock.mockRestore());
    await eventsAtOnce(service, prompt, 80);
    const areDelivered = "SELECT FROM webhook_delivery WHERE state = 'delivered'";
    await vi.waitUntil(async () => (await service.db.query(areDelivered)).rowCount === 160, {
      timeout: 45_000,
    });
    hangAllOthers();
    await eventsAtOnce(service, prompt.slice(0, 1), 100);
    expect(await countedAfter(64)).toBe(64);
    await eventsAtOnce(service, prompt.slice(1), 100);
    // The last of the 96 cannot be divided between two.
    expect(await countedAfter(8 + 8 + 95)).toBe(8 + 8 + 95);
    expect(hanging.get("/0")).toHaveLength(64);
  });
});

describe("a claim", () => {
  let service: TestService;
  let database: Database;
  let deliveries: WebhookDeliveries;

  beforeAll(async () => {
    service = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });
    database = openDatabase({ connectionString: service.databaseUrl }, { poolSize: 1, onError: () => {} });
    deliveries = createWebhookDeliveries(database, { onDisabled: () => {} });
  });

  afterAll(() => database.close());
  afterEach(() => service.db.query("UPDATE webhook_delivery SET state = 'failed', next_attempt_at = NULL"));

  const wide = { limit: 100, quickLimit: 100, slowLimit: 100, slowFirstLimit: 100, perEndpoint: 100 };
  const allOf = (endpoint: string) => ({ endpoint, slow: false, underWay: 0, room: 100 });

  /** Creates an endpoint for each of `counts` with that many events, the first one's due earliest; returns their keys. */
  async function withEvents(...counts: number[]): Promise<string[]> {
    const names: string[] = [];
    for (const count of counts) {
      const shop = await openShop(service);
      await shop.setWebhook("http://127.0.0.1:1/hook");
      const last = [];
      for (let event = 0; event < count; event++) last.push(decodeId("vrf_", await shop.event()));
      const { attempts } = await deliveries.claim({
        ...wide,
        endpoints: names.map((name) => ({ ...allOf(name), room: 0 })),
      });
      names.push(attempts[0]?.endpoint ?? "");
      await service.db.query(
        `UPDATE webhook_delivery SET attempts = 0, next_attempt_at = now() - make_interval(secs => $2)
         WHERE verification_id = ANY ($1)`,
        [last, 100 - names.length],
      );
      await service.db.query("DELETE FROM webhook_attempt");
    }
    return names;
  }

  async function claimed(bounds: ClaimBounds, names: string[]): Promise<number[]> {
    const { attempts } = await deliveries.claim(bounds);
    return names.map((name) => attempts.filter(({ endpoint }) => endpoint === name).length);
  }

  test("prefers endpoints with the fewest attempts in progress, even if others have waited longer", async () => {
    const names = await withEvents(5, 5, 2);
    const endpoints = names.map((name, index) => ({ ...allOf(name), underWay: [3, 1, 0][index] ?? 0 }));
    expect(await claimed({ ...wide, limit: 3, endpoints }, names)).toEqual([0, 1, 2]);
    expect(await claimed({ ...wide, quickLimit: 1, endpoints }, names)).toEqual([0, 1, 0]);
  });

  test("prefers of two endpoints the one whose earliest event has waited longer, whenever its others are due", async () => {
    const names = await withEvents(2, 1);
    await service.db.query(`
      UPDATE webhook_delivery SET next_attempt_at = now()
      WHERE ctid = (SELECT ctid FROM webhook_delivery WHERE state = 'pending' ORDER BY next_attempt_at LIMIT 1)`);
    expect(await claimed({ ...wide, limit: 1, quickLimit: 1, endpoints: names.map(allOf) }, names)).toEqual([
      1, 0,
    ]);
  });

  test.for([
    { lane: "quick", slow: false, bounds: { quickLimit: 0 }, taken: [0, 1, 1] },
    { lane: "slow", slow: true, bounds: { slowLimit: 0 }, taken: [0, 1, 1] },
    { lane: "slow", slow: true, bounds: { slowLimit: 0, slowFirstLimit: 1 }, taken: [0, 1, 0] },
    { lane: "slow", slow: true, bounds: { slowLimit: 1, slowFirstLimit: 0 }, taken: [0, 1, 0] },
  ])("of $lane endpoints, with $bounds, only those with nothing in progress get one", async ({
    slow,
    bounds,
    taken,
  }) => {
    const names = await withEvents(3, 3, 3);
    const endpoints = names.map((name, index) => ({ ...allOf(name), slow, underWay: index === 0 ? 2 : 0 }));
    expect(await claimed({ ...wide, ...bounds, endpoints }, names)).toEqual(taken);
  });

  test("beyond slowLimit, endpoints that are not listed get one each", async () => {
    const names = await withEvents(3, 3);
    expect(await claimed({ ...wide, slowLimit: 0, endpoints: [] }, names)).toEqual([1, 1]);
  });

  test("takes no more for an endpoint than it has room for, also if events of two versions of it are due", async () => {
    const shop = await openShop(service);
    for (const events of [[], [WebhookEventType.VERIFICATION_CANCELLED]]) {
      await shop.setWebhook("http://127.0.0.1:1/hook", events);
      for (let event = 0; event < 2; event++) await shop.event();
    }
    const { attempts } = await deliveries.claim({ ...wide, perEndpoint: 3, endpoints: [] });
    expect(attempts).toHaveLength(3);
  });

  test("takes as many for an endpoint as it has room for, also if hundreds are due", async () => {
    const shop = await openShop(service);
    await shop.setWebhook("http://127.0.0.1:1/hook");
    const due = { endpoints: 1, eventsEach: 200, urls: "http://127.0.0.1:1/", due: "now()" };
    await eventsOfOthers(service, await shop.event(), due);
    const { attempts } = await deliveries.claim({ ...wide, perEndpoint: 50, endpoints: [] });
    expect(attempts).toHaveLength(51);
  });

  test("looks at no endpoint whose events all wait for a later attempt", async () => {
    const shop = await openShop(service);
    await shop.setWebhook("http://127.0.0.1:1/hook");
    const waiting = {
      endpoints: 300,
      eventsEach: 1,
      urls: "http://127.0.0.1:1/",
      due: "now() + interval '1 hour'",
    };
    await eventsOfOthers(service, await shop.event(), waiting);
    // Now and then a claim does look at all of them.
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
    onTestFinished(() => clock.mockRestore());
    const claimOne = async () => {
      const { attempts } = await deliveries.claim({ ...wide, endpoints: [] });
      expect(attempts).toHaveLength(1);
    };
    const scans = async () => {
      // What the test's own statements have scanned is counted now as well, not in between.
      const flush = "SELECT pg_stat_force_next_flush()";
      await database.query({ text: flush, rowMode: "array" });
      await service.db.query(flush);
      const { rows } = await service.db.query(
        "SELECT sum(idx_scan)::int AS scans FROM pg_stat_user_indexes WHERE relname IN ('webhook_delivery', 'webhook_configuration')",
      );
      return rows[0].scans;
    };
    await claimOne();
    await shop.event();
    const before = await scans();
    await claimOne();
    expect((await scans()) - before).toBeLessThan(waiting.endpoints);
  });

  test("sets aside after a second what a disabled webhook has in the queue for later, however often it is made", async () => {
    const [disabled, other] = [await openShop(service), await openShop(service)];
    for (const shop of [disabled, other]) await shop.setWebhook("http://127.0.0.1:1/hook");
    await disabled.event();
    await service.db.query(
      "UPDATE webhook_delivery SET next_attempt_at = now() + interval '1 hour' WHERE state = 'pending'",
    );
    let now = performance.now() + 2_000;
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now);
    onTestFinished(() => clock.mockRestore());
    const heldBack: number[] = [];
    for (let made = 0; made < 4; made++) {
      await other.event();
      const claim = await deliveries.claim({ ...wide, endpoints: [] });
      expect(claim.attempts).toHaveLength(1);
      heldBack.push(claim.heldBack);
      now += 300;
      // One that finds nothing due is no reason for the next not to look.
      expect(await deliveries.claim({ ...wide, endpoints: [] })).toEqual({ attempts: [], heldBack: 0 });
      now += 100;
      await service.db.query(
        "UPDATE webhook_configuration SET disabled_at = now(), disabled_reason = 'disabled by hand' WHERE project_id = $1",
        [decodeId("prj_", disabled.projectId)],
      );
    }
    expect(heldBack).toEqual([0, 0, 0, 1]);
  });

  test("takes no events of disabled webhooks, also if more are due than one claim sets aside", async () => {
    const names = await withEvents(1, 1);
    await service.db.query(`
      WITH copy AS MATERIALIZED (
        SELECT gen_random_uuid() AS id, e.type, e.occurred_at, d.*
        FROM event e JOIN webhook_delivery d USING (verification_id), generate_series(1, 299)
        WHERE d.state = 'pending'
      ),
      events AS (INSERT INTO event (verification_id, type, occurred_at) SELECT id, type, occurred_at FROM copy)
      INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
      SELECT id, webhook_configuration_id, state, attempts, next_attempt_at FROM copy`);
    await service.db.query(
      "UPDATE webhook_configuration SET disabled_at = now(), disabled_reason = 'disabled by hand'",
    );
    for (const heldBack of [500, 100, 0]) {
      const claim = await deliveries.claim({ ...wide, endpoints: names.map(allOf) });
      expect(claim).toEqual({ attempts: [], heldBack });
    }
    const { rows } = await service.db.query(`
      SELECT count(*)::int AS kept, sum(attempts)::int AS attempts, (SELECT count(*)::int FROM webhook_attempt) AS made
      FROM webhook_delivery WHERE state = 'disabled'`);
    expect(rows).toEqual([{ kept: 600, attempts: 0, made: 0 }]);
  });
});

describe("slots", () => {
  const limits = {
    inAll: 30,
    quickInAll: 10,
    slowInAll: 5,
    perQuickEndpoint: 4,
    perPromptEndpoint: 6,
    extraInAll: 3,
    perEndpoint: 2,
    slowAfterMs: 1_000,
    promptWithinMs: 100,
  };
  let now = 0;
  let slots: EndpointSlots;

  beforeEach(() => {
    vi.spyOn(performance, "now").mockImplementation(() => now);
    slots = new EndpointSlots(limits);
  });
  afterEach(() => vi.restoreAllMocks());

  const roomOf = (key: string) => slots.claimBounds().endpoints.find(({ endpoint }) => endpoint === key);

  function limitsNow() {
    const { endpoints, perEndpoint, ...limits } = slots.claimBounds();
    return limits;
  }

  function answers(key: string, afterMs: number, accepted = true): void {
    const giveBack = slots.take(key);
    now += afterMs;
    giveBack(accepted);
  }

  function takes(key: string, count: number): void {
    for (let taken = 0; taken < count; taken++) slots.take(key);
  }

  test("an endpoint has few until it answers quickly, then more", () => {
    const giveBack = [slots.take("a"), slots.take("a")];
    expect(slots.claimBounds()).toEqual({
      limit: 28,
      quickLimit: 10,
      slowLimit: 3,
      slowFirstLimit: 18,
      perEndpoint: 2,
      endpoints: [{ endpoint: "a", slow: true, underWay: 2, room: 0 }],
    });
    for (const end of giveBack) end(true);
    expect(slots.claimBounds()).toEqual({
      limit: 30,
      quickLimit: 10,
      slowLimit: 5,
      slowFirstLimit: 20,
      perEndpoint: 2,
      endpoints: [{ endpoint: "a", slow: false, underWay: 0, room: 5 }],
    });
  });

  test("an endpoint gains one with each event that it accepts promptly, up to a limit", () => {
    for (const room of [4, 5, 6, 6]) {
      answers("a", 100);
      expect(roomOf("a")).toMatchObject({ slow: false, room });
    }
  });

  test("endpoints that gained slots and hang hold at most extraInAll additional ones together", () => {
    for (const key of ["a", "b", "a", "b", "a", "b"]) answers(key, 10);
    const rooms = () => slots.claimBounds().endpoints.map(({ endpoint, room }) => [endpoint, room]);
    for (const key of ["a", "b"]) slots.take(key);
    // extraInAll is 3, shared by two endpoints: one each.
    expect(rooms()).toEqual([
      ["a", 4],
      ["b", 4],
    ]);
    for (const key of ["a", "b"]) takes(key, 4);
    expect(rooms()).toEqual([
      ["a", 0],
      ["b", 0],
    ]);
    expect(slots.free).toBe(20);
  });

  test("once endpoints that gained slots count as hanging, others can gain slots", () => {
    for (let prompt = 0; prompt < 3; prompt++) answers("hangs", 10);
    takes("hangs", 6);
    for (let prompt = 0; prompt < 3; prompt++) answers("a", 10);
    expect(roomOf("a")?.room).toBe(4);
    now += 1_000;
    answers("a", 10);
    expect(roomOf("a")?.room).toBe(6);
  });

  test("slots that endpoints gained are shared only by those of them that are in use", () => {
    for (const key of ["a", "b", "a", "b", "a", "b"]) answers(key, 10);
    answers("never gained", 10);
    expect(roomOf("a")?.room).toBe(5);
    for (const key of ["a", "never gained"]) answers(key, 10, false);
    for (let prompt = 0; prompt < 3; prompt++) answers("a", 10);
    expect(slots.claimBounds().endpoints.map(({ endpoint, room }) => [endpoint, room])).toEqual([
      ["b", 4],
      ["never gained", 4],
      ["a", 6],
    ]);
  });

  test("of the quick endpoints a thousand are remembered, those that were used last", () => {
    for (let index = 0; index < 1_000; index++) answers(`${index}`, 10);
    answers("0", 10);
    answers("one more", 10);
    const known = slots.claimBounds().endpoints.map(({ endpoint }) => endpoint);
    expect(known).toHaveLength(1_000);
    expect(known).toEqual(expect.arrayContaining(["0", "2", "one more"]));
  });

  test.for([
    { name: "refuses an event", afterMs: 10, accepted: false },
    { name: "is not prompt", afterMs: 101, accepted: true },
  ])("an endpoint that $name loses the slots that it gained", ({ afterMs, accepted }) => {
    for (let prompt = 0; prompt < 3; prompt++) answers("a", 10);
    expect(roomOf("a")?.room).toBe(6);
    answers("a", afterMs, accepted);
    expect(roomOf("a")).toMatchObject({ slow: false, room: 4 });
  });

  test("an endpoint that takes longer than a second has few again, at once and until it answers quickly", () => {
    answers("a", 10);
    const slow = slots.take("a");
    expect(roomOf("a")).toMatchObject({ slow: false, room: 3 });
    now += 1_000;
    expect(roomOf("a")).toMatchObject({ slow: true, room: 1 });
    now += 1;
    slow(true);
    expect(roomOf("a")).toBeUndefined();
    answers("a", 10);
    expect(roomOf("a")).toMatchObject({ slow: false, room: 4 });
  });

  test("endpoints not known to be quick use none of the quick ones' slots", () => {
    for (const key of ["a", "a", "b", "b", "c"]) slots.take(key);
    expect(limitsNow()).toEqual({ limit: 25, quickLimit: 10, slowLimit: 0, slowFirstLimit: 15 });
  });

  test("slots of endpoints that start to hang no longer count against the quick ones after a second", () => {
    for (const key of ["a", "b", "c"]) {
      answers(key, 10);
      takes(key, 3);
    }
    now += 970;
    slots.take("c");
    expect(limitsNow()).toEqual({ limit: 20, quickLimit: 0, slowLimit: 5, slowFirstLimit: 20 });
    now += 30;
    expect(limitsNow()).toEqual({ limit: 20, quickLimit: 5, slowLimit: 0, slowFirstLimit: 10 });
  });

  test("once quickInAll and slowInAll are used up, an endpoint gets only its first slot", () => {
    for (const key of ["a", "b", "c", "d"]) answers(key, 10);
    const ends = ["a", "b", "c", "d"].flatMap((key) => Array.from({ length: 4 }, () => slots.take(key)));
    expect(limitsNow()).toEqual({ limit: 14, quickLimit: 0, slowLimit: 0, slowFirstLimit: 20 });
    for (const end of ends) end(true);
    for (const [index, key] of ["a", "b", "c", "d"].entries()) {
      answers(key, 10);
      takes(key, index < 3 ? 4 : 3);
      now += 1_000;
    }
    expect(limitsNow()).toEqual({ limit: 15, quickLimit: 0, slowLimit: 0, slowFirstLimit: 5 });
  });
});
