import type { ServerResponse } from "node:http";
import { afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { EndpointSlots } from "../../src/jobs/endpoint-slots.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { withholdTimers } from "../harness/timers.ts";
import { answerWith, startReceiver, untilReceived } from "./receiver.ts";
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
    const healthy = await Promise.all(Array.from({ length: 5 }, () => openShop(service)));
    for (const [index, shop] of healthy.entries()) {
      await shop.setWebhook(`${receiver.origin}/ok${index}`);
      await deliveryWhen(service, await shop.event(), delivered);
    }
    // More than the service has not heard of and can have under way. None is given up while this lasts.
    withholdTimers(15_000);
    const stuck = await Promise.all(Array.from({ length: 10 }, () => openShop(service)));
    await Promise.all(
      stuck.map(async (shop, tens) => {
        for (let ones = 0; ones < 10; ones++) {
          await shop.setWebhook(`${receiver.origin}/hang${10 * tens + ones}`);
          await Promise.all([shop.event(), shop.event(), shop.event()]);
        }
      }),
    );
    await vi.waitUntil(() => [...hanging.values()].flat().length >= 192, { timeout: 45_000 });

    // Behind those that hang they would never be.
    for (const shop of healthy) await deliveryWhen(service, await shop.event(), delivered);
    const underWay = [...hanging.values()].map(
      (responses) => responses.filter(({ destroyed }) => !destroyed).length,
    );
    expect(Math.max(...underWay)).toBe(2);

    // What was held up by its own endpoint follows as that answers.
    for (const response of hanging.get("/hang0")?.splice(0) ?? []) response.writeHead(204).end();
    await vi.waitUntil(() => (hanging.get("/hang0")?.length ?? 0) > 0, { timeout: 45_000 });
    receiver.answer = answerWith(204);
    for (const response of [...hanging.values()].flat()) response.destroy();
  });

  test("an endpoint with a backlog does not hold up another's one event", async () => {
    const busy = await openShop(service);
    const quiet = await openShop(service);
    withholdTimers(15_000);
    const { promise: goingOn, resolve: goOn } = Promise.withResolvers<void>();
    const slow = await startReceiver((response) => {
      void goingOn.then(() => response.writeHead(204).end());
    });
    const receiver = await startReceiver();
    await busy.setWebhook(slow.url);
    await quiet.setWebhook(receiver.url);
    await Promise.all(Array.from({ length: 300 }, () => busy.event()));
    const id = await quiet.event();
    await deliveryWhen(service, id, delivered);
    expect(slow.received.length).toBeLessThan(300);
    goOn();
    await untilReceived(slow, 300);
  });
});

describe("slots", () => {
  const limits = {
    inAll: 10,
    perQuickEndpoint: 4,
    perPromptEndpoint: 6,
    extraInAll: 3,
    perEndpoint: 2,
    slowInAll: 5,
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

  const roomOf = (key: string) => slots.bounds().endpoints.find(({ endpoint }) => endpoint === key);

  function answers(key: string, afterMs: number, accepted = true): void {
    const giveBack = slots.take(key);
    now += afterMs;
    giveBack(accepted);
  }

  test("an endpoint has few until it has answered quickly, and then more", () => {
    const giveBack = [slots.take("a"), slots.take("a")];
    expect(slots.bounds()).toEqual({
      limit: 8,
      slowLimit: 3,
      perEndpoint: 2,
      endpoints: [{ endpoint: "a", slow: true, room: 0 }],
    });
    for (const end of giveBack) end(true);
    expect(slots.bounds()).toEqual({
      limit: 10,
      slowLimit: 5,
      perEndpoint: 2,
      endpoints: [{ endpoint: "a", slow: false, room: 5 }],
    });
  });

  test("with each event that it takes promptly it has one more, up to a bound", () => {
    for (const room of [4, 5, 6, 6]) {
      answers("a", 100);
      expect(roomOf("a")).toEqual({ endpoint: "a", slow: false, room });
    }
  });

  test("should those that have grown hang, they hold no more beyond the others than is set for all of them", () => {
    for (const key of ["a", "b", "a", "b", "a", "b"]) answers(key, 10);
    const rooms = () => slots.bounds().endpoints.map(({ endpoint, room }) => [endpoint, room]);
    for (const key of ["a", "b"]) slots.take(key);
    // Three more for two: one each.
    expect(rooms()).toEqual([
      ["a", 4],
      ["b", 4],
    ]);
    for (const key of ["a", "b"]) for (let more = 0; more < 4; more++) slots.take(key);
    expect(rooms()).toEqual([
      ["a", 0],
      ["b", 0],
    ]);
    expect(slots.taken).toBe(10);
  });

  test.for([
    { name: "refuses one", afterMs: 10, accepted: false },
    { name: "takes longer for one", afterMs: 101, accepted: true },
  ])("where it $name, it is back to where it began", ({ afterMs, accepted }) => {
    for (let prompt = 0; prompt < 3; prompt++) answers("a", 10);
    expect(roomOf("a")?.room).toBe(6);
    answers("a", afterMs, accepted);
    expect(roomOf("a")).toEqual({ endpoint: "a", slow: false, room: 4 });
  });

  test("one that takes longer than a second has few again, at once and until it has been quicker", () => {
    answers("a", 10);
    const slow = slots.take("a");
    expect(roomOf("a")).toEqual({ endpoint: "a", slow: false, room: 3 });
    now += 1_000;
    expect(roomOf("a")).toEqual({ endpoint: "a", slow: true, room: 1 });
    now += 1;
    slow(true);
    expect(roomOf("a")).toBeUndefined();
    answers("a", 10);
    expect(roomOf("a")).toEqual({ endpoint: "a", slow: false, room: 4 });
  });

  test("those not known to be quick together leave half to the others, from the first moment on", () => {
    answers("quick", 10);
    for (const key of ["a", "a", "b", "b", "c"]) slots.take(key);
    const { limit, slowLimit, endpoints } = slots.bounds();
    expect({ limit, slowLimit }).toEqual({ limit: 5, slowLimit: 0 });
    expect(endpoints.filter(({ room }) => room > 0)).toEqual([{ endpoint: "quick", slow: false, room: 4 }]);
  });
});
