/** The promises of docs/settings.md. */

import { spawn } from "node:child_process";
import { generateKeyPairSync } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import {
  chmod,
  copyFile,
  type FileHandle,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  realpath,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { text } from "node:stream/consumers";
import { TLSSocket } from "node:tls";
import { createClient } from "@connectrpc/connect";
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { readOrMakeAdminToken } from "../../src/admin-token.ts";
import { findAddress } from "../../src/cli/address.ts";
import { parseConfig } from "../../src/config.ts";
import { ineffectiveParameters } from "../../src/database-url.ts";
import { Failure } from "../../src/failures.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";
import { startService } from "../../src/service.ts";
import { causeOf, SettingError, withListenErrors } from "../../src/setting-errors.ts";
import { startEmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { readPage } from "../docs/pages.ts";
import { hasIpv6, noteAbsence } from "../harness/absent-tools.ts";
import { createDatabase, type TestDatabase } from "../harness/database.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { certificates } from "../rpc/certificates.ts";

if (!hasIpv6) noteAbsence("IPv6", "printed IPv6 addresses");

/** The line with which a process ends that cannot start with these settings, without what src/main.ts puts before it. */
async function refusalOf(settings: Record<string, string>): Promise<string> {
  const config = parseConfig({ LOG_LEVEL: "silent", ...settings });
  const error = await startService(config, createLog(config.logLevel, openLogOutput())).then(
    async (service) => {
      await service.close();
      return expect.fail("it has started");
    },
    (error: unknown) => error,
  );
  expect(error).toBeInstanceOf(SettingError);
  return (error as SettingError).message;
}

/** Runs the service as a process that ends before it has started. */
async function start(args: readonly string[], settings: Record<string, string>) {
  const child = spawn(process.execPath, [path.join(import.meta.dirname, "../../bin/start.mjs"), ...args], {
    env: plainEnvironment(settings),
    stdio: ["ignore", "pipe", "pipe"],
    // In case it starts after all.
    timeout: 60_000,
  });
  const printed = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const) {
    child[name].setEncoding("utf8").on("data", (text: string) => {
      printed[name] += text;
    });
  }
  const [code] = await once(child, "close");
  return { code, ...printed };
}

test.for([
  "GRPC_ALLOW_PLAINTEXT",
  "DATABASE_PREPARED_STATEMENTS",
  "WEBHOOK_ALLOW_PRIVATE",
  "OTEL_SDK_DISABLED",
])("%s must be true or false", (name) => {
  for (const value of ["true", "false"]) parseConfig({ [name]: value });
  for (const value of ["maybe", "1", "yes"]) {
    expect(() => parseConfig({ [name]: value })).toThrow(`${name} must be true or false`);
  }
});

test.for([
  { settings: { PORT: "8099", GRPC_PORT: "8099" }, message: "PORT and GRPC_PORT must differ" },
  { settings: { HOST: "0.0.0.0", PORT: "8099", OPS_PORT: "8099" }, message: "PORT and OPS_PORT must differ" },
  { settings: { GRPC_PORT: "8099", OPS_PORT: "8099" }, message: "GRPC_PORT and OPS_PORT must differ" },
  {
    settings: { HOST: "localhost", PORT: "8099", GRPC_PORT: "8099" },
    message: "PORT and GRPC_PORT must differ",
  },
  {
    settings: { HOST: "::1", PORT: "8099", GRPC_HOST: "localhost", GRPC_PORT: "8099" },
    message: "PORT and GRPC_PORT must differ",
  },
  {
    settings: { PORT: "8099", OPS_HOST: "::", OPS_PORT: "8099" },
    message: "PORT and OPS_PORT must differ",
  },
])("a port set twice is reported as such, not as used by another program: $message", ({
  settings,
  message,
}) => {
  expect(() => parseConfig(settings)).toThrow(message);
});

test.for([
  { PORT: "0", GRPC_PORT: "0", OPS_PORT: "0" },
  { HOST: "127.0.0.2", PORT: "8099", GRPC_PORT: "8099" },
  { DATABASE_URL: "postgres://127.0.0.1/phoneproof", ROLES: "worker", PORT: "8099", OPS_PORT: "8099" },
])("a port may be set twice if it is 0, on another address or not opened: %o", (settings) => {
  expect(() => parseConfig(settings)).not.toThrow();
});

if (hasIpv6)
  test("printed addresses can be used as they are if the servers listen on IPv6", async () => {
    const service = await startTestService({ HOST: "::1", GRPC_HOST: "::1", OPS_HOST: "::1" });
    onTestFinished(() => service.close());
    expect((await fetch(`${service.opsUrl}/readyz`)).status).toBe(200);
    // As the printed --address.
    expect(findAddress(service.grpcAddress)).toMatchObject({ host: "[::1]" });
    // By Node's HTTP/2 client.
    expect((await service.client(ProjectService).listProjects({})).projects).toEqual([]);
  });

test.for([
  "0.0.0.0",
  ...(hasIpv6 ? ["::1", "::ffff:127.0.0.1"] : []),
])("with HOST=%s the printed address is that of localhost", async (host) => {
  const service = await startTestService({ HOST: host });
  onTestFinished(() => service.close());
  // For IPv4, as the harness has it.
  expect(service.httpUrl).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
});

/** Every kind of character that a Bearer credential may contain. */
const adminToken = "Az09._~+/-==";

test.for([
  "secret!1",
  "two words",
  "=",
  "a=b",
  "비밀",
])("an admin token that no header can carry ends the start: %s", (token) => {
  expect(() => parseConfig({ PHONEPROOF_ADMIN_TOKEN: token })).toThrow(
    /^PHONEPROOF_ADMIN_TOKEN must consist of /,
  );
});

test("the admin token's file is accessible to its owner only, when created and after every start", async () => {
  const dataDir = await mkdtemp(path.join(tmpdir(), "phoneproof-settings-"));
  onTestFinished(() => rm(dataDir, { recursive: true }));
  const file = path.join(dataDir, "admin-token");
  const mode = async () => ((await stat(file)).mode & 0o777).toString(8);
  const made = await readOrMakeAdminToken(dataDir);
  expect(await mode()).toBe("600");
  await chmod(file, 0o644);
  expect(await readOrMakeAdminToken(dataDir)).toBe(made);
  expect(await mode()).toBe("600");
});

test("an admin token file that a power failure left empty is created again", async () => {
  const dataDir = await mkdtemp(path.join(tmpdir(), "phoneproof-settings-"));
  onTestFinished(() => rm(dataDir, { recursive: true }));
  const file = path.join(dataDir, "admin-token");
  await writeFile(file, "");
  const made = await readOrMakeAdminToken(dataDir);
  expect(made).toMatch(/^pp_svc_/);
  expect((await readFile(file, "utf8")).trim()).toBe(made);
  expect(await readOrMakeAdminToken(dataDir)).toBe(made);
  expect(await readdir(dataDir)).toEqual(["admin-token"]);
});

test("the admin token survives a power failure once it can be used: its file is flushed to disk, and then its name", async () => {
  const dataDir = await realpath(await mkdtemp(path.join(tmpdir(), "phoneproof-settings-")));
  onTestFinished(() => rm(dataDir, { recursive: true }));
  const file = path.join(dataDir, "admin-token");
  const flushed: { ino: number; name: boolean }[] = [];
  const handle = await open(dataDir, "r");
  const sync = vi.spyOn(Object.getPrototypeOf(handle) as FileHandle, "sync");
  sync.mockImplementation(async function (this: FileHandle) {
    flushed.push({ ino: (await this.stat()).ino, name: existsSync(file) });
  });
  onTestFinished(() => sync.mockRestore());
  await handle.close();
  await readOrMakeAdminToken(dataDir);
  const [ofFile, ofDirectory] = await Promise.all([stat(file), stat(dataDir)]);
  expect(flushed).toEqual([
    { ino: ofFile.ino, name: false },
    { ino: ofDirectory.ino, name: true },
  ]);
});

describe("an admin token file", () => {
  const outside = "must consist of A-Z a-z 0-9";
  // One for all, whose database is initialised only once.
  const dataDir = mkdtempSync(path.join(tmpdir(), "phoneproof-settings-"));
  const file = path.join(dataDir, "admin-token");
  beforeAll(async () => (await startEmbeddedPostgres({ dataDir })).stop());
  afterEach(() => rm(file, { recursive: true, force: true }));
  afterAll(() => rm(dataDir, { recursive: true }));

  test.for<[string, string, (file: string) => Promise<unknown>]>([
    ["a directory", "cannot be read (EISDIR)", (file) => mkdir(file)],
    ["a link to itself", "cannot be read (ELOOP)", (file) => symlink(file, file)],
    ["two words", outside, (file) => writeFile(file, "two words\n")],
    ["two lines", outside, (file) => writeFile(file, "one\ntwo\n")],
    ["another alphabet", outside, (file) => writeFile(file, "비밀\n")],
  ])("that cannot be used, %s, is refused, with a line that names DATA_DIR and the file", async ([
    ,
    message,
    make,
  ]) => {
    await make(file);
    const error = await readOrMakeAdminToken(dataDir).catch((error: unknown) => error);
    expect(error).toBeInstanceOf(SettingError);
    const text = (error as SettingError).message;
    expect(text).toMatch(/^DATA_DIR: .+$/);
    expect(text).toContain(`${file} ${message}`);
    expect(text.replaceAll(dataDir, "")).not.toMatch(/words|two|비밀/);
  });

  test("that cannot be used ends the start with such a line", async () => {
    await writeFile(file, "two words\n");
    const { code, stderr } = await start([], {
      ...{ DATA_DIR: dataDir, PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent" },
    });
    expect(code).toBe(1);
    expect(stderr).toMatch(/^phoneproof cannot start: DATA_DIR: .+\n$/);
    expect(stderr).toContain(`${file} ${outside}`);
    expect(stderr.replaceAll(dataDir, "")).not.toMatch(/words|two/);
  });

  test("works beside a PHONEPROOF_ADMIN_TOKEN of any Bearer characters, and is warned of without containing it if it can be guessed", async () => {
    await writeFile(file, "quetzal\n");
    const service = await startProcess({ DATA_DIR: dataDir, PHONEPROOF_ADMIN_TOKEN: adminToken });
    await expect.poll(service.text).toContain("npx phoneproof");
    const [, grpc = ""] = /gRPC +(\S+)/.exec(service.text()) ?? [];
    for (const token of [adminToken, "quetzal"]) {
      const projects = createClient(ProjectService, transportTo(grpc, `Bearer ${token}`));
      expect((await projects.listProjects({})).projects).toHaveLength(1);
    }
    service.child.kill("SIGTERM");
    await service.ended();
    expect(service.text()).toContain('"the token in DATA_DIR/admin-token has fewer than 24 characters');
    expect(service.text()).not.toContain("quetzal");
  });
});

describe("TLS to a Postgres with a private certificate authority", () => {
  /** Accepts the connection over TLS, and closes it at the first data. */
  const server = createServer((socket) => {
    socket.once("data", () => {
      socket.write("S");
      const { cert, key } = certificates.server;
      new TLSSocket(socket, { isServer: true, cert: readFileSync(cert), key: readFileSync(key) })
        .on("error", () => {})
        .once("data", () => socket.destroy());
    });
  });
  beforeAll(() => once(server.listen(0, "127.0.0.1"), "listening"));
  afterAll(() => {
    server.close();
  });

  const settings = (query: string) => {
    const { port } = server.address() as AddressInfo;
    return { DATABASE_URL: `postgres://u:word@127.0.0.1:${port}/db?${query}` };
  };
  // With these modes, the driver prints a warning about them.
  const deprecated = /sslmode=(prefer|require|verify-ca)(&|$)/;

  test.for([
    "sslmode=prefer",
    "sslmode=require",
    "sslmode=verify-ca",
    "sslmode=verify-full",
  ])("%s ends the start, with one line", async (query) => {
    expect(parseConfig(settings(query)).databaseUrl).not.toMatch(deprecated);
    expect(await refusalOf(settings(query))).toMatch(
      /^DATABASE_URL: the database at \S+ cannot be used: its certificate is not from an authority .+ sslrootcert=FILE to the URL$/,
    );
  });

  const withAuthority = `sslmode=require&sslrootcert=${encodeURIComponent(certificates.authority)}`;
  test.for([
    "sslmode=no-verify",
    "sslmode=require&uselibpqcompat=true",
    withAuthority,
  ])("%s accepts its certificate", async (query) => {
    expect(await refusalOf(settings(query))).toMatch(
      /^DATABASE_URL: .+ cannot be used: Connection terminated unexpectedly$/,
    );
  });

  test("that line is all that a process prints", async () => {
    expect(await start([], settings(withAuthority))).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(
        /^phoneproof cannot start: DATABASE_URL: .+ cannot be used: Connection terminated unexpectedly\n$/,
      ),
    });
  });
});

test.for([
  "0.0.0.0",
  "::",
  "10.0.0.1",
  "128.0.0.1",
  "grpc.example.com",
])("gRPC on %s needs TLS or GRPC_ALLOW_PLAINTEXT", (host) => {
  expect(() => parseConfig({ GRPC_HOST: host })).toThrow(/^GRPC_HOST is not a loopback address/);
  expect(parseConfig({ GRPC_HOST: host, GRPC_ALLOW_PLAINTEXT: "true" })).toMatchObject({ grpcHost: host });
});

test("the production configuration of docs/settings.md is valid", () => {
  const blocks = readPage("docs/settings.md").blocks.filter(({ language }) => language === "");
  const [shared = {}, api = {}, worker = {}] = blocks.map(({ code }) =>
    Object.fromEntries(
      code
        .trim()
        .split("\n")
        .map((line) => line.replace("…", "x").split(/=(.*)/)),
    ),
  );
  expect(blocks).toHaveLength(3);
  expect(parseConfig({ ...shared, ...worker }).roles).toEqual({ api: false, worker: true });
  expect(() => parseConfig({ ...shared, ...api })).toThrow(/^GRPC_TLS_CERT names a file that cannot be read/);
  const { cert, key } = certificates.server;
  const config = parseConfig({ ...shared, ...api, GRPC_TLS_CERT: cert, GRPC_TLS_KEY: key });
  expect(config).toMatchObject({
    roles: { api: true, worker: false },
    httpHost: "10.0.0.10",
    adminToken: "x",
    publicBaseUrl: "https://verify.example.com",
    trustedProxies: ["10.0.0.5"],
    drainSeconds: 3,
  });
});

test.for(["127.0.0.1", "127.8.0.1", "::1", "localhost"])("gRPC on %s does not need TLS", (host) => {
  expect(parseConfig({ GRPC_HOST: host })).toMatchObject({ grpcHost: host, grpcTls: null });
});

describe("unusable TLS settings of gRPC end the start, with a line that names the setting", async () => {
  const { authority, otherAuthority, server, client } = certificates;
  const usable = { GRPC_TLS_CERT: server.cert, GRPC_TLS_KEY: server.key, GRPC_TLS_CA: authority };
  type Setting = keyof typeof usable;
  const directory = await mkdtemp(path.join(tmpdir(), "phoneproof-settings-"));
  afterAll(() => rm(directory, { recursive: true }));

  async function fileWith(name: string, text: string): Promise<string> {
    const file = path.join(directory, name);
    await writeFile(file, text);
    return file;
  }
  const firstHalf = (text: string) => text.slice(0, text.length / 2);
  const cut = async (file: string) =>
    fileWith(`cut-${path.basename(file)}`, firstHalf(await readFile(file, "utf8")));
  const besideCut = async (whole: string, other: string) =>
    fileWith("beside.pem", (await readFile(whole, "utf8")) + firstHalf(await readFile(other, "utf8")));
  const indented = async (file: string) => (await readFile(file, "utf8")).replaceAll(/^/gm, "  ");
  const settings = Object.keys(usable) as Setting[];
  const empty = await fileWith("empty.pem", "");
  const encrypted = generateKeyPairSync("ec", {
    namedCurve: "P-256",
    publicKeyEncoding: { type: "spki", format: "pem" },
    privateKeyEncoding: { type: "pkcs8", format: "pem", cipher: "aes-256-cbc", passphrase: "pass" },
  }).privateKey;

  test("if one of them needs another that is not set", () => {
    const { GRPC_TLS_CERT, GRPC_TLS_KEY, GRPC_TLS_CA } = usable;
    parseConfig({ GRPC_TLS_CERT, GRPC_TLS_KEY });
    const noKey = /^GRPC_TLS_KEY must be set/;
    expect(() => parseConfig({ GRPC_TLS_CERT })).toThrow(noKey);
    expect(() => parseConfig({ GRPC_TLS_CERT, GRPC_TLS_CA })).toThrow(noKey);
    const noCertificate = /^GRPC_TLS_CERT must be set/;
    expect(() => parseConfig({ GRPC_TLS_KEY })).toThrow(noCertificate);
    expect(() => parseConfig({ GRPC_TLS_KEY, GRPC_TLS_CA })).toThrow(noCertificate);
    expect(() => parseConfig({ GRPC_TLS_CA })).toThrow(noCertificate);
  });

  test.for<[string, Setting, string]>([
    ...settings.flatMap((name): [string, Setting, string][] => [
      ["a missing file", name, path.join(directory, "none.pem")],
      ["a directory", name, directory],
      ["an empty file", name, empty],
    ]),
    ["a truncated certificate", "GRPC_TLS_CERT", await cut(server.cert)],
    ["a truncated key", "GRPC_TLS_KEY", await cut(server.key)],
    ["a truncated authority", "GRPC_TLS_CA", await cut(authority)],
    ["an authority beside a truncated one", "GRPC_TLS_CA", await besideCut(authority, otherAuthority)],
    [
      "an authority beside an indented one",
      "GRPC_TLS_CA",
      await fileWith("indented.pem", (await readFile(authority, "utf8")) + (await indented(otherAuthority))),
    ],
    [
      "a certificate before an indented intermediate one",
      "GRPC_TLS_CERT",
      await fileWith("chain.pem", (await readFile(server.cert, "utf8")) + (await indented(authority))),
    ],
    [
      "an authority behind an empty line and a byte order mark",
      "GRPC_TLS_CA",
      await fileWith(
        "marked.pem",
        `${await readFile(authority, "utf8")}\n\ufeff${await readFile(otherAuthority, "utf8")}`,
      ),
    ],
    ["a key", "GRPC_TLS_CA", server.key],
    ["plain text", "GRPC_TLS_CA", await fileWith("text.pem", "the authority")],
    ["a key", "GRPC_TLS_CERT", server.key],
    ["a certificate", "GRPC_TLS_KEY", server.cert],
    ["a key of another certificate", "GRPC_TLS_KEY", client.key],
    ["a key with a passphrase", "GRPC_TLS_KEY", await fileWith("encrypted.pem", encrypted)],
  ])("%s as %s", ([, name, file]) => {
    expect(() => parseConfig({ ...usable, [name]: file })).toThrow(new RegExp(`^${name} names a file that `));
  });

  test("and that line is the only output, with nothing of the key", async () => {
    expect(await start([], { ...usable, GRPC_TLS_KEY: await cut(server.key) })).toEqual({
      code: 1,
      stdout: "",
      stderr: expect.stringMatching(
        /^phoneproof cannot start: GRPC_TLS_KEY names a file that cannot be used for TLS \(\w+\)\n$/,
      ),
    });
  });
});

test.for([
  ["--port", "9000"],
  ["--help"],
  ["stop"],
])("arguments are refused, not ignored: %s", async (given) => {
  expect(await start(given, { PORT: "a wrong one too" })).toEqual({
    code: 1,
    stdout: "",
    stderr: `phoneproof cannot start: it takes no arguments (${given.join(" ")}); settings are environment variables, see docs/settings.md\n`,
  });
});

describe("an address that the service cannot listen on ends the start, with a line that names the setting", () => {
  const taken = createServer();
  let database: TestDatabase;
  beforeAll(async () => {
    database = await createDatabase();
    await once(taken.listen(0, "127.0.0.1"), "listening");
  });
  afterAll(async () => {
    taken.close();
    await database.drop();
  });
  const refused = (settings: Record<string, string>) =>
    refusalOf({ DATABASE_URL: database.url, PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", ...settings });
  const portTaken = () => String((taken.address() as AddressInfo).port);

  test.for(["PORT", "GRPC_PORT", "OPS_PORT"])("%s of another program", async (name) => {
    expect(await refused({ [name]: portTaken() })).toBe(
      `${name}: port ${portTaken()} on 127.0.0.1 is in use by another program`,
    );
  });

  test("that line is all that a process prints", async () => {
    const settings = { DATABASE_URL: database.url, PORT: portTaken(), GRPC_PORT: "0", OPS_PORT: "0" };
    expect(await start([], { ...settings, PHONEPROOF_ADMIN_TOKEN: adminToken, LOG_LEVEL: "silent" })).toEqual(
      {
        code: 1,
        stdout: "",
        stderr: `phoneproof cannot start: PORT: port ${portTaken()} on 127.0.0.1 is in use by another program\n`,
      },
    );
  });

  test.for<[string, string]>([
    ["HOST", "192.0.2.1"],
    // A link-local address that does not say of which interface.
    ["HOST", "fe80::1"],
    ["GRPC_HOST", "phoneproof.invalid"],
    ["OPS_HOST", "192.0.2.1"],
  ])("%s=%s", async ([name, host]) => {
    expect(await refused({ [name]: host, GRPC_ALLOW_PLAINTEXT: "true" })).toBe(
      `${name}: ${host} is not an address of this machine`,
    );
  });

  test("a port for which the user needs more rights", async () => {
    const refused = async () => {
      throw Object.assign(new Error("listen EACCES"), { code: "EACCES" });
    };
    await expect(withListenErrors("OPS", "127.0.0.1", 80, refused)).rejects.toThrow(
      /^OPS_PORT: this user may not listen on port 80 of 127\.0\.0\.1$/,
    );
  });

  test("an IPv6 address where the kernel has no IPv6", async () => {
    const refused = async () => {
      throw Object.assign(new Error("listen EAFNOSUPPORT"), { code: "EAFNOSUPPORT" });
    };
    await expect(withListenErrors("", "::", 8080, refused)).rejects.toThrow(
      /^HOST: :: is not an address of this machine$/,
    );
  });
});

test.for([
  { name: "DATABASE_POOL_SIZE", taken: ["4", "200"], refused: ["3", "201", "-4", "4.5"] },
  { name: "RETENTION_STATISTICS_DAYS", taken: ["32", "9999"], refused: ["31", "10000"] },
  { name: "RETENTION_FINISHED_DAYS", taken: ["1", "9999"], refused: ["0", "10000"] },
  { name: "RETENTION_UNMATCHED_DAYS", taken: ["1", "9999"], refused: ["0", "10000"] },
  { name: "DRAIN_SECONDS", taken: ["0", "60"], refused: ["61"] },
  { name: "PORT", taken: ["0", "65535"], refused: ["65536", "+80", "0x50"] },
  { name: "OTEL_TRACES_SAMPLER_ARG", taken: ["0", "0.25", "1", "1.0"], refused: ["1.5", "2", "-1"] },
  { name: "OTEL_BSP_SCHEDULE_DELAY", taken: ["0", "999999"], refused: ["-1", "1e3"] },
])("$name is accepted only within its bounds", ({ name, taken, refused }) => {
  for (const value of taken) parseConfig({ [name]: value });
  for (const value of refused) expect(() => parseConfig({ [name]: value })).toThrow(`${name} must be `);
});

test.for([
  "0.0.0.0/0",
  "::/0",
  "::ffff:0:0/96",
  "::ffff:0.0.0.0/96",
  "0:0:0:0:0:FFFF:10.0.0.0/95",
  "10.0.0.0/33",
  "2001:db8::/129",
  "10.0.0.0/08",
  "10.0.0.0/",
  "10.0.0.0/8/8",
  "proxy.example.com",
])("a range in TRUSTED_PROXIES that is invalid or covers everything ends the start: %s", (range) => {
  expect(() => parseConfig({ TRUSTED_PROXIES: `127.0.0.1,${range}` })).toThrow(
    /^TRUSTED_PROXIES must be IP addresses or CIDR ranges .*, none of which is everybody's \(\/0, ::ffff:0:0\/96\)$/,
  );
});

test("a zone in TRUSTED_PROXIES that would match nobody ends the start", () => {
  expect(parseConfig({ TRUSTED_PROXIES: "fe80::1%eth0,fe80::%eth0/10" }).trustedProxies).toHaveLength(2);
  for (const proxy of ["fe80::1%br-lan", "fe80::%eth0.100/10"]) {
    expect(() => parseConfig({ TRUSTED_PROXIES: `127.0.0.1,${proxy}` })).toThrow(
      /^TRUSTED_PROXIES must not contain a zone with other characters than letters and digits, /,
    );
  }
});

test("a list in ROLES or TRUSTED_PROXIES may have spaces, and commas at its ends", () => {
  expect(parseConfig({ ROLES: " worker , api" }).roles).toEqual({ api: true, worker: true });
  expect(parseConfig({ TRUSTED_PROXIES: ",10.0.0.5 , ::ffff:10.0.0.0/97," }).trustedProxies).toEqual([
    "10.0.0.5",
    "::ffff:10.0.0.0/97",
  ]);
});

test.for<[string, string, string]>([
  ["ROLES", "api,admin", "must be api, worker, or both"],
  ["ROLES", "API", "must be api, worker, or both"],
  ["HOST", "http://10.0.0.10", "must be an address or a host name to listen on"],
  ["GRPC_HOST", "10.0.0.10 ", "must be an address or a host name to listen on"],
  ["OPS_HOST", "10.0.0.0/8", "must be an address or a host name to listen on"],
  ["DATABASE_URL", "mysql://db.example/phoneproof", "must be a URL such as postgres://"],
  ["DATABASE_URL", "postgres://db.example:port/phoneproof", "must be a URL such as postgres://"],
  ["DATABASE_URL", "postgres://u:w@a.example:5432,b.example:5432/phoneproof", "must name one host"],
  ["DATABASE_URL", "postgres://a.example,b.example/phoneproof", "must name one host"],
  ["DATABASE_URL", "postgres:///phoneproof?host=a.example,b.example", "must name one host"],
  ["DATABASE_URL", "postgres:///phoneproof?host=a.example%2Cb.example", "must name one host"],
  ["DATABASE_URL", "postgres://db.example/phoneproof?schema=own", "must not have the parameter schema"],
  [
    "DATABASE_URL",
    "postgres://db.example/phoneproof?schema=public&schema=own",
    "must not have the parameter schema",
  ],
  [
    "DATABASE_URL",
    "postgres://db.example/phoneproof?sslmode=verify-full&sslrootcert=system",
    "must not have sslrootcert=system",
  ],
  [
    "DATABASE_NOTICES_URL",
    "postgres://db.example/phoneproof?sslrootcert=system",
    "must not have sslrootcert=system",
  ],
  ...["DATABASE_URL", "DATABASE_NOTICES_URL"].flatMap((name) =>
    ["allow", "verify_full", "REQUIRE", "", "disable&sslmode="].map((mode): [string, string, string] => [
      name,
      `postgres://db.example/phoneproof?sslmode=${mode}`,
      "must have one of these as its sslmode, or none: disable, prefer, ",
    ]),
  ),
  ["DATABASE_NOTICES_URL", "postgres://db.example/phoneproof", "must be set together with DATABASE_URL"],
  ["REDIS_URL", "redis://us%er:word@redis.example", "must be a URL such as redis://"],
  ["REDIS_URL", "redis://user:w%rd@redis.example", "must be a URL such as redis://"],
  ["REDIS_URL", "redis:///3", "must be a URL such as redis://"],
  ["LOG_LEVEL", "verbose", "must be one of fatal, error, warn, info, debug, trace, silent"],
  ["OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "must be an http(s) URL of a collector"],
  ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "must be an http(s) URL of a collector"],
  ["OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "must be http/protobuf"],
  ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", "must be http/protobuf"],
  ["OTEL_TRACES_EXPORTER", "console", "must be otlp or none"],
  ["OTEL_TRACES_SAMPLER", "always", "must be one of always_on, always_off, traceidratio, parentbased_"],
])("%s=%s ends the start with a line that names the setting and what it takes", ([name, value, message]) => {
  expect(() => parseConfig({ [name]: value })).toThrow(`${name} ${message}`);
});

test.for([
  { DATABASE_URL: "postgresql://db.example/phoneproof" },
  { DATABASE_URL: "postgresql://u,v:w,w@db.example/phone,proof" },
  { DATABASE_URL: "postgresql://db.example/phoneproof?schema=public" },
  { DATABASE_URL: "postgresql://db.example/phoneproof?schema=" },
  { DATABASE_URL: "postgres:///phoneproof?host=/var/run/postgresql&user=phoneproof" },
  { REDIS_URL: "redis://redis.example" },
  { REDIS_URL: "rediss://us%25er:word@redis.example:6380/3" },
  { PUBLIC_BASE_URL: "http://localhost:8080" },
  { OTEL_TRACES_SAMPLER: "always_on" },
  { OTEL_TRACES_SAMPLER: "parentbased_traceidratio" },
])("%j is accepted", (settings) => {
  expect(() => parseConfig(settings)).not.toThrow();
});

const collector = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://localhost:4318/v1/traces" };

test("a process without settings has the defaults of docs/settings.md", () => {
  const [service = ""] = readPage("docs/settings.md").prose.split("## The command");
  const rows = [...service.matchAll(/^\| (`[A-Z].*?) \| (.*?) \|/gm)];
  const defaults = rows.flatMap(([, names = "", values = ""]) => {
    // Names share a default if there is only one; what follows a semicolon is about a special case.
    const given = values.replace(/;.*/, "").replaceAll("`", "").split(", ");
    return names
      .replaceAll("`", "")
      .split(", ")
      .map((name, index) => [name, given[index] ?? given[0] ?? ""] as const);
  });
  const documented = Object.fromEntries(defaults.filter(([, value]) => value !== "none"));
  // These two are derived from another setting.
  const { PUBLIC_BASE_URL, DATABASE_NOTICES_URL, ...given } = documented;
  expect({ PUBLIC_BASE_URL, DATABASE_NOTICES_URL }).toEqual({
    PUBLIC_BASE_URL: "http://localhost:PORT",
    DATABASE_NOTICES_URL: "DATABASE_URL",
  });
  const needed = { ...collector, DATABASE_URL: "postgres://localhost/phoneproof" };
  expect(parseConfig({ ...needed, ...given })).toEqual(parseConfig(needed));
  expect(Object.keys(given).length).toBeGreaterThan(20);
});

test("each setting has its own effect", () => {
  const settings = {
    ...collector,
    HOST: "10.0.0.1",
    GRPC_HOST: "127.0.0.2",
    OPS_HOST: "10.0.0.3",
    PORT: "1001",
    GRPC_PORT: "1002",
    OPS_PORT: "1003",
    DATABASE_URL: "postgres://db.example/phoneproof",
    DATABASE_NOTICES_URL: "postgres://notices.example/phoneproof",
    DATABASE_POOL_SIZE: "5",
    DATABASE_PREPARED_STATEMENTS: "false",
    REDIS_URL: "redis://redis.example",
    DATA_DIR: "elsewhere",
    DRAIN_SECONDS: "6",
    RETENTION_UNMATCHED_DAYS: "101",
    RETENTION_FINISHED_DAYS: "102",
    RETENTION_STATISTICS_DAYS: "103",
    WEBHOOK_ALLOW_PRIVATE: "true",
    LOG_LEVEL: "debug",
    OTEL_TRACES_SAMPLER: "traceidratio",
    OTEL_TRACES_SAMPLER_ARG: "0.25",
    OTEL_BSP_SCHEDULE_DELAY: "107",
  };
  expect(parseConfig(settings)).toEqual({
    httpHost: "10.0.0.1",
    grpcHost: "127.0.0.2",
    opsHost: "10.0.0.3",
    httpPort: 1001,
    grpcPort: 1002,
    opsPort: 1003,
    grpcTls: null,
    roles: { api: true, worker: true },
    trustedProxies: [],
    databaseUrl: "postgres://db.example/phoneproof",
    noticesUrl: "postgres://notices.example/phoneproof",
    databasePoolSize: 5,
    databasePreparedStatements: false,
    redisUrl: "redis://redis.example",
    dataDir: "elsewhere",
    adminToken: null,
    publicBaseUrl: null,
    webhookAllowPrivate: true,
    drainSeconds: 6,
    retention: { unmatchedDays: 101, finishedDays: 102, statisticsDays: 103 },
    logLevel: "debug",
    tracing: { sampler: "traceidratio", samplerRatio: 0.25, scheduleDelayMs: 107 },
  });
});

test("a PGSSLMODE that the driver does not know ends the start, because it would connect without TLS", () => {
  const DATABASE_URL = "postgres://localhost/phoneproof";
  for (const mode of ["disable", "prefer", "require", "verify-ca", "verify-full", "no-verify"])
    parseConfig({ DATABASE_URL, PGSSLMODE: mode });
  const [open, closed] = [DATABASE_URL, `${DATABASE_URL}?sslmode=verify-full`];
  for (const mode of ["verify_full", "REQUIRE", "bogus"]) {
    for (const [url, noticesUrl] of [
      [open, ""],
      [open, closed],
      [closed, open],
    ]) {
      const settings = { DATABASE_URL: url, DATABASE_NOTICES_URL: noticesUrl, PGSSLMODE: mode };
      expect(() => parseConfig(settings)).toThrow(/^PGSSLMODE must be one of disable, /);
    }
    // Irrelevant with the embedded database, and where every URL has an sslmode.
    parseConfig({ PGSSLMODE: mode });
    parseConfig({ DATABASE_URL: closed, DATABASE_NOTICES_URL: closed, PGSSLMODE: mode });
  }
});

test.for([
  "application_name",
  "client_encoding",
  "statement_timeout",
  "query_timeout",
  "idle_in_transaction_session_timeout",
])("%s is ignored in a database URL, beside parameters that count", (name) => {
  const url = `postgres://db.example/phoneproof?sslmode=verify-full&${name}=1&options=-c%20a%3Db`;
  const config = parseConfig({ DATABASE_URL: url, DATABASE_NOTICES_URL: url });
  for (const used of [config.databaseUrl, config.noticesUrl]) {
    expect(Object.fromEntries(new URL(used ?? "").searchParams)).toEqual({
      sslmode: "verify-full",
      options: "-c a=b",
    });
  }
});

test("the parameters on the settings page have an effect, and what may be part of a password is not named", () => {
  const page = readFileSync(path.join(import.meta.dirname, "../../docs/settings.md"), "utf8");
  const [, list = ""] = /Of the others, these have an\s+effect: (.+?)\. Any other/s.exec(page) ?? [];
  const names = Array.from(list.matchAll(/`(\w+)`/g), ([, name]) => name);
  expect(names).toEqual(expect.arrayContaining(["host", "sslmode", "sslrootcert", "sslkey", "options"]));
  const url = `postgres://db.example/phoneproof?${names.map((name) => `${name}=1`).join("&")}`;
  expect(ineffectiveParameters(url)).toEqual([]);
  expect(ineffectiveParameters(`${url}&sslmod=require`)).toEqual(["sslmod"]);
  expect(ineffectiveParameters("postgres://user:12?secret@db.example/phoneproof")).toEqual([]);
});

test("a start warns of parameters that have no effect, by name", async () => {
  const database = await createDatabase();
  onTestFinished(() => database.drop());
  const withEffect = "sslmode=disable&application_name=shop&lock_timeout=5000&options=-c%20work_mem%3D8MB";
  const settings = {
    DATABASE_URL: `${database.url}?${withEffect}&connect_timeout=5`,
    DATABASE_NOTICES_URL: `${database.url}?sslmod=verify-full&channel_binding=require&sslmod=x`,
  };
  const config = parseConfig({ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", ...settings });
  const output = { waitingBytes: 0, droppedLines: 0, end: async () => {} };
  const written: string[] = [];
  const log = createLog(config.logLevel, { ...output, write: (lines) => void written.push(lines) });
  const service = await startService(config, log);
  await service.close();
  log.flush();
  const warnings = written
    .join("")
    .split("\n")
    .filter((line) => line.includes("no effect"))
    .map((line) => JSON.parse(line));
  expect(warnings).toEqual([
    expect.objectContaining({
      level: 40,
      msg: "DATABASE_URL has parameters that have no effect",
      parameters: ["connect_timeout"],
    }),
    expect.objectContaining({
      level: 40,
      msg: "DATABASE_NOTICES_URL has parameters that have no effect",
      parameters: ["sslmod", "channel_binding"],
    }),
  ]);
});

test("DRAIN_SECONDS is ignored with the embedded database", () => {
  expect(parseConfig({ DRAIN_SECONDS: "9" }).drainSeconds).toBe(0);
  const databaseUrl = "postgres://localhost/phoneproof";
  expect(parseConfig({ DATABASE_URL: databaseUrl, DRAIN_SECONDS: "9" }).drainSeconds).toBe(9);
});

test("trailing slashes of PUBLIC_BASE_URL make no difference", () => {
  for (const url of ["https://verify.example.com/p", "https://verify.example.com/p//"]) {
    expect(parseConfig({ PUBLIC_BASE_URL: url }).publicBaseUrl).toBe("https://verify.example.com/p");
  }
});

test.for([
  "https:verify.example.com",
  "https:///verify.example.com",
  " https://verify.example.com",
  "https://verify.example.com\\p",
  "https://verify.example.com/?",
  "https://verify.example.com/p#",
  "https://user:word@verify.example.com",
  "https://user@verify.example.com",
  "https://:word@verify.example.com",
  "https://@verify.example.com",
])("a PUBLIC_BASE_URL to which no path can be appended ends the start: %s", (url) => {
  expect(() => parseConfig({ PUBLIC_BASE_URL: url })).toThrow(
    "PUBLIC_BASE_URL must be an absolute http(s) URL without credentials, query or fragment, such as https://verify.example.com",
  );
});

test.for([
  { OTEL_SDK_DISABLED: "true" },
  { OTEL_SDK_DISABLED: "TRUE" },
  { OTEL_TRACES_EXPORTER: "none" },
])("%j turns tracing off, even if a collector is named", (off) => {
  const named = { OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4318" };
  expect(parseConfig(named).tracing).not.toBeNull();
  expect(parseConfig({ ...named, ...off }).tracing).toBeNull();
});

describe("settings that the trace exporter reads itself", () => {
  const { authority, server, client } = certificates;
  const named = { OTEL_EXPORTER_OTLP_ENDPOINT: "https://localhost:4318" };
  const usable = {
    CERTIFICATE: authority,
    CLIENT_CERTIFICATE: client.cert,
    CLIENT_KEY: client.key,
    COMPRESSION: "gzip",
    TIMEOUT: "10000",
  };
  const prefixes = ["OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"];
  const withPrefix = (prefix: string, given: Partial<typeof usable>) =>
    Object.fromEntries(Object.entries(given).map(([kind, value]) => [prefix + kind, value]));

  test.for(prefixes)("usable values are accepted: %s…", (prefix) => {
    expect(parseConfig({ ...named, ...withPrefix(prefix, usable) }).tracing).not.toBeNull();
    parseConfig({ ...named, ...withPrefix(prefix, { COMPRESSION: "none", TIMEOUT: "1" }) });
  });

  test.for<[keyof typeof usable, string, string]>([
    ["COMPRESSION", "brotli", "must be none or gzip"],
    ["TIMEOUT", "abc", "must be a whole number of milliseconds above 0"],
    ["TIMEOUT", "0", "must be a whole number of milliseconds above 0"],
    ["TIMEOUT", "10s", "must be a whole number of milliseconds above 0"],
    ["CERTIFICATE", "/nonexistent", "names a file that cannot be read (ENOENT)"],
    ["CERTIFICATE", server.key, "names a file that cannot be used for TLS"],
    ["CLIENT_CERTIFICATE", "/nonexistent", "names a file that cannot be read (ENOENT)"],
    ["CLIENT_CERTIFICATE", server.key, "names a file that cannot be used for TLS"],
    ["CLIENT_KEY", server.key, "names a file that cannot be used for TLS"],
    ["CLIENT_KEY", "", "CLIENT_CERTIFICATE must be set together with OTEL_EXPORTER_OTLP_CLIENT_KEY"],
    ["CLIENT_CERTIFICATE", "", "CLIENT_KEY must be set together with OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"],
  ])("%s=%s ends the start with a line that names the setting", ([kind, value, message]) => {
    for (const prefix of prefixes) {
      const given = { ...named, ...withPrefix(prefix, { ...usable, [kind]: value }) };
      const line = message.includes("together") ? message : `${kind} ${message}`;
      expect(() => parseConfig(given)).toThrow(prefix + line);
    }
  });

  test("files are not checked without a collector, or if a more specific setting overrides them", () => {
    const general = { OTEL_EXPORTER_OTLP_CERTIFICATE: "/nonexistent" };
    expect(parseConfig(general).tracing).toBeNull();
    parseConfig({ ...named, ...general, OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE: authority });
  });
});

test("a start that fails gives the fault's cause, not what a caller of the API would be told", () => {
  const cause = new AggregateError([new Error("no more processes")]);
  expect(causeOf(new Failure("service_unavailable", { cause })).message).toBe("no more processes");
  expect(causeOf(new Failure("service_unavailable")).message).toMatch(/^The service is temporarily/);
});

test("the service's program says that the machine's Node is too old", async () => {
  const old =
    "data:text/javascript,Object.defineProperty(process, 'versions', { value: { node: '20.1.0' } })";
  const { stdout, stderr, code } = await start([], {
    NODE_OPTIONS: `--import "${old}"`,
    DATABASE_URL: "none",
  });
  expect({ stdout, stderr, code }).toEqual({
    stdout: "",
    stderr: `phoneproof cannot start: it needs Node 24 or newer, this is ${process.version}\n`,
    code: 1,
  });
});

describe("npm start says what to do", () => {
  /** Runs npm's start script in a folder with these files, all of them empty. */
  async function startIn(files: readonly string[], program: string, from?: string) {
    const folder = await mkdtemp(path.join(tmpdir(), "phoneproof-unbuilt-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    for (const file of files) {
      await mkdir(path.join(folder, path.dirname(file)), { recursive: true });
      await writeFile(path.join(folder, file), "");
    }
    await mkdir(path.join(folder, "bin"));
    await writeFile(path.join(folder, "bin/node"), program, { mode: 0o755 });
    const root = path.join(import.meta.dirname, "../..");
    await copyFile(path.join(root, "bin/start.sh"), path.join(folder, "bin/start.sh"));
    const manifest = await readFile(path.join(root, "package.json"), "utf8");
    const { scripts } = JSON.parse(manifest) as { readonly scripts: { readonly start: string } };
    const command = from === undefined ? ["-c", scripts.start] : [path.join(folder, "bin/start.sh")];
    const child = spawn("sh", command, {
      cwd: from ?? folder,
      stdio: ["ignore", "pipe", "pipe"],
      env: { PATH: `${path.join(folder, "bin")}:${process.env.PATH}` },
    });
    const [printed, errorOutput, [code]] = await Promise.all([
      text(child.stdout),
      text(child.stderr),
      once(child, "close"),
    ]);
    return { printed, message: errorOutput, code };
  }

  /** A fake Node of another version, which code run with -e sees. */
  const nodeOf = (major: number) => `#!/bin/sh
if [ "$1" = -e ]; then
  exec "${process.execPath}" -e "const process = { versions: { node: '${major}.1.0' }, exit: globalThis.process.exit }; $2"
fi
echo "ran $*"
`;
  const built = "src/gen/window/window.js";

  test("if nothing is built yet", async () => {
    expect(await startIn([], nodeOf(24))).toEqual({
      printed: "",
      message: "phoneproof is not built yet: run npm ci\n",
      code: 1,
    });
  });

  test("and its script runs from any folder", async () => {
    const { printed, message } = await startIn([built], nodeOf(24), tmpdir());
    expect([printed, message]).toEqual([expect.stringMatching(/^ran .* \/.+\/bin\/start\.mjs\n$/), ""]);
  });

  test("and its script runs through a link, with the project's own Node", async () => {
    const folder = await mkdtemp(path.join(tmpdir(), "phoneproof start-"));
    onTestFinished(() => rm(folder, { recursive: true }));
    for (const name of ["bin", "src/gen/window", "node_modules/.bin"]) {
      await mkdir(path.join(folder, name), { recursive: true });
    }
    await writeFile(path.join(folder, built), "");
    await writeFile(path.join(folder, "node_modules/.bin/node"), '#!/bin/sh\necho "ran $*"\n', {
      mode: 0o755,
    });
    await copyFile(path.join(import.meta.dirname, "../../bin/start.sh"), path.join(folder, "bin/start.sh"));
    await symlink("bin/start.sh", path.join(folder, "link"));
    const child = spawn("sh", [path.join(folder, "link")], {
      cwd: tmpdir(),
      stdio: ["ignore", "pipe", "pipe"],
      env: { PATH: "/usr/bin:/bin" },
    });
    const outputs = await Promise.all([text(child.stdout), text(child.stderr)]);
    expect(outputs).toEqual([expect.stringMatching(/^ran .* \/.+\/bin\/start\.mjs\n$/), ""]);
  });

  test("if the development tools are gone and the machine's Node is too old", async () => {
    expect(await startIn([built], nodeOf(20))).toEqual({
      printed: "",
      message: "phoneproof needs Node 24 or newer, which npm ci installs with the development tools\n",
      code: 1,
    });
  });

  test.for([
    { name: "the machine's Node is new enough", files: [built], major: 24 },
    { name: "the project's own Node is installed", files: [built, "node_modules/.bin/node"], major: 20 },
  ])("and prints nothing if $name", async ({ files, major }) => {
    const { printed, message } = await startIn(files, nodeOf(major));
    expect([printed, message]).toEqual([expect.stringMatching(/^ran .*bin\/start\.mjs\n$/), ""]);
  });
});
