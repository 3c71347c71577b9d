import type { ServerResponse } from "node:http";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { EndpointSlots } from "../../src/jobs/endpoint-slots.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { startReceiver, untilReceived } from "./receiver.ts";
import { delivered, deliveryWhen, openShop } from "./shop.ts";

describe("a service with endpoints that hang", () => {
  let service: TestService;

  beforeAll(async () => {
    service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
  });

  test("others, on the same host too, are not delayed; one that hangs has few requests under way", async () => {
    const hanging = new Map<string, ServerResponse[]>();
    const receiver = await startReceiver((response, { path }) => {
      if (path.startsWith("/ok")) return void response.writeHead(204).end();
      hanging.set(path, [...(hanging.get(path) ?? []), response]);
    });
    const stuck = await Promise.all(Array.from({ length: 5 }, () => openShop(service)));
    for (const [index, shop] of stuck.entries()) await shop.setWebhook(`${receiver.origin}/hang${index}`);
    const healthy = await Promise.all(Array.from({ length: 5 }, () => openShop(service)));
    for (const [index, shop] of healthy.entries()) await shop.setWebhook(`${receiver.origin}/ok${index}`);

    await Promise.all(stuck.flatMap((shop) => Array.from({ length: 30 }, () => shop.event())));
    await vi.waitUntil(() => [...hanging.values()].flat().length >= 5 * 8, { timeout: 10_000 });

    for (const shop of healthy) {
      const before = performance.now();
      const id = await shop.event();
      await deliveryWhen(service, id, delivered);
      // Behind one that hangs it would be fifteen.
      expect(performance.now() - before).toBeLessThan(5_000);
    }
    expect([...hanging.values()].map(({ length }) => length)).toEqual([8, 8, 8, 8, 8]);

    // What was held up by its own endpoint follows as that answers.
    for (const response of hanging.get("/hang0")?.splice(0) ?? []) response.writeHead(204).end();
    await vi.waitUntil(() => (hanging.get("/hang0")?.length ?? 0) > 0, { timeout: 10_000 });
  });

  test("an endpoint with a backlog does not hold up another's one event", async () => {
    const busy = await openShop(service);
    const quiet = await openShop(service);
    const slow = await startReceiver((response) => {
      setTimeout(() => response.writeHead(204).end(), 20);
    });
    const receiver = await startReceiver();
    await busy.setWebhook(slow.url);
    await quiet.setWebhook(receiver.url);
    await Promise.all(Array.from({ length: 300 }, () => busy.event()));
    const id = await quiet.event();
    await deliveryWhen(service, id, delivered);
    expect(slow.received.length).toBeLessThan(300);
    await untilReceived(slow, 300);
  });
});

describe("slots", () => {
  const limits = { inAll: 10, perEndpoint: 4, perSlowEndpoint: 2, slowInAll: 5, slowAfterMs: 1_000 };

  function slotsAt(): { slots: EndpointSlots; pass: (milliseconds: number) => void } {
    let now = 0;
    vi.spyOn(performance, "now").mockImplementation(() => now);
    return {
      slots: new EndpointSlots(limits),
      pass: (milliseconds) => {
        now += milliseconds;
      },
    };
  }

  const roomOf = (slots: EndpointSlots, key: string) =>
    slots.bounds().endpoints.find(({ endpoint }) => endpoint === key);

  test("an endpoint has few, and gets them back", () => {
    const { slots } = slotsAt();
    const giveBack = [slots.take("a"), slots.take("a"), slots.take("a")];
    expect(slots.bounds()).toEqual({
      limit: 7,
      slowLimit: 5,
      perEndpoint: 4,
      endpoints: [{ endpoint: "a", slow: false, room: 1 }],
    });
    for (const end of giveBack) end();
    expect(slots.bounds()).toEqual({ limit: 10, slowLimit: 5, perEndpoint: 4, endpoints: [] });
    vi.restoreAllMocks();
  });

  test("one that takes longer than a second has fewer, until it has once been quicker", () => {
    const { slots, pass } = slotsAt();
    const first = slots.take("a");
    pass(1_000);
    expect(roomOf(slots, "a")).toEqual({ endpoint: "a", slow: true, room: 1 });
    pass(1);
    first();
    expect(roomOf(slots, "a")).toEqual({ endpoint: "a", slow: true, room: 2 });
    const second = slots.take("a");
    pass(10);
    second();
    expect(roomOf(slots, "a")).toBeUndefined();
    vi.restoreAllMocks();
  });

  test("the slow ones together leave half to the others", () => {
    const { slots, pass } = slotsAt();
    for (const key of ["a", "b", "c", "d", "e"]) slots.take(key);
    pass(2_000);
    const { limit, slowLimit, endpoints } = slots.bounds();
    expect({ limit, slowLimit }).toEqual({ limit: 5, slowLimit: 0 });
    expect(endpoints.map(({ room }) => room)).toEqual([0, 0, 0, 0, 0]);
    vi.restoreAllMocks();
  });
});
