/**
 * A minimal merchant's server: it creates a verification, passes the window's URL to the page, confirms the result by reading
 * it, and receives the webhook. In production, replace the map by a database table, give the cookie the attribute Secure, limit
 * how often a visitor can begin, and use up an attempt's phone when you store it with the account.
 */

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import type { IncomingMessage, RequestListener, ServerResponse } from "node:http";
import path from "node:path";
import {
  createPhoneproof,
  PhoneproofError,
  type Verification,
  verifyWebhook,
  type WebhookEvent,
} from "@phoneproof/client";

export interface MerchantSettings {
  /** The base URL of phoneproof. */
  readonly apiUrl: string;
  /** The project's secret key. It must never leave this server. */
  readonly apiKey: string;
  /** `whsec_…`; null if no webhook is set. */
  readonly webhookSecret: string | null;
  /** This server's origin, as registered for the project. */
  readonly origin: string;
  readonly log: (line: string) => void;
}

/** What the merchant stores about one person's attempt, in that person's session. */
interface Attempt {
  /** Otherwise the window is opened in place of the page. */
  readonly isPopup: boolean;
  readonly verificationId: string;
  readonly verificationUrl: string;
  readonly state: string;
  phone: string | null;
}

const bodyLimitBytes = 64 * 1024;

export function createMerchant(settings: MerchantSettings): RequestListener {
  const { apiUrl, apiKey, webhookSecret, origin, log } = settings;
  const phoneproof = createPhoneproof({ baseUrl: apiUrl, apiKey, timeoutMs: 10_000 });
  const attempts = new Map<string, Attempt>();
  const file = (name: string) => readFileSync(path.join(import.meta.dirname, name));
  const assets: Readonly<Record<string, { readonly type: string; readonly body: Buffer }>> = {
    "/": { type: "text/html; charset=utf-8", body: file("page.html") },
    "/page.js": { type: "text/javascript; charset=utf-8", body: file("page.js") },
  };

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams } = new URL(request.url ?? "/", origin);
    const asset = assets[pathname];
    if (request.method === "GET" && asset) send(response, 200, asset.body, asset.type);
    else if (request.method === "POST" && pathname === "/attempts") await begin(request, response);
    else if (request.method === "GET" && pathname === "/attempts/mine") await confirm(request, response);
    else if (request.method === "GET" && pathname === "/back")
      await comeBack(request, response, searchParams);
    else if (request.method === "POST" && pathname === "/webhook" && webhookSecret !== null)
      await takeWebhook(request, response, webhookSecret);
    else send(response, 404, "Not found");
  }

  /** Creates a verification, unless one is pending. The page opens its window, as a popup or in place of itself. */
  async function begin(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // Otherwise a form on another site would replace the person's session, and use up calls. Only browsers send the header.
    if ((request.headers.origin ?? origin) !== origin) return send(response, 403, `Begin at ${origin}`);
    const body = (await bodyOf(request)).toString("utf8");
    let style: unknown;
    try {
      ({ style } = JSON.parse(body));
    } catch {
      return send(response, 400, "The body must be a JSON object");
    }
    const isPopup = style === "popup";
    const before = attemptOf(request);
    // Two tabs have one session: another attempt would replace the one whose window the person may be looking at. Its secret
    // changes all the same: the stranger who has put a session into this browser does not get the result.
    const goesOn =
      before?.isPopup === isPopup &&
      (await read(before))?.status === "pending" &&
      attempts.delete(sessionOf(request));
    const attempt = goesOn ? before : await createAttempt(isPopup);
    const session = randomUUID();
    attempts.set(session, attempt);
    response.setHeader("set-cookie", `session=${session}; HttpOnly; SameSite=Lax; Path=/`);
    const { verificationUrl, verificationId, state } = attempt;
    sendJson(response, 200, { verification_url: verificationUrl, verification_id: verificationId, state });
  }

  async function createAttempt(isPopup: boolean): Promise<Attempt> {
    const state = randomUUID();
    const created = await phoneproof.create({
      // Not the session's secret: whoever has the window's URL can read this.
      client_reference: `attempt-${randomUUID()}`,
      state,
      // For a popup, too: where the browser lets none open, the window takes the page's place.
      return_url: `${origin}/back`,
      ...(isPopup && { parent_origin: origin }),
    });
    log(`created ${created.id}`);
    return {
      isPopup,
      verificationId: created.id,
      verificationUrl: created.verification_url,
      state,
      phone: null,
    };
  }

  /** Undefined if there is no attempt, or if the service has lost it, as when it was restored from a backup. */
  async function read(attempt: Attempt | undefined): Promise<Verification | undefined> {
    try {
      return attempt && (await phoneproof.read(attempt.verificationId));
    } catch (error) {
      if (error instanceof PhoneproofError && error.code === "verification_not_found") return undefined;
      throw error;
    }
  }

  /**
   * A message from the window or a returning browser only triggers this check: only the service's answer to the server counts.
   */
  async function confirm(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const attempt = attemptOf(request);
    const verification = await read(attempt);
    // Not 404: each first visit would then show an error in the browser's console.
    if (attempt === undefined || verification === undefined)
      return sendJson(response, 200, { status: "none" });
    if (verification.status === "verified" && verification.state === attempt.state) {
      attempt.phone = verification.phone;
      log(`confirmed ${verification.id}: ${verification.status}`);
    }
    const { phone, verificationUrl } = attempt;
    sendJson(response, 200, { status: verification.status, phone, verification_url: verificationUrl });
  }

  /** Handles `return_url`: checks that the result belongs to this session, then the page confirms it as above. */
  async function comeBack(
    request: IncomingMessage,
    response: ServerResponse,
    query: URLSearchParams,
  ): Promise<void> {
    const attempt = attemptOf(request);
    if (attempt === undefined || query.get("state") !== attempt.state) {
      return send(response, 400, "This result belongs to another session");
    }
    response.writeHead(303, { location: "/#returned" }).end();
  }

  async function takeWebhook(
    request: IncomingMessage,
    response: ServerResponse,
    secret: string,
  ): Promise<void> {
    const event = await authenticEvent(request, secret);
    if (event === null) return send(response, 401, "The webhook has no valid signature");
    // The same event may arrive twice, so its processing must be idempotent.
    for (const attempt of attempts.values()) {
      if (attempt.verificationId === event.data.id && event.type === "verification.verified") {
        attempt.phone = event.data.phone;
      }
    }
    log(`webhook ${event.type} for ${event.data.id}`);
    response.writeHead(204).end();
  }

  /** Null if the request is not from phoneproof. */
  async function authenticEvent(request: IncomingMessage, secret: string): Promise<WebhookEvent | null> {
    const body = await bodyOf(request);
    try {
      return await verifyWebhook(body, request.headers, secret);
    } catch (error) {
      if (error instanceof PhoneproofError) return null;
      throw error;
    }
  }

  function attemptOf(request: IncomingMessage): Attempt | undefined {
    return attempts.get(sessionOf(request));
  }

  return (request, response) => {
    answer(request, response).catch((error: Error) => {
      log(error.message);
      if (response.headersSent) response.destroy();
      else send(response, 502, "The request could not be completed");
    });
  };
}

function sessionOf({ headers }: IncomingMessage): string {
  return /(?:^|;\s*)session=([\w-]+)/.exec(headers.cookie ?? "")?.[1] ?? "";
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > bodyLimitBytes) throw new Error("the request body is larger than 64 KiB");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function send(response: ServerResponse, status: number, body: string | Buffer, type = "text/plain"): void {
  response.writeHead(status, { "content-type": type, "cache-control": "no-store" }).end(body);
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  send(response, status, JSON.stringify(body), "application/json");
}
