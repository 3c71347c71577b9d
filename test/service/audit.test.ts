import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditService } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { hasIpv6, noteAbsence } from "../harness/absent-tools.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf, refusalOf } from "../rpc/grpc-answer.ts";
import { createPending } from "./pending.ts";

if (!hasIpv6) noteAbsence("IPv6", "the address in the audit log of a service that listens on it");

const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
const { projectId } = await service.createProject();
const audit = service.client(AuditService);
const environment = Environment.TEST;

/** The entries that `act` adds to the audit log, oldest first. */
async function written(act: () => Promise<unknown>) {
  const { entries: before } = await audit.listAuditEntries({ pageSize: 1 });
  await act();
  const { entries } = await audit.listAuditEntries({ pageSize: 200 });
  const known = entries.findIndex(({ id }) => id === before[0]?.id);
  return entries.slice(0, known === -1 ? undefined : known).toReversed();
}

describe("an administrative action writes one audit log entry", { shuffle: false }, () => {
  const projects = service.client(ProjectService);
  const keys = service.client(ApiKeyService);
  const numbers = service.client(DestinationNumberService);
  const tokens = service.client(ServiceTokenService);
  const webhooks = service.client(WebhookService);
  const place = { projectId, environment };

  test("with actor, action, subject, time and address", async () => {
    const startedAt = Date.now();
    const [entry, ...others] = await written(() => projects.suspendProject({ projectId }));
    expect(others).toEqual([]);
    expect(entry).toMatchObject({
      id: expect.stringMatching(/^aud_[0-9a-z]{26}$/),
      actor: "installation",
      address: "127.0.0.1",
      requestId: expect.stringMatching(/^req_[0-9a-z]{26}$/),
      action: "project.suspended",
      subject: projectId,
      projectId,
      details: {},
    });
    const occurredAt = Number(entry?.occurredAt?.seconds) * 1000;
    expect(occurredAt).toBeGreaterThan(startedAt - 1_000);
    expect(occurredAt).toBeLessThanOrEqual(Date.now());
  });

  if (hasIpv6)
    test("with an IPv4 address as it is where the service listens on IPv6, too", async () => {
      // Its socket presents 127.0.0.1 in the same way as one that listens on `::`.
      const { client } = await service.startAnother({ ROLES: "api", GRPC_HOST: "::ffff:127.0.0.1" });
      const [entry] = await written(() => client(ProjectService).createProject({ name: "Shop" }));
      expect(entry).toMatchObject({ action: "project.created", address: "127.0.0.1" });
    });

  test("that names the token used", async () => {
    const { serviceToken, secret } = await tokens.createServiceToken({ scope: ServiceTokenScope.ADMIN });
    const [entry] = await written(() => service.client(ProjectService, secret).resumeProject({ projectId }));
    expect(entry).toMatchObject({ actor: serviceToken?.id, action: "project.resumed" });
  });

  test.for<[name: string, act: () => Promise<unknown>, entry: object]>([
    [
      "creating a project",
      () => projects.createProject({ name: "Shop" }),
      { action: "project.created", details: { name: "Shop" } },
    ],
    [
      "updating a project, with the changed fields",
      () => projects.updateProject({ projectId, name: "New", usageLimit: 7n }),
      { action: "project.updated", details: { name: "New", usage_limit: "7" } },
    ],
    [
      "creating a key",
      () => keys.createApiKey({ projectId, environment }),
      { action: "api_key.created", projectId, details: { environment: "test" } },
    ],
    [
      "rotating a key",
      async () => {
        const { apiKeys } = await keys.listApiKeys({ projectId });
        await keys.rotateApiKey({ apiKeyId: apiKeys.at(-1)?.id ?? "" });
      },
      { action: "api_key.rotated", details: { replaced: expect.stringMatching(/^key_/) } },
    ],
    [
      "revoking a key",
      async () => {
        const { apiKeys } = await keys.listApiKeys({ projectId });
        await keys.revokeApiKey({ apiKeyId: apiKeys.at(-1)?.id ?? "" });
      },
      { action: "api_key.revoked", projectId },
    ],
    [
      "adding a number",
      () => numbers.addDestinationNumber({ number: "0200009991", environment, projectId }),
      { action: "number.added", subject: "0200009991", projectId, details: { environment: "test" } },
    ],
    [
      "removing a number",
      () => numbers.removeDestinationNumber({ number: "0200009991" }),
      { action: "number.removed", subject: "0200009991", projectId },
    ],
    [
      "creating a token",
      () =>
        tokens.createServiceToken({
          scope: ServiceTokenScope.INGEST,
          name: "gateway in Seoul",
          source: "gateway-1",
          environment: Environment.LIVE,
          numbers: ["0212345678", "#0701"],
        }),
      {
        action: "service_token.created",
        projectId: "",
        details: {
          scope: "ingest",
          name: "gateway in Seoul",
          source: "gateway-1",
          environment: "live",
          numbers: "0212345678 #0701",
        },
      },
    ],
    [
      "revoking a token",
      async () => {
        const { serviceTokens } = await tokens.listServiceTokens({});
        await tokens.revokeServiceToken({ serviceTokenId: serviceTokens.at(-1)?.id ?? "" });
      },
      { action: "service_token.revoked", subject: expect.stringMatching(/^tok_/) },
    ],
    [
      "setting a webhook",
      () => webhooks.setWebhook({ ...place, url: "http://127.0.0.1:9/hook" }),
      { action: "webhook.set", projectId, details: { url: "http://127.0.0.1:9/hook", environment: "test" } },
    ],
    [
      "rotating a webhook's secret",
      () => webhooks.rotateWebhookSecret(place),
      { action: "webhook.secret_rotated", projectId },
    ],
    [
      "sending a test webhook",
      () => webhooks.sendTestWebhook(place),
      { action: "webhook.tested", projectId },
    ],
    ["disabling a webhook", () => webhooks.disableWebhook(place), { action: "webhook.disabled", projectId }],
    ["removing a webhook", () => webhooks.removeWebhook(place), { action: "webhook.removed", projectId }],
  ])("for %s", async ([, act, expected]) => {
    const entries = await written(act);
    expect(entries).toHaveLength(1);
    expect(entries[0]).toMatchObject({ actor: "installation", ...expected });
  });

  test("for resending an event", async () => {
    const shop = await service.createProject();
    const { projectId } = shop;
    await webhooks.setWebhook({ projectId, environment: Environment.LIVE, url: "http://127.0.0.1:9/hook" });
    const response = await fetch(`${service.httpUrl}/v1/verifications`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${shop.liveKey}`,
        "content-type": "application/json",
        "idempotency-key": "audit-resend",
      },
      body: "{}",
    });
    const { destination, sms_text } = (await response.json()) as { destination: string; sms_text: string };
    await service.sms({ to: destination, text: sms_text });
    const { deliveries } = await webhooks.listWebhookDeliveries({ projectId });
    const eventId = deliveries[0]?.eventId ?? "";
    const entries = await written(() => webhooks.resendWebhookEvent({ eventId }));
    expect(entries).toMatchObject([{ action: "webhook.resent", subject: eventId, projectId }]);
  });

  test("without API keys, webhook secrets or the query of a webhook's URL", async () => {
    const { secret } = await keys.createApiKey({ projectId, environment });
    const { secret: webhookSecret } = await webhooks.setWebhook({
      ...place,
      url: "http://127.0.0.1:9/other?token=of-the-endpoint",
    });
    await webhooks.sendTestWebhook(place);
    const { rows } = await service.db.query("SELECT a::text AS text FROM audit_entry a");
    const all = rows.map(({ text }) => text).join("\n");
    expect(all).not.toContain(secret);
    expect(all).not.toContain(webhookSecret);
    expect(all).not.toContain("of-the-endpoint");
    expect(all).toContain("http://127.0.0.1:9/other?…");
    // As an earlier version wrote it.
    await service.db.query(
      "UPDATE audit_entry SET details = details || jsonb_build_object('url', 'https://shop.example/h?token=old') WHERE details->>'url' LIKE '%/other?%'",
    );
    const { entries } = await service.client(AuditService).listAuditEntries({ pageSize: 200 });
    expect(JSON.stringify(entries.map(({ details }) => details))).not.toContain("token=old");
  });
});

test("each setting of a webhook writes an entry, because it shows the secret, even if nothing changes", async () => {
  const webhooks = service.client(WebhookService);
  const { project } = await service.client(ProjectService).createProject({ name: "Set twice" });
  const place = { projectId: project?.id ?? "", environment, url: "http://127.0.0.1:9/again" };
  const answers: object[] = [];
  const entries = await written(async () => {
    answers.push(await webhooks.setWebhook(place), await webhooks.setWebhook(place));
  });
  expect(answers[1]).toEqual(answers[0]);
  expect(entries.map(({ action, subject }) => [action, subject])).toEqual([
    ["webhook.set", expect.stringMatching(/^whk_/)],
    ["webhook.set", entries[0]?.subject],
  ]);
});

describe("no audit log entry is written", () => {
  test("for reads", async () => {
    expect(
      await written(async () => {
        await service.client(ProjectService).listProjects({});
        await service.client(ApiKeyService).listApiKeys({ projectId });
        await service.client(WebhookService).listWebhookDeliveries({});
      }),
    ).toEqual([]);
  });

  test("for an update that changes nothing", async () => {
    const projects = service.client(ProjectService);
    const settings = { name: "Same", codeLength: 8, parentOrigin: "https://shop.example", usageLimit: 7n };
    const { project } = await projects.createProject(settings);
    const again = { projectId: project?.id ?? "", ...settings, smsTemplate: "", returnUrl: "" };
    expect(await written(() => projects.updateProject(again))).toEqual([]);
  });

  test("for a change that was made before", async () => {
    const projects = service.client(ProjectService);
    const keys = service.client(ApiKeyService);
    const tokens = service.client(ServiceTokenService);
    const webhooks = service.client(WebhookService);
    const { project } = await projects.createProject({ name: "Twice" });
    const place = { projectId: project?.id ?? "", environment };
    const { apiKey } = await keys.createApiKey(place);
    const { serviceToken } = await tokens.createServiceToken({ scope: ServiceTokenScope.READ });
    const key = { apiKeyId: apiKey?.id ?? "" };
    const token = { serviceTokenId: serviceToken?.id ?? "" };
    await webhooks.setWebhook({ ...place, url: "https://shop.example/twice" });
    const twice = async (change: () => Promise<object>) => {
      const answers: object[] = [];
      const entries = await written(async () => {
        answers.push(await change(), await change());
      });
      expect(answers[1]).toEqual(answers[0]);
      return entries.map(({ action }) => action);
    };
    expect(await twice(() => projects.suspendProject(place))).toEqual(["project.suspended"]);
    expect(await twice(() => projects.resumeProject(place))).toEqual(["project.resumed"]);
    expect(await twice(() => keys.revokeApiKey(key))).toEqual(["api_key.revoked"]);
    expect(await twice(() => tokens.revokeServiceToken(token))).toEqual(["service_token.revoked"]);
    expect(await twice(() => webhooks.disableWebhook(place))).toEqual(["webhook.disabled"]);
  });

  test("for refused calls", async () => {
    expect(
      await written(async () => {
        const missing = "prj_01kaex4mpyf2xbtyt1s6vdr4e9";
        const refused = await Promise.allSettled([
          service.client(ProjectService).updateProject({ projectId, codeLength: 99 }),
          service.client(ProjectService).suspendProject({ projectId: missing }),
          service.client(ApiKeyService).createApiKey({ projectId: missing, environment }),
          service.client(DestinationNumberService).removeDestinationNumber({ number: "0299999999" }),
        ]);
        expect(refused.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected", "rejected"]);
      }),
    ).toEqual([]);
  });
});

test("an action whose audit log entry cannot be written is not done", async () => {
  const projects = service.client(ProjectService);
  const { projects: before } = await projects.listProjects({});
  const shop = merchant(service.httpUrl, (await service.createProject()).liveKey);
  const phone = "01098760001";
  const verification = await createPending(shop);
  await service.sms({ ...verification, from: phone });
  const erasures = service.client(ErasureService);
  await service.db.query("ALTER TABLE audit_entry ADD CONSTRAINT nothing_new CHECK (false) NOT VALID");
  try {
    await expect(projects.createProject({ name: "Unseen" })).rejects.toThrow(ConnectError);
    await expect(service.sms({ to: "0200009991", text: "unseen" })).rejects.toThrow(ConnectError);
    await expect(erasures.eraseVerification({ verificationId: verification.id })).rejects.toThrow(
      ConnectError,
    );
    await expect(Array.fromAsync(erasures.erasePhone({ phone }))).rejects.toThrow(ConnectError);
  } finally {
    await service.db.query("ALTER TABLE audit_entry DROP CONSTRAINT nothing_new");
  }
  expect((await projects.listProjects({})).projects).toHaveLength(before.length + 1);
  expect((await shop.read(verification.id)).body.phone).toBe(phone);
  const { rowCount } = await service.db.query("SELECT FROM inbound_message WHERE text = 'unseen'");
  expect(rowCount).toBe(0);
});

describe("SMS sent", () => {
  const sent = (token: string, numbers = ["02", "02"]) =>
    written(async () => {
      async function* requests() {
        yield {
          messages: numbers.map((to, n) => ({
            messageId: `${token.slice(-4)}-${to}-${n}`,
            from: "01012345678",
            to,
            text: "x",
          })),
        };
      }
      for await (const _ of service.client(InboundMessageService, token).streamInboundMessages(requests()));
    });

  test("by an administrator are logged with one entry per request", async () => {
    expect(await sent(service.adminToken)).toMatchObject([
      { actor: "installation", action: "sms.sent", subject: "cli", details: { messages: "2" } },
    ]);
  });

  test("by an administrator are logged with the service's numbers that they went to, and no others", async () => {
    const { liveNumber, testNumber } = await service.createProject();
    const entries = await sent(service.adminToken, [liveNumber, testNumber, "01098765432", liveNumber]);
    expect(entries.map(({ details }) => details)).toEqual([
      { messages: "4", destinations: `${liveNumber} (live), ${testNumber} (test)` },
    ]);
  });

  test("by an administrator name ten numbers at most, and none that was removed", async () => {
    const numbers = Array.from({ length: 12 }, (_, index) => `0299000${String(index).padStart(3, "0")}`);
    const administration = service.client(DestinationNumberService);
    for (const number of numbers)
      await administration.addDestinationNumber({ number, environment: Environment.TEST });
    await administration.removeDestinationNumber({ number: numbers[0] ?? "" });
    const [entry] = await sent(service.adminToken, numbers);
    const named = numbers.slice(1, 11).map((number) => `${number} (test)`);
    expect(entry?.details).toEqual({ messages: "12", destinations: [...named, "1 more"].join(", ") });
  });

  test("with an ingest token are not logged", async () => {
    expect(await sent(await service.createToken({ scope: "ingest", source: "gateway-1" }))).toEqual([]);
  });
});

describe("reading the audit log", () => {
  test("returns pages, newest first, filtered by project and actor", async () => {
    const { serviceToken, secret } = await service
      .client(ServiceTokenService)
      .createServiceToken({ scope: ServiceTokenScope.ADMIN });
    const actor = serviceToken?.id ?? "";
    const other = service.client(ProjectService, secret);
    const { project } = await other.createProject({ name: "Paged" });
    const paged = project?.id ?? "";
    for (const name of ["one", "two", "three"]) await other.updateProject({ projectId: paged, name });
    const seen: string[] = [];
    let pageToken = "";
    do {
      const page = await audit.listAuditEntries({ actor, projectId: paged, pageSize: 3, pageToken });
      expect(page.entries.length).toBeLessThanOrEqual(3);
      seen.push(...page.entries.map(({ details }) => details.name ?? ""));
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    expect(seen).toEqual(["three", "two", "one", "Paged"]);
    expect((await audit.listAuditEntries({ actor: "service", projectId: paged })).entries).toEqual([]);
    // An unknown actor is an error: an empty list could be read as an all-clear.
    const refusalFor = (nobody: string) =>
      audit.listAuditEntries({ actor: nobody }).then(
        () => undefined,
        (error) => refusalOf(error).code,
      );
    for (const nobody of ["nobody", "tok_nobody", "prj_01kaex4mpyf2xbtyt1s6vdr4e9"]) {
      expect(await refusalFor(nobody)).toBe("validation_failed");
    }
    expect(await refusalFor("tok_01kaex4mpyf2xbtyt1s6vdr4e9")).toBe("not_found");
    expect((await audit.listAuditEntries({ actor, projectId })).entries).toEqual([]);
  });

  test("refuses the page token of a list with another filter", async () => {
    for (let entry = 0; entry < 3; entry++) await service.createProject();
    const { nextPageToken: pageToken } = await audit.listAuditEntries({ pageSize: 1 });
    expect((await audit.listAuditEntries({ pageSize: 2, pageToken })).entries).toHaveLength(2);
    for (const filter of [{ projectId }, { actor: "service" }]) {
      const refused = await answerOf((options) => audit.listAuditEntries({ ...filter, pageToken }, options));
      expect(refused).toMatchObject({ code: "validation_failed", fields: ["page_token"] });
    }
  });

  test("requires the admin scope", async () => {
    for (const scope of ["read", "write", "ingest"] as const) {
      const token = await service.createToken({
        scope,
        ...(scope === "ingest" ? { source: "gateway-1" } : {}),
      });
      const refused = service.client(AuditService, token).listAuditEntries({});
      await expect(refused).rejects.toMatchObject({ code: Code.PermissionDenied });
    }
  });

  test("refuses invalid page sizes, page tokens and projects", async () => {
    const code = Code.InvalidArgument;
    await expect(audit.listAuditEntries({ pageSize: 201 })).rejects.toMatchObject({ code });
    await expect(audit.listAuditEntries({ pageSize: -1 })).rejects.toMatchObject({ code });
    await expect(audit.listAuditEntries({ pageToken: "x" })).rejects.toMatchObject({ code });
    await expect(audit.listAuditEntries({ projectId: "prj_x" })).rejects.toMatchObject({
      code: Code.NotFound,
    });
  });
});
