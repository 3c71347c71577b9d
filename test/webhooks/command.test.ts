import { create, toBinary } from "@bufbuild/protobuf";
import { beforeAll, describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import {
  ListWebhookDeliveriesResponseSchema,
  WebhookDeliveryState,
  WebhookEventType,
  WebhookService,
} from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { answerOf, run, towards } from "../cli/command.ts";
import { startGrpcPeer } from "../cli/grpc-peer.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { answerWith, type Receiver, refuseForLong, startReceiver, verified } from "./receiver.ts";
import {
  attempted,
  cancelledCopies,
  delivered,
  deliveriesOf,
  deliveryWhen,
  openShop,
  type Shop,
} from "./shop.ts";

let service: TestService;
let environment: Record<string, string>;
let shop: Shop;
let receiver: Receiver;
let place: string[];

beforeAll(async () => {
  service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
  environment = towards(service);
  shop = await openShop(service);
  receiver = await startReceiver(answerWith(200, {}, "thanks\nindeed"));
  place = ["--project", shop.projectId, "--environment", "live"];
});

const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const webhookId = /^whk_[0-7][0-9a-hjkmnp-tv-z]{25}$/;
const secretShape = /^whsec_[A-Za-z0-9+/]{43}=$/;
const everyKind = ["verification.verified", "verification.expired", "verification.cancelled"];

const phoneproof = (...args: string[]) => answerOf(["webhook", ...args], environment);

describe("the lifecycle of a webhook", { shuffle: false }, () => {
  let secret: string;
  let id: string;

  test("set returns its id and its secret", async () => {
    const set = await phoneproof("set", ...place, "--url", receiver.url);
    expect(set).toEqual({
      id: expect.stringMatching(webhookId),
      project_id: shop.projectId,
      environment: "live",
      url: receiver.url,
      events: everyKind,
      created_at: expect.stringMatching(instant),
      replaced_at: null,
      disabled_at: null,
      disabled_reason: null,
      failing_since: null,
      secret: expect.stringMatching(secretShape),
    });
    ({ secret, id } = set);
  });

  test("set with the same URL and events returns the same id and secret, with other events another id", async () => {
    const setEvents = (events: readonly string[]) =>
      phoneproof("set", ...place, "--url", receiver.url, "--events", events.join(","));
    expect(await setEvents(everyKind)).toMatchObject({ id, secret });
    const one = await setEvents(everyKind.slice(0, 1));
    expect(one.secret).toBe(secret);
    expect(one.id).not.toBe(id);
    const all = await setEvents(everyKind);
    expect(all.secret).toBe(secret);
    expect([id, one.id]).not.toContain(all.id);
    ({ id } = all);
  });

  test("show shows it without the secret, by project and environment or by id", async () => {
    const shown = await phoneproof("show", ...place);
    expect(shown).toMatchObject({ id, url: receiver.url, events: everyKind });
    expect(shown).not.toHaveProperty("secret");
    expect(await phoneproof("show", id)).toEqual(shown);
    const { code, stdout } = await run(["webhook", "show", ...place], environment);
    expect(code).toBe(0);
    expect(stdout).toMatch(new RegExp(`^id +${id}$`, "m"));
    expect(stdout).toMatch(/^state +current$/m);
  });

  test("test sends a signed sample event and shows the answer", async () => {
    receiver.received.length = 0;
    for (const type of ["verification.verified", ...everyKind]) {
      const chosen = type === everyKind[0] ? [] : ["--event", type];
      const sent = await phoneproof("test", ...place, ...chosen);
      expect(sent).toEqual({
        id,
        event_id: expect.stringMatching(/^evt_/),
        type,
        url: receiver.url,
        sent_at: expect.stringMatching(instant),
        delivered: true,
        duration_ms: expect.any(Number),
        status: 200,
        error: null,
        answer: "thanks\nindeed",
      });
      const request = receiver.received.at(-1);
      if (!request) throw new Error("the sample did not arrive");
      const payload = verified(request, secret);
      expect(request.headers["webhook-id"]).toBe(sent.event_id);
      expect(payload).toMatchObject({
        type,
        timestamp: sent.sent_at,
        data: {
          id: expect.stringMatching(/^vrf_/),
          status: type.slice("verification.".length),
          environment: "live",
          mode: "discover",
          client_reference: "webhook-test",
          server_time: sent.sent_at,
        },
      });
    }
  });

  test("test ends with exit code 1 if the endpoint does not accept the event, and changes nothing", async () => {
    receiver.answer = answerWith(410);
    const { code, stdout, stderr } = await run(["webhook", "test", ...place, "--json"], environment);
    expect({ code, stderr }).toEqual({ code: 1, stderr: "" });
    expect(JSON.parse(stdout)).toMatchObject({ delivered: false, status: 410, error: "answered 410" });
    const person = await run(["webhook", "test", ...place], environment);
    expect(person.code).toBe(1);
    expect(person.stdout).toMatch(/^result +answered 410$/m);
    expect((await phoneproof("show", ...place)).disabled_at).toBeNull();
    receiver.answer = answerWith(200, {}, "thanks\nindeed");
  });

  test("deliveries shows every attempt, and resend sends again", async () => {
    receiver.answer = refuseForLong(500, "not today");
    const verification = await shop.event();
    await deliveryWhen(service, verification, attempted(1));
    const { deliveries, next_page_token } = await phoneproof("deliveries", "--verification", verification);
    expect(next_page_token).toBeNull();
    const event = verification.replace("vrf_", "evt_");
    const attempt = {
      number: 1,
      started_at: expect.stringMatching(instant),
      duration_ms: expect.any(Number),
      status: 500,
      error: "answered 500",
      answer: "not today",
    };
    expect(deliveries).toEqual([
      {
        event_id: event,
        verification_id: verification,
        webhook_id: id,
        type: "verification.cancelled",
        occurred_at: expect.stringMatching(instant),
        url: receiver.url,
        state: "pending",
        next_attempt_at: expect.stringMatching(instant),
        resends: 0,
        attempts: [attempt],
      },
    ]);
    receiver.answer = answerWith(200, {}, "thanks\nindeed");
    expect(await phoneproof("resend", event)).toMatchObject({
      event_id: event,
      state: "pending",
      resends: 1,
    });
    await deliveryWhen(service, verification, delivered);
    const again = await phoneproof("deliveries", "--verification", verification);
    expect(again.deliveries[0]).toMatchObject({
      state: "delivered",
      next_attempt_at: null,
      attempts: [attempt, { number: 2, status: 200, error: null, answer: "thanks\nindeed" }],
    });
    const { stdout } = await run(["webhook", "deliveries", "--verification", verification], environment);
    expect(stdout).toMatch(new RegExp(`^event +${event}$`, "m"));
    expect(stdout).toMatch(/^TRY +STARTED +STATUS +TOOK +ERROR +ANSWER$/m);
    expect(stdout).toMatch(/^1 .* 500 +\d+ ms +answered 500 +not today$/m);
    expect(stdout).toMatch(/^2 .* 200 +\d+ ms +- +thanks\\nindeed$/m);
  });

  test("rotate-secret returns a new secret", async () => {
    const rotated = await phoneproof("rotate-secret", ...place);
    expect(rotated.secret).toMatch(secretShape);
    expect(rotated.secret).not.toBe(secret);
    expect(rotated.id).not.toBe(id);
    expect((await phoneproof("show", id)).replaced_at).toMatch(instant);
  });

  test("disable records the reason and holds back events; test still sends, and set enables it again", async () => {
    expect(await phoneproof("disable", ...place)).toMatchObject({
      disabled_at: expect.stringMatching(instant),
      disabled_reason: "disabled by hand",
    });
    const held = await shop.event();
    const { deliveries } = await phoneproof("deliveries", "--verification", held);
    expect(deliveries).toMatchObject([{ state: "disabled", attempts: [] }]);
    const { code, stderr } = await run(["webhook", "resend", held.replace("vrf_", "evt_")], environment);
    expect(code).toBe(1);
    expect(stderr).toContain("webhook_disabled");
    expect((await phoneproof("deliveries", "--verification", held)).deliveries).toEqual(deliveries);
    expect(await phoneproof("test", ...place)).toMatchObject({ delivered: true });
    expect((await phoneproof("show", ...place)).disabled_reason).toBe("disabled by hand");
    expect(await phoneproof("set", ...place, "--url", receiver.url)).toMatchObject({ disabled_at: null });
  });

  test("after remove it is no longer in force", async () => {
    expect((await phoneproof("remove", ...place)).replaced_at).toMatch(instant);
    const { code, stderr } = await run(["webhook", "show", ...place], environment);
    expect(code).toBe(1);
    expect(stderr).toContain("There is no current webhook in this project and environment.");
  });

  test("disable --url disables one that is no longer in force", async () => {
    const unnamed = await run(["webhook", "disable", ...place], environment);
    expect(unnamed.code).toBe(1);
    expect(unnamed.stderr).toContain(
      "There is no current webhook in this project and environment: give the URL of the one to disable.",
    );
    const other = await run(["webhook", "disable", ...place, "--url", `${receiver.url}/other`], environment);
    expect(other.code).toBe(1);
    expect(other.stderr).toContain("This project and environment has never had a webhook with this URL.");
    expect(await phoneproof("disable", ...place, "--url", receiver.url)).toMatchObject({
      disabled_at: expect.stringMatching(instant),
      replaced_at: expect.stringMatching(instant),
    });
  });
});

test("a project's deliveries are listed in pages, the newest verification first", async () => {
  const [one, other] = [await openShop(service), await openShop(service)];
  await one.setWebhook(receiver.url);
  await other.setWebhook(receiver.url);
  const ids: string[] = [];
  for (let count = 0; count < 5; count += 1) ids.push(await one.event());
  await one.rotateSecret();
  for (let count = 0; count < 2; count += 1) ids.push(await one.event());
  await other.event();
  const newestFirst = ids.toSorted().reverse();
  const project = ["deliveries", "--project", one.projectId];
  const all = await phoneproof(...project);
  const idsOf = (page: { deliveries: { verification_id: string }[] }) =>
    page.deliveries.map((delivery) => delivery.verification_id);
  expect(idsOf(all)).toEqual(newestFirst);
  expect(all.next_page_token).toBeNull();
  const first = await phoneproof(...project, "--limit", "3");
  const second = await phoneproof(...project, "--limit", "3", "--page-token", first.next_page_token);
  const third = await phoneproof(...project, "--limit", "3", "--page-token", second.next_page_token);
  expect([first, second, third].map(idsOf)).toEqual([
    newestFirst.slice(0, 3),
    newestFirst.slice(3, 6),
    newestFirst.slice(6),
  ]);
  expect(third.next_page_token).toBeNull();
  expect(idsOf(await phoneproof(...project, "--environment", "test"))).toEqual([]);
  const [newest = ""] = newestFirst;
  const ofNewest = [...project, "--verification", newest, "--environment"];
  expect(idsOf(await phoneproof(...ofNewest, "live"))).toEqual([newest]);
  expect(idsOf(await phoneproof(...ofNewest, "test"))).toEqual([]);
  // A verification of another project matches nothing.
  const ofOther = ["deliveries", "--project", other.projectId, "--verification", newest];
  expect(await phoneproof(...ofOther)).toEqual({ deliveries: [], next_page_token: null });
  // Without a filter, the deliveries of all projects are listed.
  expect(idsOf(await phoneproof("deliveries", "--limit", "1"))).not.toContain(newestFirst[0]);
});

test("without --event, test sends the first event type that the webhook is configured for", async () => {
  const { projectId, setWebhook } = await openShop(service);
  await setWebhook(receiver.url, [
    WebhookEventType.VERIFICATION_CANCELLED,
    WebhookEventType.VERIFICATION_EXPIRED,
  ]);
  const type = "verification.expired";
  expect(await phoneproof("test", "--project", projectId, "--environment", "live")).toMatchObject({ type });
  expect(JSON.parse(receiver.received.at(-1)?.body ?? "")).toMatchObject({
    type,
    data: { status: "expired" },
  });
});

test("an attempt's duration is reported to the millisecond, also beyond a second", async () => {
  const seller = await openShop(service);
  await seller.setWebhook(receiver.url);
  const id = await seller.event();
  await deliveryWhen(service, id, delivered);
  await service.db.query("UPDATE webhook_attempt SET duration_ms = 12345 WHERE verification_id = $1", [
    decodeId("vrf_", id),
  ]);
  const [delivery] = await deliveriesOf(service, id);
  expect(delivery?.attempts[0]?.duration).toMatchObject({ seconds: 12n, nanos: 345_000_000 });
  const { deliveries } = await phoneproof("deliveries", "--verification", id);
  expect(deliveries[0].attempts).toMatchObject([{ duration_ms: 12_345 }]);
});

test("a page of deliveries is no larger than most gRPC libraries accept, whatever the endpoint answered", async () => {
  const seller = await openShop(service);
  await seller.setWebhook(receiver.url);
  const id = await seller.event();
  await deliveryWhen(service, id, delivered);
  // 199 more deliveries with ten attempts each, whose answers were Korean, but not in UTF-8.
  await service.db.query(
    `WITH ${cancelledCopies(199)},
     owed AS (
       INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, failures, resends)
       SELECT id, webhook_configuration_id, 'failed', 10, 10, 0 FROM made
     )
     INSERT INTO webhook_attempt (verification_id, number, started_at, duration_ms, status, error, answer)
     SELECT id, number, now(), 1, 500, 'answered 500', repeat(U&'FFFD', 1024) FROM made, generate_series(1, 10) number`,
    [decodeId("vrf_", id)],
  );
  const client = service.client(WebhookService);
  const listed: string[] = [];
  let pageToken = "";
  do {
    const page = await client.listWebhookDeliveries({
      projectId: seller.projectId,
      pageSize: 200,
      pageToken,
    });
    expect(toBinary(ListWebhookDeliveriesResponseSchema, page).length).toBeLessThan(4 * 1024 * 1024);
    listed.push(...page.deliveries.map(({ verificationId }) => verificationId));
    ({ nextPageToken: pageToken } = page);
  } while (pageToken !== "");
  expect(new Set(listed).size).toBe(200);
  expect(listed).toEqual(listed.toSorted().reverse());
  // The command asks until it has as many as were wanted.
  const { deliveries } = await phoneproof("deliveries", "--project", seller.projectId, "--limit", "150");
  expect(deliveries).toHaveLength(150);
});

test("deliveries can be filtered by state, and however many newer ones do not match, the first page is filled", async () => {
  const seller = await openShop(service);
  const [refusing, unwanted] = [
    await startReceiver(refuseForLong(500)),
    await startReceiver(answerWith(200)),
  ];
  await seller.setWebhook(receiver.url);
  const arrived = [await seller.event(), await seller.event()];
  for (const id of arrived) await deliveryWhen(service, id, delivered);
  await seller.setWebhook(refusing.url);
  const waiting = await seller.event();
  await deliveryWhen(service, waiting, attempted(1));
  await seller.setWebhook(unwanted.url);
  await phoneproof("disable", "--project", seller.projectId, "--environment", "live");
  const heldBack = await seller.event();

  const listed = async (...args: string[]) => {
    const page = await phoneproof("deliveries", "--project", seller.projectId, ...args);
    const ids = page.deliveries.map((delivery: { verification_id: string }) => delivery.verification_id);
    return { ids, next: page.next_page_token };
  };
  const delivering = arrived.toSorted().reverse();
  expect(await listed("--state", "delivered")).toEqual({ ids: delivering, next: null });
  expect(await listed("--state", "pending")).toEqual({ ids: [waiting], next: null });
  const both = [waiting, heldBack].toSorted().reverse();
  expect(await listed("--state", "disabled, pending")).toEqual({ ids: both, next: null });
  expect(await listed("--state", "failed")).toEqual({ ids: [], next: null });
  const first = await listed("--state", "delivered", "--limit", "1");
  expect(first).toEqual({ ids: delivering.slice(0, 1), next: expect.any(String) });
  const goOn = ["--limit", "1", "--page-token", first.next];
  expect(await listed("--state", "delivered", ...goOn)).toEqual({ ids: delivering.slice(1), next: null });
  // A page token is refused with other filters.
  const stray = await run(["webhook", "deliveries", "--state", "pending", ...goOn], environment);
  expect({ code: stray.code, stderr: stray.stderr }).toEqual({
    code: 1,
    stderr: expect.stringContaining("page_token"),
  });
  expect(await listed("--verification", waiting, "--state", "delivered")).toEqual({ ids: [], next: null });

  // 2,500 newer deliveries in another state.
  await service.db.query(
    `WITH ${cancelledCopies(2_500)}
     INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, failures, resends)
     SELECT id, webhook_configuration_id, 'failed', 0, 0, 0 FROM made`,
    [decodeId("vrf_", arrived[0] ?? "")],
  );
  const client = service.client(WebhookService);
  const states = [WebhookDeliveryState.PENDING];
  const page = await client.listWebhookDeliveries({ projectId: seller.projectId, states });
  expect(page).toMatchObject({ deliveries: [{ verificationId: waiting }], nextPageToken: "" });
  const everybodys = await client.listWebhookDeliveries({ states });
  expect(everybodys.deliveries.map(({ verificationId }) => verificationId)).toContain(waiting);
});

test.for([
  {
    name: "an unknown project",
    args: ["deliveries", "--project", "prj_01kaex4mpyf2xbtyt1s6vdr4e9"],
    expectedCode: "not_found",
  },
  {
    name: "an unknown verification",
    args: ["deliveries", "--verification", "vrf_01kaex4mpyf2xbtyt1s6vdr4e9"],
    expectedCode: "verification_not_found",
  },
  {
    name: "a malformed verification id",
    args: ["deliveries", "--verification", "x"],
    expectedCode: "verification_not_found",
  },
  {
    name: "an invalid page token",
    args: ["deliveries", "--page-token", "x"],
    expectedCode: "validation_failed",
  },
  { name: "an unknown event", args: ["resend", "evt_01kaex4mpyf2xbtyt1s6vdr4e9"], expectedCode: "not_found" },
  { name: "an unknown webhook", args: ["show", "whk_01kaex4mpyf2xbtyt1s6vdr4e9"], expectedCode: "not_found" },
])("$name is refused", async ({ args, expectedCode }) => {
  const { code, stderr } = await run(["webhook", ...args], environment);
  expect(code).toBe(1);
  expect(stderr).toContain(expectedCode);
});

test.for([
  {
    name: "set with an unknown event type",
    args: ["set", "--url", "https://shop.example", "--events", "verification.paid"],
    option: "--events",
  },
  { name: "show without arguments", args: ["show"], option: "--project" },
  { name: "resend without arguments", args: ["resend"], option: "event" },
  {
    name: "deliveries in an unknown state",
    args: ["deliveries", "--state", "lost"],
    option: "--state",
  },
  {
    name: "deliveries of an environment without a project",
    args: ["deliveries", "--environment", "live"],
    option: "--project",
  },
])("$name is wrong usage; the error names the option or argument", async ({ args, option }) => {
  const set = args[0] === "set" ? place : [];
  const { code, stderr } = await run(["webhook", ...args, ...set], environment);
  expect(code).toBe(2);
  expect(stderr).toContain(option);
});

test("an attempt that is being made is listed as in progress", async () => {
  const answer = create(ListWebhookDeliveriesResponseSchema, {
    deliveries: [{ attempts: [{ number: 1 }] }],
  });
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(ListWebhookDeliveriesResponseSchema, answer))),
  );
  const at = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  const { stdout } = await run(["webhook", "deliveries"], at);
  expect(stdout).toMatch(/^1 +- +- +- +in progress +-$/m);
});

test("the service refuses non-admin credentials, unknown types and states, and a project or environment alone", async () => {
  const { projectId } = shop;
  const request = { projectId, environment: Environment.LIVE, url: receiver.url };
  for (const token of [await service.createToken({ scope: "read" }), shop.liveKey]) {
    const client = service.client(WebhookService, token);
    await expect(client.setWebhook(request)).rejects.toThrow("is not allowed to do that");
    await expect(client.listWebhookDeliveries({})).rejects.toThrow("is not allowed to do that");
  }
  const client = service.client(WebhookService);
  await expect(client.setWebhook({ ...request, events: [99 as WebhookEventType] })).rejects.toThrow(
    "invalid",
  );
  const states = [98 as WebhookDeliveryState, 99 as WebhookDeliveryState];
  await expect(client.listWebhookDeliveries({ states })).rejects.toThrow("invalid");
  await expect(client.setWebhook({ projectId, url: receiver.url })).rejects.toThrow("invalid");
  await expect(client.listWebhookDeliveries({ environment: Environment.LIVE })).rejects.toThrow("invalid");
  await expect(client.setWebhook({ ...request, projectId: "prj_x" })).rejects.toThrow("no such project");
});
