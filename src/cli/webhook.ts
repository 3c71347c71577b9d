/** phoneproof webhook: a project's webhooks and their deliveries. */

import { Option } from "commander";
import { type Webhook, WebhookService } from "../gen/proto/phoneproof/v1/webhook_pb.ts";
import { requirePart, wrongUsage } from "./cli-error.ts";
import type { CliCommand } from "./command.ts";
import { fields, localTimeWithZone } from "./layout.ts";
import { atLeastOne, environmentOption, nonEmpty, severalOf } from "./option-values.ts";
import { gather, noteMore } from "./paging.ts";
import type { Session } from "./session.ts";
import { attemptJson, deliveryJson, deliveryText, durationText } from "./webhook-delivery.ts";
import {
  type DeliveryStateWord,
  dateOf,
  deliveryStateOf,
  deliveryStates,
  type EnvironmentWord,
  type EventWord,
  environmentField,
  environmentOf,
  environmentWord,
  eventOf,
  events,
  eventWord,
  isoTime,
} from "./words.ts";

/** The service gives the endpoint 15 s, longer than the deadline of other calls. */
const testDeadlineMs = 25_000;

const exampleProject = "prj_01kaex4mpyf2xbtyt1s6vdr4e9";
const exampleEvent = "evt_01kaex4mpyf2xbtyt1s6vdr4e9";

interface Place {
  readonly project: string;
  readonly environment: EnvironmentWord;
}

interface ShowOptions {
  readonly project?: string;
  readonly environment?: EnvironmentWord;
}

interface DeliveriesOptions extends ShowOptions {
  readonly verification?: string;
  readonly state?: readonly DeliveryStateWord[];
  readonly limit: number;
  readonly pageToken?: string;
}

export function addWebhookCommands(program: CliCommand): void {
  const group = program
    .group("webhook", "Set where a project's events go, list their deliveries, resend them.")
    .examples(
      [
        "where events go",
        `webhook set --project ${exampleProject} --environment live --url https://shop.example/phoneproof`,
      ],
      ["one verification's deliveries", "webhook deliveries --verification vrf_01kaex4mpyf2xbtyt1s6vdr4e9"],
    );

  place(group.command("set"))
    .description(
      "Set the webhook for verifications created from now on. A URL that was set before keeps its secret, and is enabled again if it was disabled.",
    )
    .usage("--project ID --environment E --url URL [options]")
    .requiredOption("--url <url>", "where to POST events; https, and at a public address")
    .option(
      "--events <kinds>",
      `which kinds: ${events.join(", ")}; may be given several times (default: all)`,
      severalOf(events),
    )
    .examples(
      [
        "every kind of event",
        `webhook set --project ${exampleProject} --environment live --url https://shop.example/phoneproof`,
      ],
      [
        "only verified",
        `webhook set --project ${exampleProject} --environment test --url https://shop.example/phoneproof --events verification.verified`,
      ],
    )
    .does<Place & { url: string; events?: readonly EventWord[] }>(async (session, options) => {
      const { webhook, secret } = await session.client.call(WebhookService.method.setWebhook, {
        ...placeOf(options),
        url: options.url,
        events: (options.events ?? []).map((word) => eventOf[word]),
      });
      showWithSecret(session, webhook, secret);
    });

  group
    .command("show")
    .description("Show the current webhook, or any version by its id.")
    .usage("--project ID --environment live|test | ID")
    .argument("[id]", "the version, whk_…")
    .option("--project <id>", "the project, prj_…", nonEmpty)
    .addOption(environmentOption("the environment"))
    .examples(["the current webhook", `webhook show --project ${exampleProject} --environment live`])
    .does<ShowOptions>(async (session, options, webhookId) => {
      const { webhook } = await session.client.call(
        WebhookService.method.getWebhook,
        webhookId === "" ? placeOf(required(options)) : { webhookId },
      );
      showWebhook(session, webhook);
    });

  place(group.command("rotate-secret"))
    .description(
      "Give the webhook a new secret. Events of verifications created from now on are signed with it, those of earlier ones with their own secret and the newest nine since.",
    )
    .usage("--project ID --environment live|test")
    .examples(["a new secret", `webhook rotate-secret --project ${exampleProject} --environment live`])
    .does<Place>(async (session, options) => {
      const { webhook, secret } = await session.client.call(
        WebhookService.method.rotateWebhookSecret,
        placeOf(options),
      );
      showWithSecret(session, webhook, secret);
    });

  place(group.command("remove"))
    .description(
      "Remove the webhook for verifications created from now on. Events of earlier ones are still sent.",
    )
    .usage("--project ID --environment live|test")
    .examples(["remove the webhook", `webhook remove --project ${exampleProject} --environment live`])
    .does<Place>(async (session, options) => {
      const { webhook } = await session.client.call(WebhookService.method.removeWebhook, placeOf(options));
      showWebhook(session, webhook);
    });

  place(group.command("disable"))
    .description("Stop every delivery to a URL at once, until it is set again.")
    .usage("--project ID --environment live|test [options]")
    .option("--url <url>", "a current or earlier URL (default: the current one)", nonEmpty)
    .examples(["stop all deliveries", `webhook disable --project ${exampleProject} --environment live`])
    .does<Place & { url?: string }>(async (session, options) => {
      const { webhook } = await session.client.call(WebhookService.method.disableWebhook, {
        ...placeOf(options),
        url: options.url ?? "",
      });
      showWebhook(session, webhook);
    });

  group
    .command("deliveries")
    .description("List deliveries with their attempts, those of the newest verifications first.")
    .option("--verification <id>", "only this verification's, vrf_…", nonEmpty)
    .option("--project <id>", "only this project's, prj_…", nonEmpty)
    .addOption(environmentOption("with --project: only this environment's"))
    .option(
      "--state <state>",
      `only these: ${deliveryStates.join(", ")}; may be given several times`,
      severalOf(deliveryStates),
    )
    .option("--limit <n>", "how many to list at most", atLeastOne, 20)
    .option("--page-token <token>", "continue where the previous list ended, with the same filters")
    .examples(
      ["one verification's", "webhook deliveries --verification vrf_01kaex4mpyf2xbtyt1s6vdr4e9"],
      ["a project's latest", `webhook deliveries --project ${exampleProject} --limit 50`],
      ["deliveries that failed", `webhook deliveries --project ${exampleProject} --state failed,disabled`],
    )
    .does<DeliveriesOptions>(listDeliveries);

  group
    .command("resend")
    .description("Send an event again now, whatever its delivery state. Its webhook-id stays the same.")
    .argument("<event>", "the event, evt_…")
    .examples(["send it again", `webhook resend ${exampleEvent}`])
    .does(async (session, _options, eventId) => {
      const answer = await session.client.call(WebhookService.method.resendWebhookEvent, { eventId });
      const delivery = requirePart(answer.delivery, "a delivery");
      session.answer(deliveryJson(delivery), () => deliveryText(delivery));
    });

  place(group.command("test"))
    .description(
      "Send a signed sample event to the current webhook and show the response. The exit code is 1 if it is not 2xx.",
    )
    .usage("--project ID --environment live|test [options]")
    .addOption(
      new Option("--event <kind>", "the kind to send (default: the first one that it receives)").choices(
        events,
      ),
    )
    .examples(["try it", `webhook test --project ${exampleProject} --environment test`])
    .does<Place & { event?: EventWord }>(testWebhook);
}

/** The options that identify a webhook, shared by most of the commands. */
function place(command: CliCommand): CliCommand {
  return command
    .requiredOption("--project <id>", "the project, prj_…", nonEmpty)
    .addOption(environmentOption("the environment").makeOptionMandatory());
}

function placeOf({ project, environment }: Place) {
  return { projectId: project, environment: environmentOf[environment] };
}

function required({ project, environment }: ShowOptions): Place {
  if (project !== undefined && environment !== undefined) return { project, environment };
  throw wrongUsage(
    "webhook show: give --project and --environment, or an id; see phoneproof webhook show --help",
  );
}

async function listDeliveries(session: Session, options: DeliveriesOptions): Promise<void> {
  const { verification, project, environment, state = [], limit, pageToken } = options;
  if (environment !== undefined && project === undefined) {
    throw wrongUsage(
      "webhook deliveries: --environment requires --project; see phoneproof webhook deliveries --help",
    );
  }
  const { items: deliveries, nextPageToken } = await gather({ pageToken, limit }, async (page) => {
    const answer = await session.client.call(WebhookService.method.listWebhookDeliveries, {
      verificationId: verification ?? "",
      projectId: project ?? "",
      ...environmentField(environment),
      states: state.map((word) => deliveryStateOf[word]),
      ...page,
    });
    return { items: answer.deliveries, nextPageToken: answer.nextPageToken };
  });
  session.answer({ deliveries: deliveries.map(deliveryJson), next_page_token: nextPageToken || null }, () =>
    deliveries.length === 0 ? "No deliveries here." : deliveries.map(deliveryText).join("\n\n"),
  );
  noteMore(session, nextPageToken);
}

async function testWebhook(session: Session, options: Place & { event?: EventWord }): Promise<void> {
  const sent = await session.client.call(
    WebhookService.method.sendTestWebhook,
    { ...placeOf(options), ...(options.event === undefined ? {} : { type: eventOf[options.event] }) },
    { deadlineMs: testDeadlineMs },
  );
  const webhook = requirePart(sent.webhook, "a webhook");
  const attempt = requirePart(sent.attempt, "the test's result");
  const { number: _, started_at: sentAt, ...result } = attemptJson(attempt);
  session.answer(
    {
      id: webhook.id,
      event_id: sent.eventId,
      type: eventWord(sent.type),
      url: webhook.url,
      sent_at: sentAt,
      delivered: attempt.error === "",
      ...result,
    },
    () =>
      fields([
        ["result", attempt.error === "" ? "delivered" : attempt.error],
        ["url", webhook.url],
        ["event", sent.eventId],
        ["type", eventWord(sent.type)],
        ["status", attempt.status === 0 ? null : String(attempt.status)],
        ["duration", durationText(attempt.duration)],
        ["answer", attempt.answer || null],
      ]),
  );
  if (attempt.error !== "") process.exitCode = 1;
}

function webhookJson(webhook: Webhook) {
  return {
    id: webhook.id,
    project_id: webhook.projectId,
    environment: environmentWord(webhook.environment),
    url: webhook.url,
    events: webhook.events.map(eventWord),
    created_at: isoTime(webhook.createdAt),
    replaced_at: isoTime(webhook.replacedAt),
    disabled_at: isoTime(webhook.disabledAt),
    disabled_reason: webhook.disabledReason || null,
    failing_since: isoTime(webhook.failingSince),
  };
}

function webhookEntries(webhook: Webhook) {
  const disabledAt = localTimeWithZone(dateOf(webhook.disabledAt));
  return [
    ["id", webhook.id],
    ["state", stateOf(webhook)],
    ["url", webhook.url],
    ["events", webhook.events.map(eventWord).join(", ")],
    ["project", webhook.projectId],
    ["environment", environmentWord(webhook.environment)],
    ["created", localTimeWithZone(dateOf(webhook.createdAt))],
    ["replaced", localTimeWithZone(dateOf(webhook.replacedAt))],
    ["disabled", disabledAt === null ? null : `${disabledAt}: ${webhook.disabledReason}`],
    ["failing since", localTimeWithZone(dateOf(webhook.failingSince))],
  ] as const;
}

function stateOf(webhook: Webhook): string {
  const inForce = webhook.replacedAt === undefined ? "current" : "no longer current";
  return webhook.disabledAt === undefined ? inForce : `${inForce}, disabled`;
}

function showWebhook(session: Session, answered: Webhook | undefined): void {
  const webhook = requirePart(answered, "a webhook");
  session.answer(webhookJson(webhook), () => fields(webhookEntries(webhook)));
}

const onlyIfSet = new Set(["replaced", "disabled", "failing since"]);

function showWithSecret(session: Session, answered: Webhook | undefined, secret: string): void {
  const webhook = requirePart(answered, "a webhook");
  session.answer({ ...webhookJson(webhook), secret }, () => {
    const entries = webhookEntries(webhook).filter(
      ([label, value]) => value !== null || !onlyIfSet.has(label),
    );
    return `${fields([...entries, ["secret", secret]])}\n\nStore the secret now: it is shown again only when this URL is set again.`;
  });
}
