/**
 * The verification window over HTTP: the page, its event stream, the status for windows that poll, and in the test environment
 * the simulated phone. A plugin of the gateway's server, in its own scope.
 */

import { create } from "@bufbuild/protobuf";
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { clientAddress } from "../admission/client-address.ts";
import type { WindowLimits } from "../admission/window-limits.ts";
import type { VerificationWindowService } from "../core/service.ts";
import { asFailure, Failure, isCutOff } from "../failures.ts";
import {
  GetVerificationWindowRequestSchema,
  SendTestMessageRequestSchema,
  type VerificationWindow,
  WatchVerificationWindowRequestSchema,
} from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { type AssetPaths, assets } from "./assets.ts";
import type { SimulatedReceipt } from "./browser/state.ts";
import { createEventStreams, type EventStreamObserver } from "./event-streams.ts";
import {
  outcomeName,
  outcomeNames,
  renderRefusal,
  renderWindow,
  simulatedReceiptText,
  type View,
} from "./page.ts";
import { windowState } from "./state.ts";
import { languageOf, membersOf, platformOf } from "./visitor.ts";

export interface WindowParts {
  readonly windows: VerificationWindowService;
  readonly limits: WindowLimits;
  /** The base URL of windows, without a trailing slash. Set once the port is known. */
  readonly publicBase: { readonly url: string };
  /** Called with each failure. */
  readonly onFault: (request: FastifyRequest, reply: FastifyReply, failure: Failure) => void;
  readonly streams: EventStreamObserver;
}

interface WindowRoute {
  Params: { token: string };
}

/**
 * A simulated message is a form of three fields; each of its text's 2,000 characters may take 12 bytes when percent-encoded.
 */
const formLimitBytes = 32 * 1024;

/** What is read of a form. It has room for sixteen thousand other fields, and anybody can send it: parsing those takes 8 ms. */
const formFields = ["from", "text", "carrier"].map((name) => new RegExp(`(?:^|&)(${name}=[^&]*)`));

/**
 * Response headers of everything under /v. The page must reach its opener by postMessage, so the opener policy is
 * `unsafe-none`; the URL contains a secret, so it must not get into referrers or caches.
 */
const headers = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
  "cross-origin-opener-policy": "unsafe-none",
  "cross-origin-resource-policy": "same-origin",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
  "permissions-policy": "camera=(), geolocation=(), microphone=()",
  "x-robots-tag": "noindex",
  "cache-control": "no-store",
};

export function verificationWindow({ windows, limits, publicBase, onFault, streams: observer }: WindowParts) {
  const streams = createEventStreams(observer);

  /** Absolute paths, which work for a page at any URL and for a service under any prefix. */
  function assetPaths(): AssetPaths {
    const prefix = `${new URL(publicBase.url).pathname.replace(/\/+$/, "")}/v/`;
    const { style, script, icon } = assets.paths;
    return { style: prefix + style, script: prefix + script, icon: prefix + icon };
  }

  async function read(request: FastifyRequest): Promise<VerificationWindow> {
    const { token } = request.params as WindowRoute["Params"];
    await limits.take(clientAddress(request), token);
    const message = create(GetVerificationWindowRequestSchema, { windowToken: token });
    const { window } = await opening(request, windows.getVerificationWindow(message));
    if (window === undefined) throw new Error("the core answered without a window");
    return window;
  }

  /** Waits for what the request's token gives access to. If that is nothing, the token may have been a guess and is counted. */
  async function opening<T>(request: FastifyRequest, answer: Promise<T>): Promise<T> {
    const { token } = request.params as WindowRoute["Params"];
    try {
      const opened = await answer;
      limits.opened(token);
      return opened;
    } catch (thrown) {
      if (thrown instanceof Failure && thrown.status === 404) {
        await limits.takeMiss(clientAddress(request), token);
      }
      throw thrown;
    }
  }

  function refuse(request: FastifyRequest, reply: FastifyReply, thrown: unknown): void {
    const failure = refusalOf(thrown, request);
    request.failure = failure;
    onFault(request, reply, failure);
    if (failure.retryAfterSeconds !== undefined) reply.header("retry-after", failure.retryAfterSeconds);
    const kind = failure.status === 429 ? "tooMany" : failure.status === 503 ? "unavailable" : "notFound";
    reply.code(kind === "notFound" ? 404 : failure.status);
    if (wantsJson(request)) {
      const message = kind === "notFound" ? notFoundText : failure.message;
      reply.send({ error: { code: failure.code, message, request_id: request.id } });
      return;
    }
    // The simulated phone's form has an address below the window's.
    const { token = "" } = request.params as Partial<WindowRoute["Params"]>;
    const windowPath = request.method === "POST" ? `../${encodeURIComponent(token)}` : "";
    reply
      .type("text/html; charset=utf-8")
      .send(renderRefusal(kind, viewOf(request), assetPaths(), windowPath));
  }

  return async (scope: FastifyInstance): Promise<void> => {
    scope.addHook("onRequest", async (_request, reply) => {
      reply.headers(headers);
    });
    scope.addHook("preClose", (done) => {
      streams.close();
      done();
    });
    scope.setErrorHandler((error, request, reply) => refuse(request, reply, error));
    scope.setNotFoundHandler((request, reply) => refuse(request, reply, new Failure("not_found")));
    scope.addContentTypeParser(
      "application/x-www-form-urlencoded",
      { parseAs: "string", bodyLimit: formLimitBytes },
      (_request, body, done) => {
        const read = formFields.map((field) => field.exec(body as string)?.[1] ?? "");
        done(null, new URLSearchParams(read.join("&")));
      },
    );

    const withHead = { exposeHeadRoute: true };

    scope.get<{ Params: { file: string } }>("/assets/:file", withHead, (request, reply) =>
      sendAsset(request.params.file, request, reply),
    );

    // Pasted links may end in a slash.
    scope.get<WindowRoute>("/:token/", withHead, async (request, reply) =>
      reply.redirect(
        `${publicBase.url}/v/${encodeURIComponent(request.params.token)}${/\?.*$/.exec(request.url)?.[0] ?? ""}`,
        308,
      ),
    );

    scope.get<WindowRoute>("/:token", withHead, async (request, reply) => {
      const window = await read(request);
      const { token } = request.params;
      const address = `${publicBase.url}/v/${token}`;
      reply.type("text/html; charset=utf-8");
      const paths = assetPaths();
      reply.header("link", `<${paths.style}>; rel=preload; as=style`);
      reply.header("vary", "Accept-Language, User-Agent");
      return renderWindow({ window, token, address, view: viewOf(request), assets: paths });
    });

    scope.get<WindowRoute>("/:token/status", withHead, async (request) => windowState(await read(request)));

    scope.get<WindowRoute>("/:token/events", { config: { isStream: true } }, async (request, reply) => {
      const { token } = request.params;
      await limits.take(clientAddress(request), token);
      const message = create(WatchVerificationWindowRequestSchema, { windowToken: token });
      const watching = new AbortController();
      const changes = windows.watchVerificationWindow(message, watching.signal)[Symbol.asyncIterator]();
      // Refusals are answered before the stream begins: a client that is refused polls instead.
      let next = await opening(request, changes.next());
      const projectId = next.done === true ? "" : (next.value.window?.projectId ?? "");
      const stream = streams.open(
        reply.raw,
        { token, projectId },
        {
          ...headers,
          "cache-control": "no-store, no-transform",
          "x-accel-buffering": "no",
          "x-request-id": request.id,
        },
      );
      if (stream === null) {
        await changes.return?.();
        if (reply.raw.destroyed) return void reply.hijack();
        throw streams.isClosed
          ? new Failure("service_unavailable")
          : new Failure("rate_limited", { retryAfterSeconds: 10 });
      }
      reply.hijack();
      stream.signal.addEventListener("abort", () => watching.abort(), { once: true });
      try {
        for (; next.done !== true; next = await changes.next()) {
          const { window } = next.value;
          if (window === undefined || stream.signal.aborted) continue;
          stream.send("state", windowState(window));
        }
      } catch (thrown) {
        // The stream ends, and the window reconnects.
        onFault(request, reply, asFailure(thrown));
      } finally {
        stream.end();
        // A watch whose changes nobody takes any more would keep its place.
        await changes.return?.();
      }
    });

    scope.post<WindowRoute & { Body: URLSearchParams | undefined }>(
      "/:token/messages",
      async (request, reply) => {
        const { token } = request.params;
        await limits.take(clientAddress(request), token);
        await limits.takeMessage(token);
        const field = (name: string) => request.body?.get(name) ?? "";
        const message = create(SendTestMessageRequestSchema, {
          windowToken: token,
          from: field("from"),
          // Forms submit line ends as CRLF.
          text: field("text").replaceAll("\r\n", "\n"),
          carrier: field("carrier"),
        });
        const origin = { requestId: request.id, address: clientAddress(request) };
        const sent = await opening(request, windows.sendTestMessage(message, origin));
        const outcome = outcomeName(sent.outcome);
        const view = viewOf(request);
        if (wantsJson(request)) {
          return {
            outcome,
            message: simulatedReceiptText({ outcome, duplicate: sent.duplicate }, view.language),
          } satisfies SimulatedReceipt;
        }
        const query = new URLSearchParams(request.query as Record<string, string>);
        query.set("played", outcome);
        if (sent.duplicate) query.set("duplicate", "yes");
        return reply.redirect(`../${token}?${query}`, 303);
      },
    );
  };
}

/**
 * Whether a program asks: the window's script, or a merchant's test that sends the panel's form. Many HTTP libraries list JSON among
 * other types; a browser that opens a page or submits a form lists HTML.
 */
function wantsJson({ headers }: FastifyRequest): boolean {
  const types = membersOf(headers.accept).map(([type]) => type);
  return types.includes("application/json") && !types.includes("text/html");
}

const notFoundText = `Not found: no window has this address; or, for a message, it is not one of the test environment, or the body is no form (application/x-www-form-urlencoded) of at most ${formLimitBytes / 1024} KiB.`;

/** A malformed form is answered like a wrong URL. */
function refusalOf(thrown: unknown, { raw }: FastifyRequest): Failure {
  if (thrown instanceof Failure) return thrown;
  const code = (thrown as { readonly code?: unknown }).code;
  const isFastifys = typeof code === "string" && code.startsWith("FST_ERR");
  return isFastifys || isCutOff(thrown, raw) ? new Failure("not_found") : asFailure(thrown);
}

function viewOf(request: FastifyRequest): View {
  const { via, started, lang, played, duplicate } = request.query as Readonly<Record<string, unknown>>;
  const chosen = lang === "ko" || lang === "en" ? lang : undefined;
  const outcome = outcomeNames.find((name) => name === played);
  return {
    language: chosen ?? languageOf(request.headers["accept-language"]),
    languageChosen: chosen !== undefined,
    platform: platformOf(request.headers["user-agent"]),
    viaQr: via === "qr",
    started: started === "yes",
    simulatedReceipt: outcome === undefined ? null : { outcome, duplicate: duplicate === "yes" },
  };
}

/** A name with another version's digest is answered with the current content: during a rollout, both versions are requested. */
async function sendAsset(file: string, request: FastifyRequest, reply: FastifyReply): Promise<Buffer> {
  const exact = assets.byName.get(file);
  const asset = exact ?? otherVersion(file);
  if (asset === undefined) throw new Failure("not_found");
  const accepted = request.headers["accept-encoding"] ?? "";
  reply.type(asset.type).header("vary", "Accept-Encoding");
  if (exact) reply.header("cache-control", "public, max-age=31536000, immutable");
  const encoding = takes("br", accepted) ? "br" : takes("gzip", accepted) ? "gzip" : undefined;
  if (encoding === undefined) return asset.plain;
  reply.header("content-encoding", encoding);
  return encoding === "br" ? asset.brotli() : asset.gzip();
}

/** As Accept-Encoding says (RFC 9110, 12.5.3): listed, and not with weight 0. */
function takes(coding: string, accepted: string | readonly string[]): boolean {
  return membersOf(String(accepted)).some(
    ([name, ...parameters]) =>
      name === coding && !parameters.some((parameter) => /^q=0(\.0*)?$/.test(parameter)),
  );
}

function otherVersion(file: string) {
  const versioned = /-[0-9a-f]{16}(?=\.\w+$)/;
  if (!versioned.test(file)) return undefined;
  const name = file.replace(versioned, "");
  for (const [candidate, asset] of assets.byName) if (candidate.replace(versioned, "") === name) return asset;
  return undefined;
}
