import { BlockList, isIP } from "node:net";
import { z } from "zod";
import { databaseUrl, sslModes } from "./database-url.ts";
import { SettingError } from "./setting-errors.ts";
import { type GrpcTls, readGrpcTls, readPem, refuseUnusableTls, tryTls } from "./tls-files.ts";

/** The settings of a process, parsed once from its environment. */
export interface Config {
  readonly httpHost: string;
  readonly httpPort: number;
  readonly grpcHost: string;
  readonly grpcPort: number;
  readonly grpcTls: GrpcTls | null;
  readonly opsHost: string;
  readonly opsPort: number;
  readonly roles: { readonly api: boolean; readonly worker: boolean };
  readonly trustedProxies: readonly string[];
  /** Null: an embedded Postgres under `dataDir`. */
  readonly databaseUrl: string | null;
  readonly databasePoolSize: number;
  /**
   * URL of the one LISTEN connection, for a `databaseUrl` that leads to a pooler which shares sessions; null: the same
   * as `databaseUrl`.
   */
  readonly noticesUrl: string | null;
  readonly databasePreparedStatements: boolean;
  /** Null: every process has rate limits of its own. */
  readonly redisUrl: string | null;
  readonly dataDir: string;
  readonly adminToken: string | null;
  /** Without a trailing slash; null: derived from the port in use. */
  readonly publicBaseUrl: string | null;
  /** Allows webhook URLs with http and with any address. */
  readonly webhookAllowPrivate: boolean;
  /** How long a stopping process still answers clients and load balancers that have not noticed yet. */
  readonly drainSeconds: number;
  readonly retention: {
    readonly unmatchedDays: number;
    readonly finishedDays: number;
    readonly statisticsDays: number;
  };
  readonly logLevel: string;
  /** Null: nothing is traced. */
  readonly tracing: {
    /** One of OpenTelemetry's names. */
    readonly sampler: string;
    readonly samplerRatio: number;
    readonly scheduleDelayMs: number;
  } | null;
}

const logLevels = ["fatal", "error", "warn", "info", "debug", "trace", "silent"] as const;

const otlpProtocol = z.enum(["http/protobuf"], "must be http/protobuf: no other protocol is supported");

const otlpCompression = z.enum(["none", "gzip"], "must be none or gzip");

const otlpTimeout = z.string().regex(/^0*[1-9]\d{0,6}$/, "must be a whole number of milliseconds above 0");

const samplers = [
  "always_on",
  "always_off",
  "traceidratio",
  "parentbased_always_on",
  "parentbased_always_off",
  "parentbased_traceidratio",
] as const;

const endpointUrl = z
  .string()
  .refine(
    (text) => /^https?:$/.test(URL.parse(text)?.protocol ?? ""),
    "must be an http(s) URL of a collector",
  );

/** `what` names the quantity with its unit. */
function wholeNumber(what: string, least: number, most: number) {
  const rangeMessage = `must be ${what} from ${least} to ${most}`;
  return z
    .string()
    .regex(new RegExp(`^\\d{1,${String(most).length}}$`), rangeMessage)
    .transform(Number)
    .refine((value) => value >= least && value <= most, rangeMessage);
}

const port = wholeNumber("a port", 0, 65_535);

const days = (least: number) => wholeNumber("a whole number of days", least, 9_999);

const host = z.string().regex(/^[A-Za-z0-9.:_-]+$/, "must be an address or a host name to listen on");

const flag = z.enum(["true", "false"], "must be true or false").transform((value) => value === "true");

const roles = z
  .string()
  .transform((text) => text.split(",").map((role) => role.trim()))
  .refine(
    (names) => names.every((name) => name === "api" || name === "worker"),
    "must be api, worker, or both separated by a comma",
  )
  .transform((names) => ({ api: names.includes("api"), worker: names.includes("worker") }));

const proxies = z
  .string()
  .transform((text) =>
    text
      .split(",")
      .map((proxy) => proxy.trim())
      .filter((proxy) => proxy !== ""),
  )
  .refine(
    (list) => list.every(isAddressRange),
    "must be IP addresses or CIDR ranges separated by commas, none of which is everybody's (/0, ::ffff:0:0/96)",
  )
  .refine(
    (list) => !list.some((proxy) => /%.*[^A-Za-z0-9/]/.test(proxy)),
    "must not contain a zone with other characters than letters and digits, such as %br-lan: no address in such a zone can be trusted",
  );

const redisUrl = z.string().refine((text) => {
  const { protocol = "", hostname = "", pathname = "", username = "", password = "" } = URL.parse(text) ?? {};
  const isWhole = /^rediss?:$/.test(protocol) && hostname !== "" && /^\/?\d*$/.test(pathname);
  return isWhole && isEscaped(username) && isEscaped(password);
}, "must be a URL such as redis://user:password@host:6379/0, with %25 for a % in user or password");

/** A URL to which a path can be appended as text. `URL` accepts more, which other programs parse differently. */
const publicBaseUrl = z
  .string()
  .refine(
    (text) => URL.canParse(text) && /^https?:\/\/[^\s/\\?#@]+(\/[^\s\\?#]*)?$/i.test(text),
    "must be an absolute http(s) URL without credentials, query or fragment, such as https://verify.example.com",
  )
  .transform((text) => text.replace(/\/+$/, ""));

/** The syntax of a Bearer credential: no client could send any other token. */
export const adminToken = z
  .string()
  .regex(/^[A-Za-z0-9._~+/-]+=*$/, "must consist of A-Z a-z 0-9 . _ ~ + / -, with = only at the end");

function isEscaped(text: string): boolean {
  try {
    decodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}

const environmentSchema = z.object({
  PORT: port.default(8080),
  GRPC_PORT: port.default(50_051),
  OPS_PORT: port.default(9464),
  HOST: host.default("127.0.0.1"),
  GRPC_HOST: host.default("127.0.0.1"),
  OPS_HOST: host.default("127.0.0.1"),
  GRPC_TLS_CERT: z.string().optional(),
  GRPC_TLS_KEY: z.string().optional(),
  GRPC_TLS_CA: z.string().optional(),
  GRPC_ALLOW_PLAINTEXT: flag.default(false),
  ROLES: roles.default({ api: true, worker: true }),
  TRUSTED_PROXIES: proxies.default([]),
  DATABASE_URL: databaseUrl.optional(),
  DATABASE_POOL_SIZE: wholeNumber("a whole number", 4, 200).default(16),
  DATABASE_NOTICES_URL: databaseUrl.optional(),
  DATABASE_PREPARED_STATEMENTS: flag.default(true),
  // Read only to be refused: inherited unnoticed from a shell, it could hold `synchronous_commit=off`, which loses
  // acknowledged writes.
  PGOPTIONS: z.string().optional(),
  PGSSLMODE: z.string().optional(),
  REDIS_URL: redisUrl.optional(),
  DATA_DIR: z.string().default(".data"),
  PHONEPROOF_ADMIN_TOKEN: adminToken.optional(),
  PUBLIC_BASE_URL: publicBaseUrl.optional(),
  WEBHOOK_ALLOW_PRIVATE: flag.default(false),
  DRAIN_SECONDS: wholeNumber("a whole number of seconds", 0, 60).default(3),
  RETENTION_UNMATCHED_DAYS: days(1).default(7),
  RETENTION_FINISHED_DAYS: days(1).default(90),
  // At least the longest period that one query may cover, which is longer than the one silence detection uses.
  RETENTION_STATISTICS_DAYS: days(32).default(400),
  LOG_LEVEL: z.enum(logLevels, `must be one of ${logLevels.join(", ")}`).default("info"),
  // OpenTelemetry's specification makes booleans case-insensitive.
  OTEL_SDK_DISABLED: z.string().toLowerCase().pipe(flag).default(false),
  OTEL_EXPORTER_OTLP_ENDPOINT: endpointUrl.optional(),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: endpointUrl.optional(),
  OTEL_EXPORTER_OTLP_PROTOCOL: otlpProtocol.optional(),
  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: otlpProtocol.optional(),
  // The exporter itself reads the following OTEL_EXPORTER variables, and others, and ignores invalid values: these are
  // only validated here.
  OTEL_EXPORTER_OTLP_COMPRESSION: otlpCompression.optional(),
  OTEL_EXPORTER_OTLP_TRACES_COMPRESSION: otlpCompression.optional(),
  OTEL_EXPORTER_OTLP_TIMEOUT: otlpTimeout.optional(),
  OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: otlpTimeout.optional(),
  OTEL_EXPORTER_OTLP_CERTIFICATE: z.string().optional(),
  OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE: z.string().optional(),
  OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: z.string().optional(),
  OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE: z.string().optional(),
  OTEL_EXPORTER_OTLP_CLIENT_KEY: z.string().optional(),
  OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: z.string().optional(),
  OTEL_TRACES_EXPORTER: z.enum(["otlp", "none"], "must be otlp or none").default("otlp"),
  OTEL_TRACES_SAMPLER: z
    .enum(samplers, `must be one of ${samplers.join(", ")}`)
    .default("parentbased_always_on"),
  OTEL_TRACES_SAMPLER_ARG: z
    .string()
    .regex(/^(0(\.\d+)?|1(\.0+)?)$/, "must be a number from 0 to 1")
    .transform(Number)
    .default(1),
  OTEL_BSP_SCHEDULE_DELAY: wholeNumber("a whole number of milliseconds", 0, 999_999).default(5_000),
});

type Settings = z.output<typeof environmentSchema>;

/** An empty variable counts as unset, as in compose files and systemd units. */
export function parseConfig(environment: NodeJS.ProcessEnv): Config {
  const given = Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ""));
  const parsed = environmentSchema.safeParse(given);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new SettingError(`${issue?.path.join(".")} ${issue?.message}`);
  }
  const settings = parsed.data;
  const grpcTls = tlsOf(settings);
  if (grpcTls === null && !isLoopback(settings.GRPC_HOST) && !settings.GRPC_ALLOW_PLAINTEXT) {
    throw new SettingError(
      "GRPC_HOST is not a loopback address: set GRPC_TLS_CERT and GRPC_TLS_KEY, or GRPC_ALLOW_PLAINTEXT=true",
    );
  }
  const [one, other] = sharedPort(settings) ?? [];
  if (one !== undefined) throw new SettingError(`${one} and ${other} must differ`);
  if (settings.DATABASE_NOTICES_URL !== undefined && settings.DATABASE_URL === undefined) {
    throw new SettingError("DATABASE_NOTICES_URL must be set together with DATABASE_URL");
  }
  if (settings.DATABASE_URL !== undefined && settings.PGOPTIONS !== undefined) {
    throw new SettingError(
      "PGOPTIONS would change every session of the service: unset it, and put the service's own options into DATABASE_URL, as ?options=…",
    );
  }
  const { PGSSLMODE } = settings;
  const urls = [settings.DATABASE_URL, settings.DATABASE_NOTICES_URL].filter((url) => url !== undefined);
  const isLeftOpen = urls.some((url) => !new URL(url).searchParams.has("sslmode"));
  if (isLeftOpen && PGSSLMODE !== undefined && !sslModes.some((mode) => mode === PGSSLMODE)) {
    throw new SettingError(`PGSSLMODE must be one of ${sslModes.join(", ")}`);
  }
  return {
    httpHost: settings.HOST,
    httpPort: settings.PORT,
    grpcHost: settings.GRPC_HOST,
    grpcPort: settings.GRPC_PORT,
    grpcTls,
    opsHost: settings.OPS_HOST,
    opsPort: settings.OPS_PORT,
    roles: settings.ROLES,
    trustedProxies: settings.TRUSTED_PROXIES,
    databaseUrl: settings.DATABASE_URL ?? null,
    databasePoolSize: settings.DATABASE_POOL_SIZE,
    noticesUrl: settings.DATABASE_NOTICES_URL ?? null,
    databasePreparedStatements: settings.DATABASE_PREPARED_STATEMENTS,
    redisUrl: settings.REDIS_URL ?? null,
    dataDir: settings.DATA_DIR,
    adminToken: settings.PHONEPROOF_ADMIN_TOKEN ?? null,
    publicBaseUrl: settings.PUBLIC_BASE_URL ?? null,
    webhookAllowPrivate: settings.WEBHOOK_ALLOW_PRIVATE,
    // No other process takes over from one with an embedded database.
    drainSeconds: settings.DATABASE_URL === undefined ? 0 : settings.DRAIN_SECONDS,
    retention: {
      unmatchedDays: settings.RETENTION_UNMATCHED_DAYS,
      finishedDays: settings.RETENTION_FINISHED_DAYS,
      statisticsDays: settings.RETENTION_STATISTICS_DAYS,
    },
    logLevel: settings.LOG_LEVEL,
    tracing: tracingOf(settings),
  };
}

/** Finds two settings of this process that name the same port. Port 0 never conflicts: each use of it is another port. */
function sharedPort(settings: Settings): [string, string] | undefined {
  const { HOST, PORT, GRPC_HOST, GRPC_PORT, OPS_HOST, OPS_PORT, ROLES } = settings;
  const listening = [
    { name: "OPS_PORT", host: OPS_HOST, port: OPS_PORT },
    ...(ROLES.api
      ? [
          { name: "GRPC_PORT", host: GRPC_HOST, port: GRPC_PORT },
          { name: "PORT", host: HOST, port: PORT },
        ]
      : []),
  ];
  const isEvery = (host: string) => host === "0.0.0.0" || host === "::";
  const isLocal = (one: string, other: string) =>
    one === "localhost" && (other === "127.0.0.1" || other === "::1");
  const isSame = (one: string, other: string) =>
    one === other || isEvery(one) || isEvery(other) || isLocal(one, other) || isLocal(other, one);
  for (const [index, one] of listening.entries()) {
    const other = listening
      .slice(index + 1)
      .find(({ host, port }) => port === one.port && isSame(host, one.host));
    if (other && one.port !== 0) return [other.name, one.name];
  }
  return undefined;
}

/** Only an endpoint turns tracing on: with the exporter's default, spans would go to whatever listens on this machine. */
function tracingOf(settings: Settings): Config["tracing"] {
  const endpoint = settings.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? settings.OTEL_EXPORTER_OTLP_ENDPOINT;
  if (endpoint === undefined || settings.OTEL_TRACES_EXPORTER === "none") return null;
  if (settings.OTEL_SDK_DISABLED) return null;
  tryExporterTls(settings);
  return {
    sampler: settings.OTEL_TRACES_SAMPLER,
    samplerRatio: settings.OTEL_TRACES_SAMPLER_ARG,
    scheduleDelayMs: settings.OTEL_BSP_SCHEDULE_DELAY,
  };
}

/** Checks the files that the exporter will use: a variable for traces takes precedence over the general one. */
function tryExporterTls(settings: Settings): void {
  const pemOf = (kind: "CERTIFICATE" | "CLIENT_CERTIFICATE" | "CLIENT_KEY") => {
    const names = [`OTEL_EXPORTER_OTLP_TRACES_${kind}`, `OTEL_EXPORTER_OTLP_${kind}`] as const;
    const name = names.find((one) => settings[one] !== undefined);
    return name === undefined ? undefined : { name, pem: readPem(name, settings[name] ?? "") };
  };
  const ca = pemOf("CERTIFICATE");
  const cert = pemOf("CLIENT_CERTIFICATE");
  const key = pemOf("CLIENT_KEY");
  if (ca) tryTls(ca.name, { cert: ca.pem });
  if (cert) tryTls(cert.name, { cert: cert.pem });
  if (cert && key) tryTls(key.name, { cert: cert.pem, key: key.pem });
  else if (cert)
    throw new SettingError(`${cert.name} must be set together with OTEL_EXPORTER_OTLP_CLIENT_KEY`);
  else if (key)
    throw new SettingError(`${key.name} must be set together with OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE`);
}

function tlsOf({ GRPC_TLS_CERT, GRPC_TLS_KEY, GRPC_TLS_CA }: Settings): Config["grpcTls"] {
  if (GRPC_TLS_CERT === undefined && GRPC_TLS_KEY === undefined && GRPC_TLS_CA === undefined) return null;
  if (GRPC_TLS_CERT === undefined)
    throw new SettingError("GRPC_TLS_CERT must be set with the other GRPC_TLS settings");
  if (GRPC_TLS_KEY === undefined)
    throw new SettingError("GRPC_TLS_KEY must be set with the other GRPC_TLS settings");
  const tls = readGrpcTls({ cert: GRPC_TLS_CERT, key: GRPC_TLS_KEY, ca: GRPC_TLS_CA ?? null });
  refuseUnusableTls(tls);
  return tls;
}

/** IPv4 addresses written as IPv6, with 96 bits before their own. */
const mapped = new BlockList();
mapped.addSubnet("::ffff:0:0", 96, "ipv6");

function isAddressRange(text: string): boolean {
  const [address, prefix, ...rest] = text.split("/");
  const family = isIP(address ?? "");
  if (family === 0 || rest.length > 0) return false;
  if (prefix === undefined) return true;
  // A prefix of 0 bits, which matches everybody, is refused here: Fastify throws an error of its own for it.
  const [least, most] = family === 4 ? [1, 32] : [mapped.check(address ?? "", "ipv6") ? 97 : 1, 128];
  return /^[1-9]\d{0,2}$/.test(prefix) && Number(prefix) >= least && Number(prefix) <= most;
}

/** As in a URL, which has an IPv6 address in brackets. */
export function hostAndPort(host: string, port: number): string {
  return `${isIP(host) === 6 ? `[${host}]` : host}:${port}`;
}

const loopback = new BlockList();
loopback.addSubnet("127.0.0.0", 8);
loopback.addAddress("::1", "ipv6");

function isLoopback(address: string): boolean {
  const family = isIP(address);
  return family === 0 ? address === "localhost" : loopback.check(address, family === 4 ? "ipv4" : "ipv6");
}
