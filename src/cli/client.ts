/** A gRPC client whose paths and encodings come from the generated service descriptors. */

import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { checkServerIdentity } from "node:tls";
import {
  create,
  type DescMessage,
  type DescMethodBiDiStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { AnySchema, anyUnpack } from "@bufbuild/protobuf/wkt";
import {
  type ChannelCredentials,
  Client,
  type ClientDuplexStream,
  connectivityState,
  credentials,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { type ErrorDetail, ErrorDetailSchema } from "../gen/proto/phoneproof/v1/error_pb.ts";
import { howToSetAddress, isThisMachine, type ServiceAddress, type Token } from "./address.ts";
import { CliError, type CliErrorDetails, unreachable, wrongUsage } from "./cli-error.ts";
import { forgetProxyFault, proxyFault, proxyVariable } from "./grpc-log.ts";

/** Deadline of a unary call, and of the first message of a watch. */
export const unaryDeadlineMs = 10_000;

export class ServiceClient {
  readonly address: ServiceAddress;
  readonly #token: Token;
  #client: Client;

  constructor(address: ServiceAddress, token: Token) {
    this.address = address;
    this.#token = token;
    this.#client = dial(address);
  }

  /** A message authentication code of the text, HMAC-SHA256 in hexadecimal with the token as its key. */
  readonly macOf = (text: string): string =>
    createHmac("sha256", this.#token.secret).update(text).digest("hex");

  async call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    { deadlineMs = unaryDeadlineMs }: { readonly deadlineMs?: number } = {},
  ): Promise<MessageShape<O>> {
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(
        path(method),
        encoder(method.input),
        decoder(method.output),
        create(method.input, request),
        this.#metadata(),
        { deadline: Date.now() + deadlineMs },
        (error, response) => {
          if (error !== null) reject(this.cliErrorOf(error, deadlineMs));
          else if (response === undefined) reject(unreachable(`${this.address.shown} sent no answer`));
          else resolve(response);
        },
      );
    });
  }

  /**
   * Ends after the server's last message; an abort makes it throw the signal's reason. The first message, which carries the
   * current state, must arrive within a unary call's deadline; later messages may take any time.
   */
  async *watch<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    signal: AbortSignal,
  ): AsyncGenerator<MessageShape<O>> {
    const call = this.#client.makeServerStreamRequest(
      path(method),
      encoder(method.input),
      decoder(method.output),
      create(method.input, request),
      this.#metadata(),
    );
    // An error event that arrives when the loop below has stopped reading would otherwise be uncaught.
    call.on("error", () => {});
    const cancel = () => call.cancel();
    signal.addEventListener("abort", cancel, { once: true });
    const deadline = setTimeout(
      () => call.call?.cancelWithStatus(status.DEADLINE_EXCEEDED, "no first answer"),
      unaryDeadlineMs,
    );
    try {
      for await (const response of call) {
        clearTimeout(deadline);
        yield response as MessageShape<O>;
      }
    } catch (error) {
      signal.throwIfAborted();
      throw isServiceError(error) ? this.cliErrorOf(error) : error;
    } finally {
      clearTimeout(deadline);
      signal.removeEventListener("abort", cancel);
      call.cancel();
    }
  }

  stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>,
    options: { deadlineMs?: number } = {},
  ): ClientDuplexStream<MessageShape<I>, MessageShape<O>> {
    const call = this.#client.makeBidiStreamRequest(
      path(method),
      encoder(method.input),
      decoder(method.output),
      this.#metadata(),
      options.deadlineMs === undefined ? {} : { deadline: Date.now() + options.deadlineMs },
    );
    call.on("error", () => {});
    return call;
  }

  /**
   * Resolves to true once the peer has spoken HTTP/2 on a connection, to false on timeout or once the client is closed. Only
   * observes the channel: `waitForReady` would make a client that is closed meanwhile connect again.
   */
  untilConnected(milliseconds: number): Promise<boolean> {
    const channel = this.#client.getChannel();
    const deadline = Date.now() + milliseconds;
    return new Promise((resolve) => {
      const check = (timeout?: Error): void => {
        const state = channel.getConnectivityState(false);
        if (timeout || state === connectivityState.SHUTDOWN) resolve(false);
        else if (state === connectivityState.READY) resolve(true);
        else channel.watchConnectivityState(state, deadline, check);
      };
      check();
    });
  }

  /**
   * Makes later calls use a new connection. Without this, grpc-js waits indefinitely for a connection that was accepted but not
   * answered, and queues later calls behind it.
   */
  redial(): void {
    this.#client.close();
    this.#client = dial(this.address);
  }

  close(): void {
    this.#client.close();
  }

  /**
   * Converts the error of a failed call: a refusal if the service answered, otherwise the service counts as unreachable.
   * `deadlineMs` is the deadline that the call had.
   */
  cliErrorOf(error: ServiceError, deadlineMs = unaryDeadlineMs): CliError {
    const detail = errorDetail(error);
    if (detail !== undefined) {
      let after = detail.retryAfterSeconds > 0 ? ` Try again in ${detail.retryAfterSeconds} s.` : "";
      // The user may have typed neither.
      if (detail.code === "invalid_api_key" || detail.code === "insufficient_scope") {
        after += ` It is the one in ${this.#token.source}, sent to ${this.address.shown}.`;
      }
      return new CliError(1, detail.code, `${messageOf(error)}${after}`, {
        requestId: detail.requestId,
        fields: detail.fields,
        cause: error,
      });
    }
    const { shown } = this.address;
    const reasonText = reason(error);
    const details = { advice: howToSetAddress, cause: error };
    const requestId = requestIdOf(error);
    if (error.code === status.UNIMPLEMENTED && requestId !== undefined) {
      return this.olderService("does not know the call", { requestId, cause: error });
    }
    switch (error.code) {
      case status.UNAVAILABLE: {
        const fault = proxyFault();
        const variable = proxyVariable();
        if (fault !== undefined && variable !== undefined) {
          const host = this.address.host.replace(/^\[|\]$/g, "");
          // If the variable has no proxy that it can use, grpc-js connects directly, which fails for a reason of its own.
          const exceptions = process.env.no_grpc_proxy ? "no_grpc_proxy" : "no_proxy";
          const reasons = reasonText === "undefined" ? fault : `${reasonText}; ${fault}`;
          return unreachable(`no service answers at ${shown} (${reasons})`, {
            advice: `check the proxy in ${variable}, or add ${host} to ${exceptions}`,
            cause: error,
          });
        }
        const advice = connectionAdvice(error, this.address);
        if (advice === undefined)
          return unreachable(`no service answers at ${shown} (${reasonText})`, details);
        return unreachable(`something listens at ${shown}, but the connection fails (${reasonText})`, {
          advice,
          cause: error,
        });
      }
      case status.DEADLINE_EXCEEDED:
        return this.unanswered(deadlineMs, error);
      case status.UNAUTHENTICATED:
      case status.PERMISSION_DENIED:
      case status.RESOURCE_EXHAUSTED:
      case status.INVALID_ARGUMENT:
      case status.NOT_FOUND:
      case status.FAILED_PRECONDITION:
        return new CliError(1, (status[error.code] ?? "unknown").toLowerCase(), messageOf(error), {
          cause: error,
        });
      default:
        return unreachable(`the server at ${shown} is not phoneproof (${reasonText})`, details);
    }
  }

  /** That the service is an older version, and what it therefore did not do. */
  olderService(what: string, details?: CliErrorDetails): CliError {
    const message = `the service at ${this.address.shown} is an older version than this command, and ${what}: upgrade it`;
    return new CliError(1, "unimplemented", message, details);
  }

  /** The failure of a service that did not answer within `milliseconds`. */
  unanswered(milliseconds: number, cause?: unknown): CliError {
    return unreachable(
      `the service at ${this.address.shown} did not answer within ${milliseconds / 1000} s`,
      {
        advice: howToSetAddress,
        cause,
      },
    );
  }

  #metadata(): Metadata {
    const metadata = new Metadata();
    metadata.set("authorization", `Bearer ${this.#token.secret}`);
    return metadata;
  }
}

function dial(address: ServiceAddress): Client {
  forgetProxyFault();
  return new Client(`dns:${address.host}:${address.port}`, channelCredentials(address), {
    // No limit: lists that are not paged arrive in one message.
    "grpc.max_receive_message_length": -1,
    // Shorter than the library's own backoff: callers pause before they call again.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    "grpc.service_config_disable_resolution": 1,
    // Detects a stream whose network connection has silently vanished, which would otherwise wait forever. On a slow network a
    // ping waits behind what was sent before.
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 20_000,
    // A proxy configured in the environment cannot reach this machine's loopback.
    ...(isThisMachine(address) ? { "grpc.enable_http_proxy": 0 } : {}),
    // A TLS server name cannot be an IP address. Without this, grpc-js sends one all the same, which Node from 26 on refuses.
    ...(ipOf(address) !== undefined ? { "grpc.ssl_target_name_override": "ip-address.invalid" } : {}),
  });
}

/** The address's host, if it is an IP address. */
function ipOf({ host }: ServiceAddress): string | undefined {
  const ip = host.replace(/[[\]]/g, "");
  return isIP(ip) === 0 ? undefined : ip;
}

/**
 * TLS for https: PHONEPROOF_TLS_CA names a private certificate authority, PHONEPROOF_TLS_CERT and _KEY a client certificate.
 */
function channelCredentials(address: ServiceAddress): ChannelCredentials {
  if (!address.tls) return credentials.createInsecure();
  const [authority, key, certificate] = [
    "PHONEPROOF_TLS_CA",
    "PHONEPROOF_TLS_KEY",
    "PHONEPROOF_TLS_CERT",
  ].map(fileOf);
  try {
    const ip = ipOf(address);
    return credentials.createSsl(authority ?? null, key ?? null, certificate ?? null, {
      // The certificate must be for the address itself, whatever server name is sent.
      checkServerIdentity: (name, shown) => checkServerIdentity(ip ?? name, shown),
    });
  } catch (error) {
    const reasonText = error instanceof Error ? error.message : String(error);
    throw wrongUsage(
      `the files in PHONEPROOF_TLS_CA, PHONEPROOF_TLS_CERT and PHONEPROOF_TLS_KEY cannot be used: ${reasonText}`,
    );
  }
}

function fileOf(setting: string): Buffer | undefined {
  const file = process.env[setting];
  if (!file) return undefined;
  let content: Buffer;
  try {
    content = readFileSync(file);
  } catch (error) {
    throw wrongUsage(`${setting}: cannot read '${file}' (${(error as NodeJS.ErrnoException).code})`);
  }
  // Node ignores a CA file that holds no certificate, and the error would then blame the service's certificate.
  if (!content.includes("-----BEGIN ")) throw wrongUsage(`${setting}: '${file}' is not PEM`);
  return content;
}

function path(method: { parent: { typeName: string }; name: string }): string {
  return `/${method.parent.typeName}/${method.name}`;
}

function encoder<D extends DescMessage>(schema: D) {
  return (message: MessageShape<D>): Buffer => {
    const bytes = toBinary(schema, message);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };
}

function decoder<D extends DescMessage>(schema: D) {
  return (bytes: Buffer): MessageShape<D> => fromBinary(schema, bytes);
}

export function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && "details" in error && "metadata" in error;
}

/** This service's error detail from the `google.rpc.Status` in the trailers; undefined if there is none. */
export function errorDetail(error: ServiceError): ErrorDetail | undefined {
  const [trailer] = error.metadata.get("grpc-status-details-bin");
  if (!(trailer instanceof Uint8Array)) return undefined;
  try {
    return detailsOfStatus(trailer)
      .map((any) => anyUnpack(fromBinary(AnySchema, any), ErrorDetailSchema))
      .find((detail) => detail !== undefined);
  } catch {
    // If the trailer cannot be parsed, the gRPC status alone is used.
    return undefined;
  }
}

/** The status message. grpc-js percent-decodes it with decodeURI, which leaves reserved characters encoded. */
function messageOf({ details }: ServiceError): string {
  return details.replace(/%(?:2[3-6BCF]|3[ABDF]|40)/gi, decodeURIComponent);
}

/** The encoded `Any` messages in field 3 of a `google.rpc.Status`. */
function detailsOfStatus(bytes: Uint8Array): Uint8Array[] {
  const reader = new BinaryReader(bytes);
  const details: Uint8Array[] = [];
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (field === 3) details.push(reader.bytes());
    else reader.skip(wireType, field);
  }
  return details;
}

/** The request id by which an answer without error details is known to be phoneproof's. */
function requestIdOf({ metadata }: ServiceError): string | undefined {
  // An error that grpc-js makes of its own accord may have none.
  const [value] = metadata?.get("x-request-id") ?? [];
  return typeof value === "string" && value.startsWith("req_") ? value : undefined;
}

/**
 * What to do if the port is not the gRPC port, only one side uses TLS, or a certificate is not accepted; undefined for other
 * causes. A TLS server closes a plaintext connection without an answer, which grpc-js reports as a failure to connect.
 */
function connectionAdvice(error: ServiceError, { shown, tls }: ServiceAddress): string | undefined {
  const reasonText = reason(error);
  if (reasonText === "certificate has expired") {
    return "renew the service's certificate in GRPC_TLS_CERT; the service checks for a new one every minute";
  }
  if (reasonText.startsWith("Hostname/IP does not match certificate's altnames")) {
    return "use a host name in the address that the service's certificate is for";
  }
  if (reasonText === "Protocol error") {
    return "use the service's gRPC port: 50051 unless GRPC_PORT sets another";
  }
  if (!tls) {
    return reasonText === "Failed to connect" ? `if the service uses TLS, write https://${shown}` : undefined;
  }
  if (reasonText === "TLS: wrong version number")
    return `if the service does not use TLS, write http://${shown}`;
  if (/certificate required/.test(reasonText)) {
    return "set PHONEPROOF_TLS_CERT and PHONEPROOF_TLS_KEY to a client certificate and its key";
  }
  if (/self-signed|unable to (get|verify)/.test(reasonText)) {
    return "if a private authority signed the service's certificate, set PHONEPROOF_TLS_CA to the authority's certificate";
  }
  // A server that rejects the client certificate sends a TLS alert or, if it is Node, closes the connection without an answer.
  // A connection that had been established and then broke has another cause.
  const isEnded = /^(Failed to connect|(read|write) E(CONNRESET|PIPE)|TLS: .* alert .*)$/.test(reasonText);
  if (isEnded && process.env.PHONEPROOF_TLS_CERT && error.details.startsWith("No connection established")) {
    return "the service may have rejected the certificate in PHONEPROOF_TLS_CERT: an authority in the service's GRPC_TLS_CA must have signed it";
  }
  return undefined;
}

/** The part of grpc-js's error text that is useful to a person. */
function reason(error: ServiceError): string {
  const details = messageOf(error);
  const last = /Last error: (?:Error(?: \[\w+\])?: )?(.*?)\.?(?: Resolution note:.*)?$/s
    .exec(details)?.[1]
    ?.trim();
  // OpenSSL's error format is thread:error:code:library:function:reason:file:line.
  const tls = /:error:[0-9A-F]+:[^:]*:[^:]*:([^:]+):/.exec(last ?? "")?.[1];
  if (tls !== undefined) return `TLS: ${tls}`;
  // The rest is Node's advice to programmers, or a timestamp.
  const [reasonText] = (last ?? "").split(/; | \(\d{4}-/);
  return reasonText || details || (status[error.code] ?? "no reason given");
}
