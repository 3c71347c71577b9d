/** The merchant's package against the service, as npm would install it. */

import { getEventListeners } from "node:events";
import { createPhoneproof, type ServiceRefusal, type Settings } from "@phoneproof/client";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { contractCodes, Failure, type FailureCode } from "../../src/failures.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { byTheClock, installClock, moveClock } from "../harness/clock.ts";
import { startTestService } from "../harness/service.ts";
import { failureOf } from "./failure.ts";

const service = await startTestService();
const project = await service.createProject();
const settings = { baseUrl: service.httpUrl, apiKey: project.liveKey };
const clientFor = (apiKey: string) => createPhoneproof({ ...settings, apiKey });
const phoneproof = clientFor(project.liveKey);

/** As a calculation or a missing setting would make them. */
const notTimes = [Number.NaN, 0, -1, "5" as unknown as number, null as unknown as number];

describe("waitUntilFinished", () => {
  test("ends when the SMS has come", async () => {
    const { id, destination, sms_text: text } = await phoneproof.create();
    const waiting = phoneproof.waitUntilFinished(id, { pollMs: 20 });
    await service.sms({ to: destination, text, from: "010-1234-5678", carrier: "KT" });
    expect(await waiting).toMatchObject({ id, status: "verified", phone: "01012345678", carrier: "KT" });
  });

  test("ends when it is cancelled", async () => {
    const { id } = await phoneproof.create();
    const waiting = phoneproof.waitUntilFinished(id, { pollMs: 20 });
    await phoneproof.cancel(id);
    expect(await waiting).toMatchObject({ id, status: "cancelled", phone: null });
  });

  test("passes over looks that fail, for as long as Retry-After says, and not over what lasts", async () => {
    const { id } = await phoneproof.create();
    const fetchLike = (...failures: readonly (Response | null)[]) => {
      const left = [...failures];
      return vi.fn(async (url: string, init: RequestInit) => {
        const failure = left.shift();
        if (failure === null) throw new Error("cut");
        return failure ?? fetch(url, init);
      });
    };
    const busy = (retryAfter: string) =>
      Response.json(
        { error: { code: "rate_limited", message: "too many" } },
        { status: 429, headers: { "retry-after": retryAfter } },
      );
    const waitingBy = (fetch: ReturnType<typeof fetchLike>, timeoutMs?: number) =>
      // Each look is one attempt.
      createPhoneproof({ ...settings, timeoutMs: 900, retryPauseMs: 5_000, fetch }).waitUntilFinished(id, {
        pollMs: 20,
        timeoutMs,
      });

    const beyond = fetchLike(new Response("", { status: 504 }), busy("3600"));
    expect(await failureOf(waitingBy(beyond))).toMatchObject({
      code: "rate_limited",
      retryAfterSeconds: 3_600,
    });
    expect(beyond).toHaveBeenCalledTimes(2);
    const endless = fetchLike(...Array<null>(50).fill(null));
    expect(await failureOf(waitingBy(endless, 50))).toMatchObject({ code: "no_answer" });
    const refused = fetchLike(Response.json({ error: { code: "invalid_api_key" } }, { status: 401 }));
    expect(await failureOf(waitingBy(refused))).toMatchObject({ code: "invalid_api_key" });

    const started = performance.now();
    const failing = fetchLike(null, new Response("<h1>", { status: 502 }), busy("1"));
    const waiting = waitingBy(failing);
    await vi.waitUntil(() => failing.mock.calls.length > 3, { timeout: 45_000 });
    expect(performance.now() - started).toBeGreaterThan(990);
    await phoneproof.cancel(id);
    expect(await waiting).toMatchObject({ id, status: "cancelled" });
  });

  test("looks at the expiry by the service's clock, however long its pauses are", async () => {
    await installClock(service.db);
    const other = await service.startAnother({ DATABASE_URL: byTheClock(service.databaseUrl) });
    const { id } = await phoneproof.create();
    await moveClock(service.db, 599_000);
    const slow = createPhoneproof({ baseUrl: other.httpUrl, apiKey: project.liveKey });
    expect(await slow.waitUntilFinished(id, { pollMs: 3_600_000 })).toMatchObject({ id, status: "expired" });
  });

  // A quarter more or less, so that many clients do not look at once.
  test.for([
    { random: 0, share: 0.75 },
    { random: 0.5, share: 1 },
    { random: 1, share: 1.25 },
  ])("looks less and less often, down to every five seconds: $share of that", async ({ random, share }) => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
    const randomness = vi.spyOn(Math, "random").mockReturnValue(random);
    onTestFinished(() => {
      vi.useRealTimers();
      randomness.mockRestore();
    });
    const lookedAt: number[] = [];
    const pending = {
      id: "vrf_pending",
      status: "pending",
      server_time: "2026-01-01T00:00:00.000Z",
      expires_at: "2026-01-01T00:10:00.000Z",
    };
    const looking = async () => {
      lookedAt.push(performance.now());
      return Response.json(pending);
    };
    const { waitUntilFinished } = createPhoneproof({ ...settings, fetch: looking });
    const waiting = failureOf(waitUntilFinished("vrf_pending", { timeoutMs: 60_000 }));
    await vi.advanceTimersByTimeAsync(60_000);
    expect((await waiting).code).toBe("still_pending");
    const pauses = lookedAt.slice(1).map((at, index) => at - (lookedAt[index] as number));
    expect(pauses.slice(0, 7).map((pause) => Math.round(pause / 10) * 10)).toEqual(
      [1_000, 1_500, 2_250, 3_375, 5_000, 5_000, 5_000].map((usual) => Math.round((usual * share) / 10) * 10),
    );
  });

  test("gives up after timeoutMs, having looked once more", async () => {
    const { id } = await phoneproof.create();
    for (const pollMs of [20, 3_600_000]) {
      const error = await failureOf(phoneproof.waitUntilFinished(id, { timeoutMs: 30, pollMs }));
      expect(error).toMatchObject({ code: "still_pending" });
    }
  });

  test("ends with the reason of an abort", async () => {
    const { id } = await phoneproof.create();
    const controller = new AbortController();
    const waiting = phoneproof.waitUntilFinished(id, { signal: controller.signal });
    controller.abort("enough");
    expect(await failureOf(waiting)).toMatchObject({ code: "aborted", cause: "enough" });
  });
});

test("a runtime that keeps what fetch reads unless told otherwise, such as Next.js, keeps none of it", async () => {
  const kept = new Map<string, Response>();
  const keeping = async (url: string, init: RequestInit): Promise<Response> => {
    if (init.method !== "GET" || init.cache === "no-store") return fetch(url, init);
    const response = kept.get(url) ?? (await fetch(url, init));
    kept.set(url, response);
    return response.clone();
  };
  const behind = createPhoneproof({ ...settings, fetch: keeping });
  const { id } = await behind.create();
  expect(await behind.read(id)).toMatchObject({ status: "pending" });
  await behind.cancel(id);
  expect(await behind.read(id)).toMatchObject({ status: "cancelled" });
});

test("a base URL may end with a slash", async () => {
  const behind = createPhoneproof({ ...settings, baseUrl: `${service.httpUrl}/` });
  expect(await behind.create()).toMatchObject({ status: "pending" });
});

test("a signal that calls share is left as it was", async () => {
  const { signal } = new AbortController();
  const { id } = await phoneproof.create({}, { signal });
  const waiting = phoneproof.waitUntilFinished(id, { signal, pollMs: 20 });
  await phoneproof.cancel(id, { signal });
  await waiting;
  expect(getEventListeners(signal, "abort")).toEqual([]);
});

describe("errors", () => {
  test("have every code of the contract, with its status", () => {
    type StatusOf<R, Code> = R extends { code: infer Known; status: infer Status }
      ? Code extends Known
        ? Status
        : never
      : never;
    type Statuses = { [Code in ServiceRefusal["code"]]: StatusOf<ServiceRefusal, Code> };
    const typed: Statuses = {
      malformed_request: 400,
      invalid_json: 400,
      unsupported_content_type: 400,
      body_too_large: 400,
      idempotency_key_required: 400,
      idempotency_key_invalid: 400,
      missing_api_key: 401,
      invalid_api_key: 401,
      project_suspended: 403,
      insufficient_scope: 403,
      verification_not_found: 404,
      route_not_found: 404,
      idempotency_conflict: 409,
      verification_not_cancellable: 409,
      validation_failed: 422,
      rate_limited: 429,
      usage_limit_exceeded: 429,
      no_receiving_number: 503,
      service_unavailable: 503,
      internal_error: 503,
    };
    const told = Object.fromEntries(
      contractCodes.map((code: FailureCode) => [code, new Failure(code).status]),
    );
    expect(typed).toEqual(told);
  });

  test("are narrowed by their code", async () => {
    const error = await failureOf(phoneproof.create({ mode: "match", expected_phone: "02-123-4567" }));
    // @ts-expect-error: only validation_failed has fields.
    error.fields;
    if (error.code !== "validation_failed") throw error;
    expect(error.fields).toEqual([{ field: "expected_phone", message: expect.stringContaining("010") }]);
    expect(error).toMatchObject({ status: 422, requestId: expect.stringMatching(/^req_/) });
    expect(error.idempotencyKey).toMatch(/^[\w-]{36}$/);
  });

  test.for<[code: string, failing: () => Promise<unknown>]>([
    ["invalid_api_key", () => clientFor("pp_live_nonsense").create()],
    ["verification_not_found", () => phoneproof.read("vrf_none")],
    ["verification_not_found", () => phoneproof.read("../../docs")],
    ["verification_not_found", () => clientFor(project.testKey).cancel("vrf_01kaex4mpyf2xbtyt1s6vdr4e9")],
  ])("%s", async ([code, failing]) => {
    expect(await failureOf(failing())).toMatchObject({ code });
  });

  test("say when what answers is no phoneproof", async () => {
    const elsewhere = createPhoneproof({ baseUrl: service.opsUrl, apiKey: project.liveKey });
    expect(await failureOf(elsewhere.create())).toMatchObject({ code: "unexpected_answer", status: 404 });
  });

  test.for([
    { user: null },
    { error: { code: "login_required", message: "log in" } },
    null,
  ])("say when what answers is no phoneproof, though all is well there: %j", async (answer) => {
    const elsewhere = createPhoneproof({ ...settings, fetch: async () => Response.json(answer) });
    expect(await failureOf(elsewhere.create())).toMatchObject({ code: "unexpected_answer", status: 200 });
  });

  test("of a 422 hold its fields, none where it has none", async () => {
    const refusal = { code: "validation_failed", message: "no", request_id: "req_1" };
    for (const [error, fields] of [
      [{ ...refusal, fields: [{ field: "phone", message: "no" }] }, [{ field: "phone", message: "no" }]],
      [refusal, []],
    ]) {
      const refusing = async () => Response.json({ error }, { status: 422 });
      const refused = createPhoneproof({ ...settings, fetch: refusing });
      expect(await failureOf(refused.create())).toMatchObject({ code: "validation_failed", fields });
    }
  });

  test.for([
    408, 425, 429, 500, 502, 503, 504, 520, 524, 530, 599,
  ])("say when a proxy answers in its place: %s", async (status) => {
    const fetch = async () => new Response("<h1>later</h1>", { status });
    const behind = createPhoneproof({ ...settings, timeoutMs: 20, retryPauseMs: 1, fetch });
    const error = await failureOf(behind.create());
    expect(error).toMatchObject({ code: "no_answer", message: `status ${status}, not of phoneproof` });
    expect(error).toMatchObject({
      retryAfterSeconds: 1,
      idempotencyKey: expect.stringMatching(/^[\w-]{36}$/),
    });
  });

  test.for([501, 505, 511, 526])("tell at once what lasts of a proxy: %s", async (status) => {
    const fetch = vi.fn(async () => new Response("<h1>no</h1>", { status }));
    const behind = createPhoneproof({ ...settings, fetch });
    expect(await failureOf(behind.create())).toMatchObject({ code: "unexpected_answer", status });
    expect(fetch).toHaveBeenCalledTimes(1);
  });

  test("say when nothing answers", async () => {
    const settings = { apiKey: project.liveKey, timeoutMs: 20, retryPauseMs: 1 };
    const nowhere = createPhoneproof({ ...settings, baseUrl: "http://127.0.0.1:1" });
    expect(await failureOf(nowhere.create())).toMatchObject({ code: "no_answer" });
  });

  test.for<[what: string, settings: object]>([
    ["a base URL without a scheme", { baseUrl: "localhost:8080" }],
    ...[
      "http://localhost:99999",
      "http://exa mple",
      "http://[::1",
      "http://%zz",
      "http://localhost:8080 ",
    ].map((baseUrl): [string, object] => [`a base URL that is none: ${baseUrl}`, { baseUrl }]),
    ["a base URL that is not a string", { baseUrl: new URL("http://localhost:8080") }],
    ["a fetch that is none", { fetch: null }],
    ["what fetch answered", { fetch: Promise.resolve() }],
    ["a key that no header can carry", { apiKey: "pp\n" }],
    ["no key", { apiKey: undefined }],
    ...notTimes.flatMap((time) =>
      ["timeoutMs", "attemptTimeoutMs", "retryPauseMs"].map((name): [string, object] => [
        `${name} of ${time}`,
        { [name]: time },
      ]),
    ),
  ])("are TypeErrors for what is wrong with the settings: %s", ([, settings]) => {
    const wrong = { baseUrl: service.httpUrl, apiKey: project.liveKey, ...settings } as Settings;
    expect(() => createPhoneproof(wrong)).toThrow(TypeError);
    expect(() => createPhoneproof(wrong)).toThrow(Object.keys(settings)[0]);
  });

  test.for([undefined, null, "http://localhost:8080"])("are TypeErrors for settings of %s", (settings) => {
    expect(() => createPhoneproof(settings as unknown as Settings)).toThrow(
      new TypeError("settings must be an object"),
    );
  });

  const { read, cancel, create, waitUntilFinished } = phoneproof;

  test.for<[what: string, named: string, wrong: () => Promise<unknown>]>([
    ["an id that is a step up the path", "id", () => read("..")],
    ["an empty id", "id", () => cancel("")],
    ["an id that is none", "id", () => read(undefined as unknown as string)],
    ["half a character in an id", "id", () => cancel("vrf_\ud800")],
    ["a creation of nothing", "verification must be an object", () => create(null as unknown as object)],
    ["a creation's options of nothing", "options must be", () => create({}, null as unknown as object)],
    ["a read's options that are text", "options must be", () => read("vrf_none", "now" as unknown as object)],
    [
      "a cancel's options that are a number",
      "options must be",
      () => cancel("vrf_none", 5 as unknown as object),
    ],
    ["a creation of a list", "verification must be", () => create([["mode", "match"]] as unknown as object)],
    [
      "a wait's options of nothing",
      "options must be",
      () => waitUntilFinished("vrf_none", null as unknown as object),
    ],
    ["a key that is too short", "idempotencyKey", () => create({}, { idempotencyKey: "short" })],
    ...notTimes.flatMap((time): [string, string, () => Promise<unknown>][] => [
      [`a creation's timeoutMs of ${time}`, "timeoutMs", () => create({}, { timeoutMs: time })],
      [`a read's timeoutMs of ${time}`, "timeoutMs", () => read("vrf_none", { timeoutMs: time })],
      [`a cancel's timeoutMs of ${time}`, "timeoutMs", () => cancel("vrf_none", { timeoutMs: time })],
      [
        `a wait's timeoutMs of ${time}`,
        "timeoutMs",
        () => waitUntilFinished("vrf_none", { timeoutMs: time }),
      ],
      [`pollMs of ${time}`, "pollMs", () => waitUntilFinished("vrf_none", { pollMs: time })],
    ]),
    ...[new AbortController(), "stop", "", {}].flatMap(
      (wrong): [string, string, () => Promise<unknown>][] => {
        const options = { signal: wrong as AbortSignal };
        const named = "signal must be an AbortSignal";
        return [
          [`a creation's signal of ${wrong}`, named, () => create({}, options)],
          [`a read's signal of ${wrong}`, named, () => read("vrf_none", options)],
          [`a cancel's signal of ${wrong}`, named, () => cancel("vrf_none", options)],
          [`a wait's signal of ${wrong}`, named, () => waitUntilFinished("vrf_none", options)],
        ];
      },
    ),
  ])("are TypeErrors, in the promise, for what is wrong with a call: %s", async ([, named, wrong]) => {
    const outcome = wrong();
    await expect(outcome).rejects.toBeInstanceOf(TypeError);
    await expect(outcome).rejects.toThrow(named);
  });

  test("tell an exhausted allowance at once, with how long it lasts", async () => {
    const { projectId, liveKey } = await service.createProject({ usageLimit: 1n });
    const limited = clientFor(liveKey);
    await limited.create();
    const error = await failureOf(limited.create());
    if (error.code !== "usage_limit_exceeded") throw error;
    expect(error.retryAfterSeconds).toBeGreaterThan(0);
    await service.client(ProjectService).suspendProject({ projectId });
    await expect.poll(async () => (await failureOf(limited.create())).code).toBe("project_suspended");
  });
});
