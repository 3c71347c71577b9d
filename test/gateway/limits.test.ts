import { describe, expect, onTestFinished, test, vi } from "vitest";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { byTheClock, installClock, stopClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { connectPlain } from "../rpc/plain-calls.ts";
import { merchant, newIdempotencyKey, usageOf } from "./merchant.ts";
import { exchange } from "./raw-http.ts";

const service = await startTestService({ TRUSTED_PROXIES: "127.0.0.1" });
const json = { "content-type": "application/json" };

describe("usage", () => {
  test("counts every call that passes the limits once, for both environments together", async () => {
    const { testKey, liveKey } = await service.createProject({ usageLimit: 100n });
    const shop = merchant(service.httpUrl, testKey);
    const live = merchant(service.httpUrl, liveKey);
    const key = newIdempotencyKey();
    const { headers, ...created } = await shop.create({}, key);
    const { id } = created.body;
    expect(usageOf({ headers, ...created })).toBe("1/100");

    const calls = [
      { what: "a replay", call: () => shop.create({}, key), status: 200 },
      { what: "a read", call: () => shop.read(id), status: 200 },
      { what: "a creation in the other environment", call: () => live.create(), status: 201 },
      { what: "a cancel", call: () => shop.cancel(id), status: 200 },
      { what: "a cancel that changes nothing", call: () => shop.cancel(id), status: 200 },
      { what: "an unknown id", call: () => shop.read("vrf_none"), status: 404 },
      { what: "another environment's id", call: () => live.read(id), status: 404 },
      { what: "another environment's id to cancel", call: () => live.cancel(id), status: 404 },
      { what: "an unknown route", call: () => live.call("GET", "/nowhere"), status: 404 },
      {
        what: "a missing idempotency key",
        call: () => shop.call("POST", "/v1/verifications", { body: "{}", headers: json }),
        status: 400,
      },
      { what: "broken JSON", call: () => shop.create("{"), status: 400 },
      { what: "a body too large", call: () => shop.create(" ".repeat(65_537)), status: 400 },
      {
        what: "a wrong content type",
        call: () => shop.create({}, key, { "content-type": "text/plain" }),
        status: 400,
      },
      { what: "wrong fields", call: () => shop.create({ state: 7 }), status: 422 },
      { what: "a conflict", call: () => shop.create({ state: "other" }, key), status: 409 },
    ];
    let count = 1;
    for (const { what, call, status } of calls) {
      const answer = await call();
      count += 1;
      expect([what, answer.status, usageOf(answer)]).toEqual([what, status, `${count}/100`]);
    }

    const uncounted = [
      { path: `/v1/verifications/${id}`, status: 401 },
      { path: "/nowhere", status: 404 },
    ];
    for (const { path, status } of uncounted) {
      const headers = { "x-forwarded-for": "192.0.2.50" };
      const answer = await merchant(service.httpUrl, "wrong").call("GET", path, { headers });
      expect([answer.status, usageOf(answer)]).toEqual([status, null]);
    }
    expect(usageOf(await shop.read(id))).toBe(`${count + 1}/100`);
  });

  test("with limit N the Nth call passes and shows N/N; the next one gets 429 and is not counted", async () => {
    const { projectId, testKey } = await service.createProject({ usageLimit: 3n });
    const shop = merchant(service.httpUrl, testKey);
    expect(usageOf(await shop.create())).toBe("1/3");
    expect(usageOf(await shop.create("{"))).toBe("2/3");
    const last = await shop.create({ client_reference: "the third" });
    expect([last.status, usageOf(last)]).toEqual([201, "3/3"]);

    const over = [
      () => shop.create({ client_reference: "the fourth" }),
      () => shop.read(last.body.id),
      () => shop.cancel(last.body.id),
      () => shop.read("vrf_none"),
      () => shop.create("{"),
      () => shop.create({ state: 7 }),
      () => shop.call("GET", "/nowhere"),
    ];
    for (const call of over) {
      const answer = await call();
      expect([answer.status, answer.body.error.code, usageOf(answer)]).toEqual([
        429,
        "usage_limit_exceeded",
        null,
      ]);
      expect(Number(answer.headers.get("retry-after"))).toBeGreaterThanOrEqual(1);
      expect(answer.headers.has("ratelimit")).toBe(true);
    }
    const { rows } = await service.db.query(
      "SELECT status FROM verification WHERE client_reference IN ('the third', 'the fourth')",
    );
    expect(rows).toEqual([{ status: "pending" }]);

    await service.client(ProjectService).updateProject({ projectId, usageLimit: 4n });
    await expect.poll(async () => usageOf(await shop.read(last.body.id))).toBe("4/4");
  });

  test("setting the limit below the current count does not change the count", async () => {
    const { projectId, testKey } = await service.createProject({ usageLimit: 9n });
    const shop = merchant(service.httpUrl, testKey);
    for (const count of [1, 2, 3]) expect(usageOf(await shop.read("vrf_none"))).toBe(`${count}/9`);
    const setLimit = (usageLimit: bigint) =>
      service.client(ProjectService).updateProject({ projectId, usageLimit });
    await setLimit(1n);
    for (const call of [() => shop.read("vrf_none"), () => shop.create("{"), () => shop.cancel("vrf_none")]) {
      expect((await call()).body.error.code).toBe("usage_limit_exceeded");
    }
    await setLimit(9n);
    expect(usageOf(await shop.read("vrf_none"))).toBe("4/9");
  });

  test("over the limit Retry-After tells when the month in Seoul ends, by the database's clock", async () => {
    await installClock(service.db);
    const clocked = await service.startAnother({ DATABASE_URL: byTheClock(service.databaseUrl) });
    await stopClock(service.db, "2027-01-31T14:59:00.500Z");
    const { testKey } = await service.createProject({ usageLimit: 2n });
    const shop = merchant(clocked.httpUrl, testKey);
    const { id } = (await shop.create({}, "first-of-january")).body;
    expect(usageOf(await shop.read(id))).toBe("2/2");
    const over = [
      () => shop.create(),
      () => shop.create({}, "first-of-january"),
      () => shop.create({ return_url: "https://shop.example/unregistered" }),
      () => shop.read(id),
      () => shop.cancel(id),
      () => shop.create("{"),
    ];
    for (const call of over) expect((await call()).headers.get("retry-after")).toBe("60");
    await stopClock(service.db, "2027-01-31T15:00:00Z");
    expect(usageOf(await shop.read(id))).toBe("1/2");
  });

  test("gives two hundred concurrent calls over two processes consecutive numbers up to the limit", async () => {
    const { testKey } = await service.createProject({ usageLimit: 150n });
    const other = await service.startAnother();
    const shops = [merchant(service.httpUrl, testKey), merchant(other.httpUrl, testKey)];
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, index) => {
        const shop = shops[index % 2] ?? merchant(service.httpUrl, testKey);
        return [() => shop.create(), () => shop.read("vrf_none"), () => shop.create("{")][index % 3]?.();
      }),
    );
    const counts = answers.flatMap((answer) => answer?.headers.get("x-usage-calls") ?? []).map(Number);
    expect(counts.sort((a, b) => a - b)).toEqual(Array.from({ length: 150 }, (_, index) => index + 1));
    expect(answers.filter((answer) => answer?.body.error?.code === "usage_limit_exceeded")).toHaveLength(50);
  });
});

describe("the rate limit", () => {
  test("is shown in every answer, separately for each bucket", async () => {
    const { testKey } = await service.createProject({ rateLimitPerMinute: 10 });
    const shop = merchant(service.httpUrl, testKey);
    const calls = [
      { bucket: "create", call: () => shop.create(), left: 9 },
      { bucket: "create", call: () => shop.create("{"), left: 8 },
      { bucket: "read", call: () => shop.read("vrf_none"), left: 9 },
      { bucket: "read", call: () => shop.call("GET", "/nowhere"), left: 8 },
      { bucket: "cancel", call: () => shop.cancel("vrf_none"), left: 9 },
      { bucket: "create", call: () => shop.create({ state: 7 }), left: 7 },
    ];
    for (const { bucket, call, left } of calls) {
      const { headers } = await call();
      expect(headers.get("ratelimit-policy")).toBe(`"${bucket}";q=10;w=60`);
      expect(headers.get("ratelimit")).toMatch(new RegExp(`^"${bucket}";r=${left};t=([1-9]|[1-5]\\d|60)$`));
    }
  });

  test("tells the time left rounded up: a client that waits for it is not too early", async () => {
    const { testKey } = await service.createProject({ rateLimitPerMinute: 1 });
    const shop = merchant(service.httpUrl, testKey);
    const now = performance.now();
    const clock = vi.spyOn(performance, "now").mockReturnValue(now);
    onTestFinished(() => clock.mockRestore());
    await shop.create();
    clock.mockReturnValue(now + 600);
    const { headers } = await shop.create();
    expect([headers.get("retry-after"), headers.get("ratelimit")]).toEqual(["60", '"create";r=0;t=60']);
  });

  test("refuses calls beyond it with 429, uncounted, in that bucket and environment only", async () => {
    const { testKey, liveKey } = await service.createProject({ rateLimitPerMinute: 2 });
    const shop = merchant(service.httpUrl, testKey);
    const { id } = (await shop.create()).body;
    await shop.create();
    for (let time = 0; time < 3; time++) {
      const answer = await shop.create();
      expect([answer.status, answer.body.error.code, usageOf(answer)]).toEqual([429, "rate_limited", null]);
      expect(answer.headers.get("ratelimit-policy")).toBe('"create";q=2;w=60');
      expect(answer.headers.get("ratelimit")).toMatch(/^"create";r=0;t=\d+$/);
      const seconds = Number(answer.headers.get("retry-after"));
      expect(Number.isInteger(seconds) && seconds >= 1 && seconds <= 60).toBe(true);
    }
    expect(usageOf(await merchant(service.httpUrl, liveKey).create())).toBe("3/unlimited");
    expect(usageOf(await shop.read(id))).toBe("4/unlimited");
    expect(usageOf(await shop.cancel(id))).toBe("5/unlimited");
    await shop.read(id);
    const unknownRoute = await shop.call("GET", "/nowhere");
    expect([unknownRoute.status, unknownRoute.body.error.code]).toEqual([429, "rate_limited"]);
  });
});

/** The statuses of requests that are sent at once over one connection, in their order. */
async function statusesOf(
  requests: readonly { to: string; headers?: Readonly<Record<string, string>> }[],
): Promise<number[]> {
  const sent = requests.map(({ to, headers = {} }) => {
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    return `GET ${to} HTTP/1.1\r\nHost: localhost\r\n${lines.join("")}\r\n`;
  });
  const answers = await exchange(service.httpUrl, sent.join(""), { answers: requests.length });
  return answers.map(({ status }) => status);
}

describe("after the process's clock was set", () => {
  const setForward = (seconds: number) => {
    const before = Date.now;
    const clock = vi.spyOn(Date, "now").mockImplementation(() => before() + 1000 * seconds);
    onTestFinished(() => clock.mockRestore());
  };
  const setBack = () => setForward(-3_600);
  const expectWithinTheMinute = ({ status, headers }: { status: number; headers: Headers }) => {
    const seconds = Number(headers.get("retry-after"));
    expect([status, seconds >= 1 && seconds <= 60]).toEqual([429, true]);
  };

  test("nobody's minute ends early", async () => {
    const { testKey } = await service.createProject({ rateLimitPerMinute: 1 });
    const shop = merchant(service.httpUrl, testKey);
    await shop.create();
    setForward(120);
    expect((await shop.create()).status).toBe(429);
  });

  test("nobody over the rate limit is told to wait for more than the minute", async () => {
    const { testKey } = await service.createProject({ rateLimitPerMinute: 1 });
    const shop = merchant(service.httpUrl, testKey);
    await shop.create();
    setBack();
    const refused = await shop.create();
    expectWithinTheMinute(refused);
    expect(refused.headers.get("ratelimit")).toBe(`"create";r=0;t=${refused.headers.get("retry-after")}`);
  });

  test("nor is a window", async () => {
    const { testKey } = await service.createProject();
    const { body } = await merchant(service.httpUrl, testKey).create();
    const open = () => fetch(`${service.httpUrl}${new URL(body.verification_url).pathname}/status`);
    const { pathname } = new URL(body.verification_url);
    const statuses = await statusesOf(Array.from({ length: 120 }, () => ({ to: `${pathname}/status` })));
    expect(new Set(statuses)).toEqual(new Set([200]));
    setBack();
    expectWithinTheMinute(await open());
  });
});

describe("failed authentications", () => {
  const from = (address: string, apiKey: string) => ({
    "x-forwarded-for": address,
    authorization: `Bearer ${apiKey}`,
  });
  const path = "/v1/verifications/vrf_none";
  /** One more than an address may make. */
  const failuresFrom = (addressOf: (attempt: number) => string) =>
    Array.from({ length: 601 }, (_, attempt) => ({ to: path, headers: from(addressOf(attempt), "wrong") }));

  test("are limited to 600 per minute and address, unknown routes included; valid keys are not affected", async () => {
    const { testKey } = await service.createProject();
    const shop = merchant(service.httpUrl, testKey);
    const statuses = await statusesOf(
      Array.from({ length: 600 }, (_, index) => ({
        to: index % 2 === 0 ? path : "/nowhere",
        headers: from("192.0.2.1", "wrong"),
      })),
    );
    expect(new Set(statuses)).toEqual(new Set([401, 404]));

    const refused = await shop.call("GET", path, { headers: from("192.0.2.1", "wrong") });
    expect([refused.status, refused.body.error.code]).toEqual([429, "rate_limited"]);
    expect(Number(refused.headers.get("retry-after"))).toBeGreaterThanOrEqual(1);
    expect((await shop.call("GET", "/nowhere", { headers: from("192.0.2.1", "wrong") })).status).toBe(404);

    expect((await shop.call("GET", path, { headers: from("192.0.2.1", testKey) })).status).toBe(404);
    expect((await shop.call("GET", path, { headers: from("192.0.2.2", "wrong") })).status).toBe(401);
  });

  test.for<{ name: string; headers: Record<string, string>; uncounted: string[] }>([
    {
      name: "without a key, except on unknown routes",
      headers: { "x-forwarded-for": "192.0.2.40" },
      uncounted: ["/nowhere"],
    },
    {
      name: "with another authorization scheme",
      headers: { "x-forwarded-for": "192.0.2.41", authorization: "Basic a2V5" },
      uncounted: [],
    },
  ])("include calls $name", async ({ headers, uncounted }) => {
    const calls = Array.from({ length: 601 }, () => [...uncounted, path].map((to) => ({ to, headers })));
    const statuses = await statusesOf(calls.flat());
    expect(statuses.filter((status) => status === 429)).toHaveLength(1);
  });

  test("from all addresses of an IPv6 network count together", async () => {
    const statuses = await statusesOf(failuresFrom((host) => `2001:db8:7::${host.toString(16)}`));
    expect(statuses.filter((status) => status === 429)).toHaveLength(1);
  });

  test("from a link-local network count together, whatever the interface is called", async () => {
    const zones = ["", "%eth0", "%eth0.100", "%br-lan", "%wlan0:1"];
    const statuses = await statusesOf(
      failuresFrom((host) => `fe80::${host.toString(16)}${zones[host % zones.length]}`),
    );
    expect(statuses.filter((status) => status === 401)).toHaveLength(600);
    expect(statuses.filter((status) => status === 429)).toHaveLength(1);
  });

  test("from an IPv4 address count together with those from the same address written as IPv6", async () => {
    const shop = merchant(service.httpUrl, "wrong");
    const failFrom = async (address: string) =>
      (await shop.call("GET", path, { headers: from(address, "wrong") })).status;
    const spellings = [
      "192.0.2.30",
      "::ffff:192.0.2.30",
      "0:0:0:0:0:ffff:c000:21e",
      "64:ff9b::c000:21e",
      "64:FF9B::192.0.2.30",
      "::ffff:0:192.0.2.30",
    ];
    const statuses = await statusesOf(failuresFrom((attempt) => spellings[attempt % spellings.length] ?? ""));
    expect(statuses.filter((status) => status === 429)).toHaveLength(1);

    for (const another of ["::ffff:c000:21f", "64:ff9b::c000:21f", "64:ff9b::192.0.2.32"]) {
      expect(await failFrom(another)).toBe(401);
    }
  });

  test.for([
    {
      name: "with a port",
      addressOf: (attempt: number) => `192.0.2.7:${64_900 + attempt}`,
      others: { "192.0.2.17:64900": 401 },
    },
    {
      name: "in brackets, with a port or without",
      addressOf: (attempt: number) => `[2001:db8:8::1]${attempt % 2 === 0 ? "" : `:${1024 + attempt}`}`,
      others: { "[2001:db8:9::1]:1024": 401 },
    },
    {
      name: "as no valid address, and so as the proxy's own",
      addressOf: (attempt: number) => `unknown-${attempt}`,
      others: { "x192.0.2.18:1024": 429, "999.0.2.18:1024": 429, "127.0.0.1": 429 },
    },
  ])("from one address count together if a proxy writes it $name", async ({ addressOf, others }) => {
    const shop = merchant(service.httpUrl, "wrong");
    const statuses = await statusesOf(failuresFrom(addressOf));
    // Failures of the proxy's own address may have been counted before.
    expect(statuses).toContain(429);
    for (const [another, status] of Object.entries(others)) {
      expect((await shop.call("GET", path, { headers: from(another, "wrong") })).status).toBe(status);
    }
  });

  test("behind two trusted proxies count for the client, also if one writes the other's address with a port", async () => {
    const shop = merchant(service.httpUrl, "wrong");
    const statuses = await statusesOf(
      failuresFrom((attempt) => `192.0.2.60, 127.0.0.1:${1024 + attempt}, 127.0.0.1`),
    );
    expect(statuses.filter((status) => status === 429)).toHaveLength(1);
    const statusFor = async (chain: string) =>
      (await shop.call("GET", path, { headers: from(chain, "wrong") })).status;
    expect(await statusFor("192.0.2.60")).toBe(429);
    for (const proxy of ["127.0.0.1:1024", "[::ffff:127.0.0.1]:1024"]) {
      expect(await statusFor(`192.0.2.61, ${proxy}`)).toBe(401);
      // Of one that is not trusted, its own address counts.
      expect(await statusFor(`192.0.2.62, 192.0.2.60:1024, ${proxy}`)).toBe(429);
      const { code } = await answerOf((options) =>
        service
          .client(VerificationService, "wrong")
          .getVerification(
            { verificationId: "vrf_none" },
            { ...options, headers: { "x-forwarded-for": `192.0.2.61, ${proxy}` } },
          ),
      );
      expect(code).toBe("invalid_api_key");
    }
  });

  test("over gRPC also count for the address that the proxy names", async () => {
    const call = (address: string) =>
      answerOf((options) =>
        service
          .client(VerificationService, "wrong")
          .getVerification(
            { verificationId: "vrf_none" },
            { ...options, headers: { "x-forwarded-for": address } },
          ),
      );
    const rateLimited = async () =>
      (await scrape(service.opsUrl)).sum("phoneproof_refusals_total", { face: "grpc", code: "rate_limited" });
    const before = await rateLimited();
    const connection = await connectPlain(service.grpcAddress);
    for (let calls = 0; calls < 600; calls += 100) {
      const { typeName, method } = VerificationService;
      const name = `${typeName}/${method.getVerification.name}`;
      await connection.untilEnded(
        connection.call(100, name, from("192.0.2.8", "wrong"), { message: Buffer.of() }),
      );
    }
    expect(await rateLimited()).toBe(before);
    expect((await call("192.0.2.8")).code).toBe("rate_limited");
    expect((await call("192.0.2.9")).code).toBe("invalid_api_key");
  });

  test("behind a proxy count for the address that the proxy adds, not for one that the client claims", async () => {
    const shop = merchant(service.httpUrl, "wrong");
    await statusesOf(failuresFrom((index) => `203.0.113.${index % 250}, 192.0.2.3`));
    const refused = await shop.call("GET", path, {
      headers: { "x-forwarded-for": "198.51.100.1, 192.0.2.3" },
    });
    expect(refused.status).toBe(429);
  });
});
