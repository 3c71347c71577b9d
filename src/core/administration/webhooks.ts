import { Failure, type FieldViolation } from "../../failures.ts";
import { noEnvironment, noSuchProject, noSuchVerification } from "../access.ts";
import { decodeId, encodeId, newId } from "../ids.ts";
import { fitting, pageLimit, pageStart, paginate } from "../page-token.ts";
import type { Environment } from "../project.ts";
import { checkText } from "../text-field.ts";
import {
  type Attempt,
  type Delivery,
  type DeliveryState,
  type EventType,
  eventTypes,
  newWebhookSecret,
  secretText,
  type Webhook,
} from "../webhook.ts";
import { type AuditStore, auditedUrl } from "./audit.ts";
import { projectUuidOf } from "./projects.ts";

/** The project and environment whose webhook is meant; `projectId` is a UUID. */
export interface WebhookPlace {
  readonly projectId: string;
  readonly environment: Environment;
}

export interface DeliveryFilter {
  /** UUIDs; null: any. */
  readonly verificationId: string | null;
  readonly projectId: string | null;
  readonly environment: Environment | null;
  /** Empty: all. */
  readonly states: readonly DeliveryState[];
  /** Only deliveries of verifications older than this id; null: from the newest. */
  readonly before: string | null;
  readonly limit: number;
}

interface WithSecret {
  readonly webhook: Webhook;
  readonly secret: Uint8Array;
}

/**
 * Setting a URL and rotating the secret create a new version. The project's row lock serialises changes, so that at most one
 * version is in force.
 */
export interface WebhookStore {
  /** `secret` is used only if the project and environment have not had this URL before: a known URL keeps its secret. */
  set(
    place: WebhookPlace,
    webhook: { readonly url: string; readonly events: readonly EventType[]; readonly secret: Uint8Array },
  ): Promise<WithSecret | "no_project">;
  inForce(place: WebhookPlace): Promise<(WithSecret & { readonly now: Date }) | null>;
  find(id: string): Promise<Webhook | null>;
  rotate(place: WebhookPlace, secret: Uint8Array): Promise<Webhook | null>;
  remove(place: WebhookPlace): Promise<Webhook | null>;
  /** Disables every version with this URL; null: with the URL of the version in force. Returns the newest one disabled. */
  disable(place: WebhookPlace, url: string | null, reason: string): Promise<Webhook | null>;
  /** At most `limit + 1`, newest verification first. */
  deliveries(filter: DeliveryFilter): Promise<readonly Delivery[] | "no_project" | "no_verification">;
  /** The event's id is its verification's. */
  resend(verificationId: string): Promise<Delivery | "no_delivery" | "disabled">;
}

/** Sends a sample event, once, and returns the attempt. */
export type SendSample = (sample: {
  readonly webhook: Webhook;
  readonly secret: Uint8Array;
  /** `evt_…` */
  readonly eventId: string;
  readonly type: EventType;
  readonly now: Date;
}) => Promise<Attempt>;

interface WebhookReference {
  readonly projectId: string;
  readonly environment: Environment | null;
}

export interface DeliveryPage {
  readonly deliveries: readonly Delivery[];
  /** Empty on the last page only: a page with few entries, or none, need not be the last. */
  readonly nextPageToken: string;
}

export interface Webhooks {
  /** `violations`: what was found wrong while decoding, to be reported together with the rest. */
  set(
    request: WebhookReference & { readonly url: string; readonly events: readonly EventType[] },
    violations?: readonly FieldViolation[],
  ): Promise<{ readonly webhook: Webhook; readonly secret: string }>;
  get(request: WebhookReference & { readonly webhookId: string }): Promise<Webhook>;
  rotateSecret(request: WebhookReference): Promise<{ readonly webhook: Webhook; readonly secret: string }>;
  remove(request: WebhookReference): Promise<Webhook>;
  disable(request: WebhookReference & { readonly url: string }): Promise<Webhook>;
  deliveries(
    request: WebhookReference & {
      readonly verificationId: string;
      readonly states: readonly DeliveryState[];
      readonly pageSize: number;
      readonly pageToken: string;
    },
    violations?: readonly FieldViolation[],
  ): Promise<DeliveryPage>;
  resend(eventId: string): Promise<Delivery>;
  /** `type` null: the first of the webhook's event types. */
  test(
    request: WebhookReference & { readonly type: EventType | null },
    violations?: readonly FieldViolation[],
  ): Promise<{
    readonly webhook: Webhook;
    readonly eventId: string;
    readonly type: EventType;
    readonly attempt: Attempt;
  }>;
}

const maxUrlLength = 2048;
const pageSizes = { usual: 50, most: 200 };

export function administerWebhooks(parts: {
  readonly webhooks: WebhookStore;
  /** Why the URL is not allowed, judged by its text alone, without resolving its name; null: it is allowed. */
  readonly refusalOf: (url: URL) => string | null;
  readonly sendSample: SendSample;
  readonly audit: Pick<AuditStore, "add">;
}): Webhooks {
  const { webhooks } = parts;

  return {
    async set({ url, events, ...reference }, found = []) {
      const violations = [...found];
      const urlViolation = checkUrl(url, parts.refusalOf);
      if (urlViolation) violations.push(urlViolation);
      const place = placeOf(reference, violations);
      const wanted = events.length === 0 ? eventTypes : eventTypes.filter((type) => events.includes(type));
      const set = await webhooks.set(place, { url, events: wanted, secret: newWebhookSecret() });
      if (set === "no_project") throw noSuchProject();
      return { webhook: set.webhook, secret: secretText(set.secret) };
    },

    async get({ webhookId, ...reference }) {
      if (webhookId === "") return existing(await inForce(reference)).webhook;
      const uuid = decodeId("whk_", webhookId);
      const found = uuid === null ? null : await webhooks.find(uuid);
      if (found === null || !isOf(reference, found)) {
        const hint = uuid === null ? ": give its id, whk_…" : ".";
        throw new Failure("not_found", { message: `There is no such webhook${hint}` });
      }
      return found;
    },

    async rotateSecret(reference) {
      const secret = newWebhookSecret();
      const webhook = existing(await webhooks.rotate(placeOf(reference), secret));
      return { webhook, secret: secretText(secret) };
    },

    remove: async (reference) => existing(await webhooks.remove(placeOf(reference))),

    async disable({ url, ...reference }) {
      const violation = checkText("url", url, { max: maxUrlLength });
      const place = placeOf(reference, violation ? [violation] : []);
      const disabled = await webhooks.disable(place, url === "" ? null : url, "disabled by hand");
      // Removed or replaced webhooks may still have deliveries, so the message must not suggest that nothing is delivered any
      // more.
      const missing =
        url === ""
          ? "There is no current webhook in this project and environment: give the URL of the one to disable."
          : "This project and environment has never had a webhook with this URL.";
      return existing(disabled, missing);
    },

    async deliveries(request, found = []) {
      const filter = filterOf(request, found);
      const kept = await webhooks.deliveries(filter);
      if (kept === "no_project") throw noSuchProject();
      if (kept === "no_verification") throw noSuchVerification(request.verificationId);
      const idOf = ({ verificationId }: Delivery) => verificationId;
      const limit = fitting(kept, filter.limit, bytesOf);
      const { items: deliveries, nextPageToken } = paginate(kept, limit, idOf, listOf(filter));
      return { deliveries, nextPageToken };
    },

    async resend(eventId) {
      const uuid = decodeId("evt_", eventId);
      if (uuid === null) {
        throw new Failure("not_found", {
          message: "There is no such event: give its id, evt_…, from the list of deliveries.",
        });
      }
      const sent = await webhooks.resend(uuid);
      if (sent === "disabled") throw new Failure("webhook_disabled");
      if (sent === "no_delivery") {
        throw new Failure("not_found", {
          message:
            "There is no such event, or no webhook was subscribed to it when its verification was created.",
        });
      }
      return sent;
    },

    async test({ type, ...reference }, violations) {
      const { webhook, secret, now } = existing(await inForce(reference, violations));
      const [first] = webhook.events;
      const kind = type ?? first ?? "verification.verified";
      const eventId = encodeId("evt_", newId());
      const { id, projectId, environment, url } = webhook;
      const details = { environment, url: auditedUrl(url), event_id: eventId };
      await parts.audit.add({ action: "webhook.tested", subject: encodeId("whk_", id), projectId, details });
      const attempt = await parts.sendSample({ webhook, secret, eventId, type: kind, now });
      return { webhook, eventId, type: kind, attempt };
    },
  };

  function inForce(reference: WebhookReference, violations?: readonly FieldViolation[]) {
    return webhooks.inForce(placeOf(reference, violations));
  }
}

/** The webhook must match both project and environment, where given. */
function isOf({ projectId, environment }: WebhookReference, webhook: Webhook): boolean {
  const isOfProject = projectId === "" || decodeId("prj_", projectId) === webhook.projectId;
  return isOfProject && (environment === null || environment === webhook.environment);
}

/** The project and environment that a request names, or validation_failed with its violations and the earlier ones. */
function placeOf(
  { projectId, environment }: WebhookReference,
  violations: readonly FieldViolation[] = [],
): WebhookPlace {
  const all = [...violations];
  if (environment === null) all.push(noEnvironment);
  if (all.length > 0 || environment === null) throw new Failure("validation_failed", { fields: all });
  return { projectId: projectUuidOf(projectId), environment };
}

function checkUrl(text: string, refusalOf: (url: URL) => string | null): FieldViolation | undefined {
  const field = "url";
  const violation = checkText(field, text, { required: true, max: maxUrlLength });
  if (violation) return violation;
  const url = URL.parse(text);
  // `URL` repairs white space, backslashes and missing or surplus slashes, which other programs read differently.
  if (url === null || /[\s\\]/.test(text) || !/^[a-z]+:\/\/[^/]/i.test(text)) {
    return { field, message: "must be an absolute URL, such as https://shop.example/webhooks" };
  }
  if (url.username !== "" || url.password !== "") {
    return { field, message: "must not contain a user name or a password" };
  }
  // A fragment is never sent: one endpoint could have two URLs, of which a 410 would disable only one.
  if (text.includes("#")) return { field, message: "must not have a fragment (#)" };
  const refusal = refusalOf(url);
  return refusal === null ? undefined : { field, message: refusal };
}

function filterOf(
  request: Parameters<Webhooks["deliveries"]>[0],
  found: readonly FieldViolation[],
): DeliveryFilter {
  const { verificationId, projectId, environment, states, pageSize, pageToken } = request;
  const violations = [...found];
  const limit = pageLimit(pageSize, pageSizes, violations);
  if (environment !== null && projectId === "") {
    violations.push({ field: "environment", message: "is allowed only with project_id" });
  }
  const verification = verificationId === "" ? null : decodeId("vrf_", verificationId);
  if (verificationId !== "" && verification === null) throw noSuchVerification(verificationId);
  const filter = {
    verificationId: verification,
    projectId: projectId === "" ? null : projectUuidOf(projectId),
    environment,
    // Deduplicated and sorted: the same states in another order are the same list for the page token.
    states: [...new Set(states)].sort(),
    limit,
  };
  // If decoding found violations, the list asked for is unknown and the token cannot be checked against it.
  const before = found.length > 0 ? null : pageStart(pageToken, listOf(filter), violations);
  if (violations.length > 0) throw new Failure("validation_failed", { fields: violations });
  return { ...filter, before };
}

/** About; besides its texts, a delivery takes some two hundred bytes, and an attempt some forty. */
function bytesOf({ url, attempts }: Delivery): number {
  const texts = attempts.flatMap(({ error, answer }) => [error ?? "", answer ?? ""]);
  return texts.reduce((bytes, text) => bytes + 20 + Buffer.byteLength(text), 200 + Buffer.byteLength(url));
}

const listOf = ({
  verificationId,
  projectId,
  environment,
  states,
}: Omit<DeliveryFilter, "before" | "limit">): object => [verificationId, projectId, environment, states];

function existing<T>(
  found: T | null,
  missing = "There is no current webhook in this project and environment.",
): T {
  if (found === null) throw new Failure("not_found", { message: missing });
  return found;
}
