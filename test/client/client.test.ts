/** The client package against the service. */

import { getEventListeners } from "node:events";
import { inspect } from "node:util";
import { createPhoneproof, type ServiceRefusal, type Settings } from "@phoneproof/client";
import { Agent, fetch as fetchOfUndici } from "undici";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { newCredential } from "../../src/core/credential.ts";
import { contractCodes, Failure, type FailureCode } from "../../src/failures.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { byTheClock, installClock, moveClock } from "../harness/clock.ts";
import { deadAddress } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { failureOf } from "./failure.ts";

const service = await startTestService();
const project = await service.createProject();
const settings = { baseUrl: service.httpUrl, apiKey: project.liveKey };
const clientFor = (apiKey: string) => createPhoneproof({ ...settings, apiKey });
const phoneproof = clientFor(project.liveKey);

/** Invalid times, such as a wrong calculation or a missing setting gives. */
const notTimes = [Number.NaN, 0, -1, "5" as unknown as number, null as unknown as number];

test("a time that is up sets no negative timer, about which Node would warn", async () => {
  const setTimer = vi.spyOn(globalThis, "setTimeout");
  onTestFinished(() => setTimer.mockRestore());
  // Over before the first attempt begins.
  await failureOf(phoneproof.read("vrf_none", { timeoutMs: Number.MIN_VALUE }));
  const delays = setTimer.mock.calls.map(([, delay]) => delay ?? 0);
  expect(delays).not.toEqual([]);
  expect(delays.filter((delay) => !(delay >= 0))).toEqual([]);
});

describe("waitUntilFinished", () => {
  test("ends when the SMS has arrived", async () => {
    const { id, destination, sms_text: text } = await phoneproof.create();
    const waiting = phoneproof.waitUntilFinished(id, { pollMs: 20 });
    await service.sms({ to: destination, text, from: "010-1234-5678", carrier: "KT" });
    expect(await waiting).toMatchObject({ id, status: "verified", phone: "01012345678", carrier: "KT" });
  });

  test("ends when the verification is cancelled", async () => {
    const { id } = await phoneproof.create();
    const waiting = phoneproof.waitUntilFinished(id, { pollMs: 20 });
    await phoneproof.cancel(id);
    expect(await waiting).toMatchObject({ id, status: "cancelled", phone: null });
  });

  test("retries failed reads, honouring Retry-After, and fails on permanent errors", async () => {
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
      // With this pause each read is a single attempt.
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

  test("reads at the expiry by the service's clock, however long pollMs is", async () => {
    await installClock(service.db);
    const other = await service.startAnother({ DATABASE_URL: byTheClock(service.databaseUrl) });
    // By its clock, the other tests' verifications have expired.
    onTestFinished(() => other.close());
    const { id } = await phoneproof.create();
    await moveClock(service.db, 599_000);
    const slow = createPhoneproof({ baseUrl: other.httpUrl, apiKey: project.liveKey });
    expect(await slow.waitUntilFinished(id, { pollMs: 3_600_000 })).toMatchObject({ id, status: "expired" });
  });

  // With a jitter of a quarter, so that many clients do not read at the same time.
  test.for([
    { random: 0, share: 0.75 },
    { random: 0.5, share: 1 },
    { random: 1, share: 1.25 },
  ])("reads less and less often, down to every five seconds, with jitter: $share of that", async ({
    random,
    share,
  }) => {
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

  test("fails with still_pending after timeoutMs", async () => {
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

test("reads are not cached by a runtime that caches fetch by default, such as Next.js", async () => {
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

test("an expected phone without mode match does not compile, because any phone would verify", async () => {
  // @ts-expect-error
  const { mode } = await phoneproof.create({ expected_phone: "01012345678" });
  expect(mode).toBe("discover");
  // @ts-expect-error
  await phoneproof.create({ mode: "discover", expected_phone: "01012345678" });
  await phoneproof.create({ expected_phone: null });
});

test("fetch may be undici's, with a dispatcher", async () => {
  const dispatcher = new Agent({ connections: 1 });
  const pooled = createPhoneproof({
    ...settings,
    fetch: (url, init) => fetchOfUndici(url, { ...init, dispatcher }),
  });
  const creations = await Promise.all([
    pooled.create(),
    createPhoneproof({ ...settings, fetch: fetchOfUndici }).create(),
  ]);
  expect(creations).toMatchObject([{ status: "pending" }, { status: "pending" }]);
  await dispatcher.close();
});

test("a base URL may end with a slash", async () => {
  const behind = createPhoneproof({ ...settings, baseUrl: `${service.httpUrl}/` });
  expect(await behind.create()).toMatchObject({ status: "pending" });
});

test("calls leave no listeners on a shared signal", async () => {
  const { signal } = new AbortController();
  const { id } = await phoneproof.create({}, { signal });
  const waiting = phoneproof.waitUntilFinished(id, { signal, pollMs: 20 });
  await phoneproof.cancel(id, { signal });
  await waiting;
  expect(getEventListeners(signal, "abort")).toEqual([]);
});

describe("errors", () => {
  test("are typed with every failure code of the API and its status", () => {
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
    const published = Object.fromEntries(
      contractCodes.map((code: FailureCode) => [code, new Failure(code).status]),
    );
    expect(typed).toEqual(published);
  });

  test("are narrowed by their code", async () => {
    const error = await failureOf(phoneproof.create({ mode: "match", expected_phone: "02-123-4567" }));
    // @ts-expect-error: only validation_failed has fields.
    error.fields;
    if (error.code !== "validation_failed") throw error;
    expect(error.fields).toEqual([{ field: "expected_phone", message: expect.stringContaining("010") }]);
    // What collects errors often keeps the message alone.
    expect(error.message).toMatch(
      /^The request has invalid fields.* \| expected_phone must be a 010 mobile number/,
    );
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

  test("are unexpected_answer for a 404 that is not from phoneproof", async () => {
    const elsewhere = createPhoneproof({ baseUrl: service.opsUrl, apiKey: project.liveKey });
    expect(await failureOf(elsewhere.create())).toMatchObject({ code: "unexpected_answer", status: 404 });
  });

  test.for([
    { user: null },
    { error: { code: "login_required", message: "log in" } },
    null,
  ])("are unexpected_answer for a 200 that is not from phoneproof: %j", async (answer) => {
    const elsewhere = createPhoneproof({ ...settings, fetch: async () => Response.json(answer) });
    expect(await failureOf(elsewhere.create())).toMatchObject({ code: "unexpected_answer", status: 200 });
  });

  test("of a 422 have its fields, or an empty list", async () => {
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
    { email: ["is invalid"] },
    ["email is invalid", null, { email: "is invalid" }],
    { filter: ["is invalid"] },
    "email",
  ])("are reported at once if fields are not those of this API: %j", async (fields) => {
    const error = { code: "invalid", message: "no", fields };
    let calls = 0;
    const fetch = async () => Response.json({ error }, { status: 400 + 22 * (calls++ % 2) });
    const elsewhere = createPhoneproof({ ...settings, timeoutMs: 100, retryPauseMs: 1, fetch });
    for (const expected of [{ status: 400 }, { status: 422, fields: [] }]) {
      const refused = await failureOf(elsewhere.create());
      expect(refused).toMatchObject({ code: "invalid", message: "no", ...expected });
      expect("fields" in refused).toBe("fields" in expected);
    }
    expect(calls).toBe(2);
  });

  test.for([
    408, 425, 429, 500, 502, 503, 504, 520, 524, 530, 599,
  ])("are no_answer for a temporary status of a proxy: %s", async (status) => {
    const fetch = async () => new Response("<h1>later</h1>", { status });
    const behind = createPhoneproof({ ...settings, timeoutMs: 20, retryPauseMs: 1, fetch });
    const error = await failureOf(behind.create());
    expect(error).toMatchObject({ code: "no_answer", message: `status ${status}, not from phoneproof` });
    expect(error).toMatchObject({
      retryAfterSeconds: 1,
      idempotencyKey: expect.stringMatching(/^[\w-]{36}$/),
    });
  });

  test.for([
    501, 505, 511, 526,
  ])("are unexpected_answer, without a retry, for a permanent status of a proxy: %s", async (status) => {
    const fetch = vi.fn(async () => new Response("<h1>no</h1>", { status }));
    const behind = createPhoneproof({ ...settings, fetch });
    expect(await failureOf(behind.create())).toMatchObject({ code: "unexpected_answer", status });
    expect(fetch).toHaveBeenCalledTimes(1);
  });

  test("do not come of other libraries' names for the same settings, nor of a signal that is null", async () => {
    const settings = {
      baseUrl: service.httpUrl,
      baseURL: "http://127.0.0.1:1",
      apiKey: project.liveKey,
      api_key: undefined,
      timeout_ms: undefined,
    };
    const signal = null as unknown as undefined;
    expect((await createPhoneproof(settings).create({}, { signal })).status).toBe("pending");
  });

  test("are logged under the name that the package exports", async () => {
    const error = await failureOf(phoneproof.read("vrf_none"));
    expect(inspect(error)).toMatch(/^PhoneproofError: There is no such verification/);
  });

  test("are no_answer if nothing answers", async () => {
    const settings = { apiKey: project.liveKey, timeoutMs: 20, retryPauseMs: 1 };
    const nowhere = createPhoneproof({ ...settings, baseUrl: `http://${await deadAddress()}` });
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
    ].map((baseUrl): [string, object] => [`an invalid base URL: ${baseUrl}`, { baseUrl }]),
    ["a base URL that is not a string", { baseUrl: new URL("http://localhost:8080") }],
    ["a fetch of null", { fetch: null }],
    ["a promise as fetch", { fetch: Promise.resolve() }],
    ["an API key that cannot be sent in a header", { apiKey: "pp\n" }],
    ["no API key", { apiKey: undefined }],
    ["a service token instead of an API key", { apiKey: newCredential("svc") }],
    ...notTimes.flatMap((time) =>
      ["timeoutMs", "attemptTimeoutMs", "retryPauseMs"].map((name): [string, object] => [
        `${name} of ${time}`,
        { [name]: time },
      ]),
    ),
  ])("are TypeErrors that name the invalid setting: %s", ([, settings]) => {
    const wrong = { baseUrl: service.httpUrl, apiKey: project.liveKey, ...settings } as Settings;
    expect(() => createPhoneproof(wrong)).toThrow(TypeError);
    expect(() => createPhoneproof(wrong)).toThrow(Object.keys(settings)[0]);
  });

  test.for<[kind: string, settings: unknown]>([
    ["Undefined", undefined],
    ["Null", null],
    ["String", "http://localhost:8080"],
    ["Promise", Promise.resolve()],
  ])("are TypeErrors for settings of kind %s", ([kind, settings]) => {
    expect(() => createPhoneproof(settings as Settings)).toThrow(
      new TypeError(`settings must be an object, not ${kind}`),
    );
  });

  test("do not come of settings that are a module's exports or have no prototype", () => {
    const { baseUrl, apiKey } = settings;
    const module = Object.defineProperty({ baseUrl, apiKey }, Symbol.toStringTag, { value: "Module" });
    for (const accepted of [module, Object.assign(Object.create(null), settings)]) createPhoneproof(accepted);
  });

  const { read, cancel, create, waitUntilFinished } = phoneproof;

  test.for<[what: string, named: string, wrong: () => Promise<unknown>]>([
    ["an id that leads up the path", "id", () => read("..")],
    ["an empty id", "id", () => cancel("")],
    ["an id of undefined", "id", () => read(undefined as unknown as string)],
    ["a lone surrogate in an id", "id", () => cancel("vrf_\ud800")],
    ["a creation of null", "verification must be an object", () => create(null as unknown as object)],
    ["a creation's options of null", "options must be", () => create({}, null as unknown as object)],
    [
      "a read's options that are a string",
      "options must be",
      () => read("vrf_none", "now" as unknown as object),
    ],
    [
      "a cancel's options that are a number",
      "options must be",
      () => cancel("vrf_none", 5 as unknown as object),
    ],
    ["a creation of a list", "verification must be", () => create([["mode", "match"]] as unknown as object)],
    // Without the check, their fields would be missed: a verification in mode discover, a random key, a wait without an end.
    ...[Promise.resolve({ mode: "match" }), new Map(), new FormData(), new Date()].map(
      (given): [string, string, () => Promise<unknown>] => {
        const kind = Object.prototype.toString.call(given).slice(8, -1);
        return [
          `a creation of kind ${kind}`,
          `verification must be an object, not ${kind}`,
          () => create(given as object),
        ];
      },
    ),
    [
      "a creation's options that were not awaited",
      "options must be an object, not Promise",
      () => create({}, Promise.resolve({ idempotencyKey: "signup-000001" }) as object),
    ],
    [
      "a wait's options of null",
      "options must be",
      () => waitUntilFinished("vrf_none", null as unknown as object),
    ],
    ["an idempotency key that is too short", "idempotencyKey", () => create({}, { idempotencyKey: "short" })],
    ...["idempotency_key", "idempotencykey", "Idempotency-Key"].map(
      (name): [string, string, () => Promise<unknown>] => [
        `the name ${name}`,
        `${name} must be written idempotencyKey`,
        () => create({}, { [name]: "signup-000001" }),
      ],
    ),
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
  ])("are TypeErrors that reject the call's promise and name the invalid argument: %s", async ([
    ,
    named,
    wrong,
  ]) => {
    const outcome = wrong();
    await expect(outcome).rejects.toBeInstanceOf(TypeError);
    await expect(outcome).rejects.toThrow(named);
  });

  test("of an exhausted usage limit come at once, with retryAfterSeconds; a suspended project has its own code", async () => {
    // A limit that allows no call in the next month either, for which the client waits if it begins within its time.
    const { projectId, liveKey } = await service.createProject({ usageLimit: 0n });
    const limited = clientFor(liveKey);
    const error = await failureOf(limited.create());
    if (error.code !== "usage_limit_exceeded") throw error;
    expect(error.retryAfterSeconds).toBeGreaterThan(0);
    await service.client(ProjectService).suspendProject({ projectId });
    await expect.poll(async () => (await failureOf(limited.create())).code).toBe("project_suspended");
  });
});
