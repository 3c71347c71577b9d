import { ConnectError } from "@connectrpc/connect";
import { afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { createAddressPolicy } from "../../src/webhooks/address-policy.ts";
import { createEndpoints } from "../../src/webhooks/endpoints.ts";
import type { ResolvedAddress } from "../../src/webhooks/name-resolution.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { nameServerOfSuite } from "./name-server.ts";
import { startReceiver } from "./receiver.ts";
import { attempted, deliveryWhen, openShop, type Shop } from "./shop.ts";

/** Addresses that are not public, in every spelling that a URL allows. */
const privateHosts = [
  "127.0.0.1",
  "127.1",
  "127.0.0.1.",
  "127.255.255.254",
  "2130706433",
  "017700000001",
  "0x7f000001",
  "0x7f.1",
  "0177.0.0.1",
  "0",
  "0.0.0.0",
  "１２７.０.０.１",
  "127。0。0。1",
  "%31%32%37.0.0.1",
  "10.0.0.1",
  "172.16.0.1",
  "172.31.255.255",
  "192.168.1.1",
  "169.254.169.254",
  "100.64.0.1",
  "192.0.0.1",
  "192.0.2.1",
  "198.18.0.1",
  "198.51.100.1",
  "203.0.113.1",
  "224.0.0.1",
  "240.0.0.1",
  "255.255.255.255",
  "[::]",
  "[::1]",
  "[0:0:0:0:0:0:0:1]",
  "[::127.0.0.1]",
  "[::ffff:127.0.0.1]",
  "[::ffff:7f00:1]",
  "[0:0:0:0:0:ffff:10.0.0.1]",
  "[::ffff:0:127.0.0.1]",
  "[fe80::1]",
  "[febf::1]",
  "[fec0::1]",
  "[fc00::1]",
  "[fd00:ec2::254]",
  "[ff02::1]",
  "[100::1]",
  "[2001:db8::1]",
  "[3fff::1]",
  "[2001::1]",
  "[2002:7f00:1::]",
  "[64:ff9b::7f00:1]",
  "[64:ff9b::a9fe:a9fe]",
  "[64:ff9b:1::7f00:1]",
  "[64:ff9b:1::808:808]",
  "[64:ff9b:0:1::808:808]",
  "[5f00::1]",
  "[4000::1]",
  "localhost",
  "LOCALHOST.",
  "shop.localhost",
];

const publicHosts = [
  "localhost.example",
  "1.1.1.1",
  "8.8.8.8",
  "[2606:4700:4700::1111]",
  "[::ffff:8.8.8.8]",
  "[64:ff9b::808:808]",
  "shop.example",
];

describe("the policy", () => {
  const policy = createAddressPolicy({ allowPrivate: false });
  const lenient = createAddressPolicy({ allowPrivate: true });

  test.for(privateHosts)("https://%s is refused", (host) => {
    expect(policy.refusalOf(new URL(`https://${host}:8443/`))).toMatch(/not a public address/);
    expect(lenient.refusalOf(new URL(`https://${host}:8443/`))).toBeNull();
  });

  test.for(publicHosts)("https://%s is accepted", (host) => {
    expect(policy.refusalOf(new URL(`https://${host}/`))).toBeNull();
  });

  test("schemes other than https are refused; development settings allow http too", () => {
    expect(policy.refusalOf(new URL("http://shop.example/"))).toMatch(/https/);
    expect(policy.refusalOf(new URL("ftp://shop.example/"))).toMatch(/https/);
    expect(lenient.refusalOf(new URL("http://shop.example/"))).toBeNull();
    expect(lenient.refusalOf(new URL("ftp://shop.example/"))).toMatch(/http/);
  });

  test("port 0 is refused", () => {
    for (const each of [policy, lenient]) {
      expect(each.refusalOf(new URL("https://shop.example:0/"))).toMatch(/port 0/);
      expect(each.refusalOf(new URL("https://shop.example:443/"))).toBeNull();
    }
  });
});

/** Calls a policy's lookup as `net.connect` does. */
function lookUp(
  resolve: () => ResolvedAddress[],
  options: { all: boolean } = { all: true },
): Promise<unknown> {
  const { lookup } = createAddressPolicy({ allowPrivate: false, resolve: async () => resolve() });
  return new Promise((accept, reject) => {
    lookup("shop.example", options, (error, address) => (error ? reject(error) : accept(address)));
  });
}

const cloud = { address: "8.8.8.8", family: 4 };
const loopback = { address: "127.0.0.1", family: 4 };
const translated = { address: "64:ff9b::808:808", family: 6 };

describe("a host name", () => {
  test.for([
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "::1",
    "::ffff:192.168.0.1",
    "fe80::1%eth0",
    "2002:a00:1::",
    "64:ff9b::a00:1",
  ])("that resolves to %s is refused", async (address) => {
    await expect(lookUp(() => [{ address, family: address.includes(":") ? 6 : 4 }])).rejects.toThrow(
      `shop.example leads to ${address}, which is not a public address`,
    );
  });

  test("that resolves to a public address and its NAT64 address resolves to both", async () => {
    expect(await lookUp(() => [cloud, translated])).toEqual([cloud, translated]);
  });

  test("that resolves to a public and a private address is refused", async () => {
    await expect(lookUp(() => [cloud, loopback])).rejects.toThrow("leads to 127.0.0.1");
    await expect(lookUp(() => [cloud, loopback], { all: false })).rejects.toThrow("leads to 127.0.0.1");
  });

  test("with a public address resolves to that address", async () => {
    expect(await lookUp(() => [cloud])).toEqual([cloud]);
    expect(await lookUp(() => [cloud], { all: false })).toBe(cloud.address);
  });

  test("with many addresses resolves to the first eight of each family, after all are checked", async () => {
    const fours = Array.from({ length: 4_000 }, (_, index) => ({
      address: `8.8.${index >> 8}.${index & 255}`,
      family: 4,
    }));
    const sixes = Array.from({ length: 9 }, (_, index) => ({ address: `2606:4700::${index}`, family: 6 }));
    expect(await lookUp(() => [...sixes, ...fours])).toEqual([...sixes.slice(0, 8), ...fours.slice(0, 8)]);
    await expect(lookUp(() => [...fours, loopback])).rejects.toThrow("leads to 127.0.0.1");
  });

  test("without an address is an error", async () => {
    await expect(lookUp(() => [])).rejects.toThrow("shop.example has no address");
  });

  test("is resolved and checked for each connection, since its address may change", async () => {
    const answers = [[cloud], [loopback]];
    const policy = createAddressPolicy({
      allowPrivate: false,
      resolve: async () => answers.shift() ?? [],
    });
    const ask = () =>
      new Promise((accept, reject) => {
        policy.lookup("rebind.example", { all: true }, (error, address) =>
          error ? reject(error) : accept(address),
        );
      });
    expect(await ask()).toEqual([cloud]);
    await expect(ask()).rejects.toThrow("rebind.example leads to 127.0.0.1");
  });

  test("is resolved once per connection, which goes to the address that was checked", async () => {
    const checked = await startReceiver();
    const { port } = new URL(checked.url);
    const answers = [loopback, { address: "127.0.0.2", family: 4 }];
    let lookUps = 0;
    const endpoints = createEndpoints({
      allowPrivate: true,
      resolve: async () => [answers[Math.min(lookUps++, 1)] ?? loopback],
    });
    const message = { id: "evt_1", timestamp: 1, body: "{}", secrets: [Buffer.alloc(32)] };
    const exchange = await endpoints.send({ ...message, url: `http://rebind.example:${port}/` });
    expect(exchange.status).toBe(204);
    expect(lookUps).toBe(1);
    expect(checked.received[0]?.headers.host).toBe(`rebind.example:${port}`);
    await endpoints.close();
  });

  test("that resolves to a private address is refused without a request being sent", async () => {
    const receiver = await startReceiver();
    const { port } = new URL(receiver.url);
    const endpoints = createEndpoints({ allowPrivate: false, resolve: async () => [loopback] });
    const exchange = await endpoints.send({
      url: `https://shop.example:${port}/`,
      id: "evt_1",
      timestamp: 1,
      body: "{}",
      secrets: [Buffer.alloc(32)],
    });
    expect(exchange).toMatchObject({
      status: null,
      error: "refused: shop.example leads to 127.0.0.1, which is not a public address (loopback)",
    });
    await endpoints.close();
  });
});

describe("the addresses of a name", () => {
  const nameServer = nameServerOfSuite();
  const { lookup } = createAddressPolicy({ allowPrivate: false });
  const addressesOf = (name: string) =>
    new Promise((accept, reject) => {
      lookup(name, { all: true }, (error, addresses) => (error ? reject(error) : accept(addresses)));
    });

  const four = { address: "8.8.8.8", family: 4 };
  const six = { address: "2606:4700:4700::1111", family: 6 };

  test.for([
    { name: "with only A records", a: [four.address], aaaa: [], addresses: [four] },
    { name: "with only AAAA records", a: [], aaaa: [six.address], addresses: [six] },
    { name: "with both", a: [four.address], aaaa: [six.address], addresses: [four, six] },
    { name: "whose AAAA query fails", a: [four.address], aaaa: null, addresses: [four] },
    { name: "whose A query fails", a: null, aaaa: [six.address], addresses: [six] },
  ])("come from DNS: a name $name", async ({ a, aaaa, addresses }) => {
    nameServer.names = { "shop.example": { a, aaaa } };
    nameServer.bySystem = async () => [loopback];
    expect(await addressesOf("shop.example")).toEqual(addresses);
  });

  test.for([
    { name: "AAAA", a: [four.address], aaaa: "silence", addresses: [four] },
    { name: "A", a: "silence", aaaa: [six.address], addresses: [six] },
  ] as const)("do not wait for the $name query to be repeated if the other has found some", async ({
    a,
    aaaa,
    addresses,
  }) => {
    nameServer.names = { "shop.example": { a, aaaa } };
    expect(await addressesOf("shop.example")).toEqual(addresses);
    // If this machine stands still for longer than an answer may take, both are repeated.
    expect(nameServer.unanswered).toBe(nameServer.answered);
  });

  test.for([
    { a: [four.address], aaaa: ["fd00::1"], error: "leads to fd00::1" },
    { a: [four.address, "10.0.0.1"], aaaa: [six.address], error: "leads to 10.0.0.1" },
  ])("are refused if any of them is private: $a and $aaaa", async ({ a, aaaa, error }) => {
    nameServer.names = { "shop.example": { a, aaaa } };
    await expect(addressesOf("shop.example")).rejects.toThrow(error);
  });

  test("that DNS does not know come from the system's resolver", async () => {
    nameServer.bySystem = async (name) => (name === "shop.example" ? [four] : [loopback]);
    expect(await addressesOf("shop.example")).toEqual([four]);
    nameServer.names = { "empty.example": { a: [], aaaa: [] } };
    await expect(addressesOf("empty.example")).rejects.toThrow("empty.example leads to 127.0.0.1");
  });

  test("come from the system's resolver where there is no DNS server", async () => {
    nameServer.isThere = false;
    nameServer.bySystem = async () => [four];
    expect(await addressesOf("shop.example")).toEqual([four]);
  });

  test("that neither knows are an error", async () => {
    await expect(addressesOf("shop.example")).rejects.toThrow("ENOTFOUND");
  });

  test.for([
    { a: null, aaaa: null },
    { a: [], aaaa: null },
    { a: null, aaaa: [] },
  ])("are an error if a DNS query fails and the other finds none: A $a, AAAA $aaaa", async (answers) => {
    nameServer.names = { "shop.example": answers };
    nameServer.bySystem = async () => [four];
    await expect(addressesOf("shop.example")).rejects.toThrow("ESERVFAIL");
  });

  test.for([
    "shop",
    "localhost",
    "shop.localhost",
    "shop.localhost.",
  ])("of %s come only from the system's resolver, without a DNS query", async (name) => {
    nameServer.bySystem = async () => [loopback];
    await expect(addressesOf(name)).rejects.toThrow("leads to 127.0.0.1");
    expect([...nameServer.asked]).toEqual([]);
    nameServer.names = { "shop.localhost.example": { a: [four.address], aaaa: [] } };
    expect(await addressesOf("shop.localhost.example")).toEqual([four]);
  });

  test("are requested from the system's resolver one name at a time, also after errors", async () => {
    const asked: string[] = [];
    const turns = [Promise.withResolvers<ResolvedAddress[]>(), Promise.withResolvers<ResolvedAddress[]>()];
    nameServer.bySystem = (name) => turns[asked.push(name) - 1]?.promise ?? Promise.resolve([four]);
    const [first, second, third] = ["one", "two", "three"].map(addressesOf);
    await expect.poll(() => asked).toEqual(["one"]);
    turns[0]?.reject(new Error("no answer"));
    await expect(first).rejects.toThrow("no answer");
    await expect.poll(() => asked).toEqual(["one", "two"]);
    turns[1]?.resolve([four]);
    expect(await Promise.all([second, third])).toEqual([[four], [four]]);
    expect(asked).toEqual(["one", "two", "three"]);
  });

  test("are not requested for exchanges that have given up while a look-up hung", async () => {
    const asked: string[] = [];
    const hanging = Promise.withResolvers<ResolvedAddress[]>();
    nameServer.bySystem = (name) => (asked.push(name) === 1 ? hanging.promise : Promise.resolve([four]));
    const [first, second] = ["one", "two"].map(addressesOf);
    await expect.poll(() => asked).toEqual(["one"]);
    const then = performance.now();
    const clock = vi.spyOn(performance, "now").mockReturnValue(then + 15_001);
    onTestFinished(() => clock.mockRestore());
    const third = addressesOf("three");
    hanging.resolve([four]);
    expect(await first).toEqual([four]);
    await expect(second).rejects.toThrow("two was not looked up in time");
    expect(await third).toEqual([four]);
    expect(asked).toEqual(["one", "three"]);
  });

  test("are requested while one hangs that was slow before", async () => {
    const asked: string[] = [];
    const ends: (() => void)[] = [];
    nameServer.bySystem = (name) => {
      asked.push(name);
      if (name !== "hangs") return Promise.resolve([four]);
      return new Promise((_, reject) => ends.push(() => reject(new Error("no answer"))));
    };
    const once = addressesOf("hangs");
    await expect.poll(() => asked).toEqual(["hangs"]);
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now() + 1_001);
    onTestFinished(() => clock.mockRestore());
    // It waits behind the first look-up of the same name.
    const again = addressesOf("hangs");
    ends[0]?.();
    await expect(once).rejects.toThrow("no answer");
    await expect.poll(() => asked).toEqual(["hangs", "hangs"]);
    const other = addressesOf("other");
    await expect.poll(() => asked).toEqual(["hangs", "hangs", "other"]);
    expect(await other).toEqual([four]);
    ends[1]?.();
    await expect(again).rejects.toThrow("no answer");
  });

  /** System look-ups that end when the test says so, after as long as it says. */
  function lookUpsByHand() {
    let now = performance.now();
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now);
    onTestFinished(() => clock.mockRestore());
    const open: { name: string; end: (tookMs: number) => void }[] = [];
    nameServer.bySystem = (name) =>
      new Promise((resolve) => {
        const end = (tookMs: number) => {
          now += tookMs;
          resolve([four]);
        };
        open.push({ name, end });
      });
    const names = () => open.map(({ name }) => name);
    /** Ends the look-up of this name, which is the only one of it. */
    const end = (name: string, tookMs: number) => {
      const [found] = open.splice(names().indexOf(name), 1);
      found?.end(tookMs);
    };
    /** Asks for a name whose look-up begins at once. */
    const begin = async (name: string) => {
      const addresses = addressesOf(name);
      await expect.poll(names).toContain(name);
      return addresses.catch((error: Error) => error.message);
    };
    const slowOnce = async (name: string) => {
      const answered = begin(name);
      await expect.poll(names).toContain(name);
      end(name, 1_001);
      await answered;
    };
    /** One that is slow gives up behind another. */
    const waitInVain = async (name: string, { behind }: { behind: string }) => {
      const other = begin(behind);
      await expect.poll(names).toEqual([behind]);
      const late = addressesOf(name);
      end(behind, 15_001);
      await other;
      await expect(late).rejects.toThrow(`${name} was not looked up in time`);
    };
    return { names, end, begin, slowOnce, waitInVain };
  }

  test("that were slow once are requested like others again once one was quick, or waited behind another slow one in vain", async () => {
    const { names, end, begin, slowOnce, waitInVain } = lookUpsByHand();
    await slowOnce("hanging");
    await slowOnce("good");
    await waitInVain("good", { behind: "hanging" });
    const hanging = begin("hanging");
    await expect.poll(names).toEqual(["hanging"]);
    const good = begin("good");
    await expect.poll(names).toEqual(["hanging", "good"]);
    end("good", 1);
    await good;
    const goodAgain = begin("good");
    await expect.poll(names).toEqual(["hanging", "good"]);
    end("good", 1);
    await goodAgain;
    end("hanging", 1);
    await hanging;

    // Was quick this time: does not wait for one that hangs.
    await slowOnce("good");
    const quick = begin("good");
    await expect.poll(names).toEqual(["good"]);
    end("good", 1);
    await quick;
    await slowOnce("other");
    const other = begin("other");
    await expect.poll(names).toEqual(["other"]);
    const beside = begin("good");
    await expect.poll(names).toEqual(["other", "good"]);
    end("good", 1);
    end("other", 1);
    await Promise.all([beside, other]);
  });

  test("that were slow again wait behind other slow ones, however often in vain", async () => {
    const { names, end, begin, slowOnce, waitInVain } = lookUpsByHand();
    await slowOnce("first");
    for (const _ of ["pardoned", "not again"]) {
      await slowOnce("second");
      await waitInVain("second", { behind: "first" });
    }
    const first = begin("first");
    await expect.poll(names).toEqual(["first"]);
    const second = begin("second");
    const third = begin("third");
    await expect.poll(names).toEqual(["first", "third"]);
    end("third", 1);
    end("first", 1);
    await expect.poll(names).toEqual(["second"]);
    end("second", 1);
    await Promise.all([first, second, third]);
  });

  test("that were slow for several deliveries in one moment count as slow once", async () => {
    const { names, end, begin, slowOnce, waitInVain } = lookUpsByHand();
    await slowOnce("always slow");
    const both = [begin("twice"), begin("twice")];
    for (const _ of both) {
      await expect.poll(names).toEqual(["twice"]);
      end("twice", 1_001);
    }
    await Promise.all(both);
    await waitInVain("twice", { behind: "always slow" });
    const slowAgain = begin("always slow");
    const pardoned = begin("twice");
    await expect.poll(names).toEqual(["always slow", "twice"]);
    end("twice", 1);
    end("always slow", 1);
    await Promise.all([slowAgain, pardoned]);
  });
});

describe("a service without WEBHOOK_ALLOW_PRIVATE", () => {
  let service: TestService;
  let shop: Shop;

  beforeAll(async () => {
    service = await startTestService();
    shop = await openShop(service);
  });

  afterEach(() => service.db.query("DELETE FROM webhook_delivery"));

  const refusal = (url: string) =>
    service
      .client(WebhookService)
      .setWebhook({ projectId: shop.projectId, environment: Environment.LIVE, url })
      .then(
        () => null,
        (error: Error) => error.message,
      );

  test("refuses to set a webhook with http, a private address in any spelling, or an invalid URL", async () => {
    for (const host of privateHosts) expect(await refusal(`https://${host}/hook`), host).not.toBeNull();
    for (const url of [
      "http://shop.example/hook",
      "ftp://shop.example/",
      "shop.example",
      "",
      "https://",
      "https://user:secret@shop.example/",
      "https://user@shop.example/",
      "https://:secret@shop.example/",
      "https://shop.example/hook#one",
      "https://shop.example/hook#",
      " https://shop.example/",
      "https://shop.example/\n",
      "https:\\\\shop.example\\hook",
      "https:shop.example",
      "https:/shop.example",
      "https:///shop.example",
      `https://shop.example/${"x".repeat(2028)}`,
    ]) {
      expect(await refusal(url), url).not.toBeNull();
    }
    for (const host of publicHosts) expect(await refusal(`https://${host}:1/hook`), host).toBeNull();
    expect(await refusal(`https://shop.example/${"x".repeat(2027)}`)).toBeNull();
    // Names are resolved only when connecting.
    expect(await refusal("https://no-such-name.invalid/")).toBeNull();
  });

  test.for([
    "http://localhost:3000/webhook",
    "https://localhost:3000/webhook",
  ])("refuses %s with the setting that allows it", async (url) => {
    const request = { projectId: shop.projectId, environment: Environment.LIVE, url };
    const error = await service
      .client(WebhookService)
      .setWebhook(request)
      .catch((thrown: unknown) => thrown);
    const [detail] = error instanceof ConnectError ? error.findDetails(ErrorDetailSchema) : [];
    expect(detail?.fields).toMatchObject([
      { field: "url", message: expect.stringContaining("WEBHOOK_ALLOW_PRIVATE=true") },
    ]);
  });

  test.for([
    { url: "https://127.0.0.1:1/", error: /^refused: the URL must not lead to 127\.0\.0\.1/ },
    { url: "https://[::ffff:10.0.0.1]/", error: /^refused: the URL must not lead to ::ffff:a00:1/ },
    { url: "http://shop.example/", error: /^refused: the URL must be an https URL/ },
    { url: "https://localhost:1/", error: /^refused: the URL must not lead to localhost/ },
  ])("refuses an attempt to reach $url, and records the reason", async ({ url, error }) => {
    const { id } = await shop.setWebhook("https://shop.example/hook");
    // As if it had been set while that was allowed.
    await service.db.query("UPDATE webhook_configuration SET url = $2 WHERE id = $1", [
      decodeId("whk_", id),
      url,
    ]);
    const { attempts } = await deliveryWhen(service, await shop.event(), attempted(1));
    expect(attempts).toMatchObject([{ status: 0, answer: "" }]);
    expect(attempts[0]?.error).toMatch(error);
  });
});
