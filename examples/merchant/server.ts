/**
 * A merchant's server, as small as it can be and with nothing left out: it creates a verification, hands its window to
 * the page, confirms the result by reading it, and takes the webhook. No package is needed; replace the map by a table.
 */

import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import path from "node:path";

export interface MerchantSettings {
  /** Where phoneproof is. */
  readonly apiUrl: string;
  /** The project's secret key. It never leaves this server. */
  readonly apiKey: string;
  /** `whsec_…`; null where no webhook is set. */
  readonly webhookSecret: string | null;
  /** Of this server, as registered for the project. */
  readonly origin: string;
  readonly log: (line: string) => void;
}

/** What the merchant knows of one person's attempt, in that person's session. */
interface Attempt {
  readonly verificationId: string;
  readonly state: string;
  phone: string | null;
}

/** Of an answer, what is used here. */
interface Verification {
  readonly id: string;
  readonly status: string;
  readonly phone: string | null;
  readonly state: string;
  readonly verification_url: string;
}

const bodyLimitBytes = 64 * 1024;

export function createMerchantServer(settings: MerchantSettings): Server {
  const { apiUrl, apiKey, webhookSecret, origin, log } = settings;
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
    else if (request.method === "POST" && pathname === "/webhook") await takeWebhook(request, response);
    else send(response, 404, "Not found");
  }

  /** Creates a verification; the page opens its window, as a popup or in its own place. */
  async function begin(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { style } = JSON.parse(await bodyOf(request)) as { readonly style?: unknown };
    const session = randomUUID();
    const state = randomUUID();
    const created = await call("POST", "/v1/verifications", {
      client_reference: `session-${session}`,
      state,
      ...(style === "popup" ? { parent_origin: origin } : { return_url: `${origin}/back` }),
    });
    attempts.set(session, { verificationId: created.id, state, phone: null });
    log(`created ${created.id}`);
    response.setHeader("set-cookie", `session=${session}; HttpOnly; SameSite=Lax; Path=/`);
    sendJson(response, 200, {
      verification_url: created.verification_url,
      verification_id: created.id,
      state,
    });
  }

  /** What a message or a returning browser claims is only a reason to look: the answer to the server is what counts. */
  async function confirm(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const attempt = attemptOf(request);
    if (attempt === undefined) return send(response, 404, "No attempt in this session");
    const verification = await call("GET", `/v1/verifications/${attempt.verificationId}`);
    if (verification.status === "verified" && verification.state === attempt.state) {
      attempt.phone = verification.phone;
      log(`confirmed ${verification.id}: ${verification.status}`);
    }
    sendJson(response, 200, { status: verification.status, phone: attempt.phone });
  }

  /** `return_url`: the same look, after checking that the result belongs to this session. */
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

  async function takeWebhook(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await bodyOf(request);
    if (webhookSecret === null || !isSigned(request, body, webhookSecret))
      return send(response, 401, "Not signed");
    const event = JSON.parse(body) as { readonly type: string; readonly data: Verification };
    // The same event can come twice: what is done with it must not be done twice.
    for (const attempt of attempts.values()) {
      if (attempt.verificationId === event.data.id && event.type === "verification.verified") {
        attempt.phone = event.data.phone;
      }
    }
    log(`webhook ${event.type} for ${event.data.id}`);
    response.writeHead(204).end();
  }

  async function call(method: string, route: string, body?: object): Promise<Verification> {
    const response = await fetch(`${apiUrl}${route}`, {
      method,
      headers: {
        authorization: `Bearer ${apiKey}`,
        ...(body && { "content-type": "application/json", "idempotency-key": randomUUID() }),
      },
      body: body ? JSON.stringify(body) : null,
      signal: AbortSignal.timeout(10_000),
    });
    if (!response.ok)
      throw new Error(`${method} ${route} answered ${response.status}: ${await response.text()}`);
    return (await response.json()) as Verification;
  }

  function attemptOf({ headers }: IncomingMessage): Attempt | undefined {
    const session = /(?:^|;\s*)session=([\w-]+)/.exec(headers.cookie ?? "")?.[1];
    return attempts.get(session ?? "");
  }

  return createServer((request, response) => {
    answer(request, response).catch((error: Error) => {
      log(error.message);
      if (response.headersSent) response.destroy();
      else send(response, 502, "phoneproof could not be asked");
    });
  });
}

const toleranceSeconds = 300;

/** Standard Webhooks by hand: any of the signatures, over id, timestamp and the body as it came, not long ago. */
function isSigned({ headers }: IncomingMessage, body: string, secret: string): boolean {
  const { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures } = headers;
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > toleranceSeconds) return false;
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.${body}`).digest();
  return String(signatures)
    .split(" ")
    .map((signature) => Buffer.from(signature.replace(/^v1,/, ""), "base64"))
    .some((given) => given.length === expected.length && timingSafeEqual(given, expected));
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > bodyLimitBytes) throw new Error("a body beyond 64 KiB");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function send(response: ServerResponse, status: number, body: string | Buffer, type = "text/plain"): void {
  response.writeHead(status, { "content-type": type, "cache-control": "no-store" }).end(body);
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  send(response, status, JSON.stringify(body), "application/json");
}
