/** Replacing the gRPC port's certificate files while a process runs: docs/settings.md, docs/secrets.md. */

import { X509Certificate } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { copyFile, mkdtemp, readFile, rename, rm, unlink, writeFile } from "node:fs/promises";
import http2 from "node:http2";
import { tmpdir } from "node:os";
import path from "node:path";
import tls from "node:tls";
import { pino } from "pino";
import { afterAll, afterEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { createRenewalCheck, renewCertificate } from "../../src/grpc-certificate.ts";
import { startService } from "../../src/service.ts";
import { readGrpcTls } from "../../src/tls-files.ts";
import { createDatabase } from "../harness/database.ts";
import { shortenTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { certificates } from "./certificates.ts";
import { statusTo } from "./status-over-tls.ts";

const { authority, otherAuthority, server, renewed, expired, client, strangersClient } = certificates;
const { expiredAuthority, intermediate, intermediatesClient, trustedIntermediate, pinnedClient } =
  certificates;

const directory = await mkdtemp(path.join(tmpdir(), "phoneproof-renewal-"));
afterAll(() => rm(directory, { recursive: true }));
let placesMade = 0;

/** Copies of the server's certificate files for a test to replace, and settings that name them. */
async function placeFiles(ca: string | null = null) {
  const place = path.join(directory, String(++placesMade));
  const files = { cert: `${place}.crt`, key: `${place}.key`, ca: ca && `${place}-ca.crt` };
  /** Replaces a file atomically, as renewal tools do, so that nobody reads a half-written one. */
  const replace = async (file: string, source: string) => {
    await copyFile(source, `${file}.new`);
    await rename(`${file}.new`, file);
  };
  await replace(files.cert, server.cert);
  await replace(files.key, server.key);
  if (ca && files.ca) await replace(files.ca, ca);
  const settings = { GRPC_TLS_CERT: files.cert, GRPC_TLS_KEY: files.key, GRPC_TLS_CA: files.ca ?? "" };
  return { files, settings, replace };
}

/** A log, and the messages written to it. */
function listen() {
  const logged: string[] = [];
  const destination = {
    write(line: string) {
      const { msg, reason } = JSON.parse(line);
      logged.push(reason === undefined ? msg : `${msg}: ${reason}`);
    },
  };
  return { logged, log: pino({ level: "info" }, destination) };
}

/** A service that checks its files twenty times a second. */
async function start(settings: Readonly<Record<string, string>>) {
  shortenTimers(60_000);
  const { url, drop } = await createDatabase();
  const { logged, log } = listen();
  const ports = { PORT: "0", GRPC_PORT: "0", OPS_PORT: "0" };
  const config = parseConfig({ ...ports, DATABASE_URL: url, ROLES: "api", ...settings });
  const service = await startService(config, log);
  onTestFinished(async () => {
    await service.close();
    await drop();
  });
  const { grpc, ops } = service.addresses;
  return { grpcAddress: grpc, opsUrl: `http://${ops}`, logged };
}

const expiryIn = (file: string) => new X509Certificate(readFileSync(file)).validToDate.getTime() / 1000;
const expiryShown = async ({ opsUrl }: { readonly opsUrl: string }) =>
  (await scrape(opsUrl)).sum("phoneproof_grpc_certificate_expiry_timestamp_seconds");

const unusable = "the gRPC port keeps its certificate: the new files are not usable";
const presented = "the gRPC port presents a renewed certificate to new connections";

describe("certificate files that are replaced while a process runs", () => {
  test("are used for new connections once certificate and key match; a certificate alone changes nothing", async () => {
    const { files, settings, replace } = await placeFiles();
    const service = await start(settings);
    expect(await statusTo(service)).toBe("OK");
    expect(await expiryShown(service)).toBe(expiryIn(server.cert));
    const before = http2.connect(`https://${service.grpcAddress}`, { rejectUnauthorized: false });
    onTestFinished(() => before.destroy());

    await replace(files.cert, renewed.cert);
    await vi.waitUntil(() => service.logged.some((logged) => logged.startsWith(unusable)), {
      timeout: 45_000,
    });
    expect(await statusTo(service)).toBe("OK");
    expect(await statusTo(service, { trusted: renewed.cert })).toBe("UNAVAILABLE");
    expect(await expiryShown(service)).toBe(expiryIn(server.cert));

    await replace(files.key, renewed.key);
    await expect.poll(() => statusTo(service, { trusted: renewed.cert })).toBe("OK");
    expect(await statusTo(service)).toBe("UNAVAILABLE");
    expect(service.logged.filter((logged) => logged.includes("certificate"))).toEqual([
      `${unusable}: GRPC_TLS_KEY names a file that cannot be used for TLS (ERR_OSSL_X509_KEY_VALUES_MISMATCH)`,
      presented,
    ]);
    await new Promise<void>((resolve, reject) => {
      before.ping((error) => (error ? reject(error) : resolve()));
    });
  });

  test("keep client certificates required, signed by the authority that is configured now", async () => {
    const { files, settings, replace } = await placeFiles(authority);
    const service = await start(settings);
    const refused = "UNAVAILABLE";
    expect(await statusTo(service, { own: client })).toBe("OK");
    await replace(files.cert, renewed.cert);
    await replace(files.key, renewed.key);
    const trusted = renewed.cert;
    await expect.poll(() => statusTo(service, { own: client, trusted })).toBe("OK");
    expect(await statusTo(service, { trusted })).toBe(refused);
    expect(await statusTo(service, { own: strangersClient, trusted })).toBe(refused);

    await replace(files.ca ?? "", otherAuthority);
    await expect.poll(() => statusTo(service, { own: strangersClient, trusted })).toBe("OK");
    expect(await statusTo(service, { own: client, trusted })).toBe(refused);
    expect(await statusTo(service, { trusted })).toBe(refused);
  });

  test("do not replace authorities for clients by expired ones; of several in the file, one may have expired", async () => {
    const { files, settings, replace } = await placeFiles(authority);
    const service = await start(settings);
    await replace(files.ca ?? "", expired.cert);
    const fault = "GRPC_TLS_CA names a certificate that expired at 2021-01-01T00:00:00.000Z";
    await expect.poll(() => service.logged, { timeout: 45_000 }).toContain(`${unusable}: ${fault}`);
    expect(await statusTo(service, { own: client })).toBe("OK");

    const both = path.join(directory, "expired-and-other.pem");
    await writeFile(both, `${await readFile(expired.cert, "utf8")}${await readFile(otherAuthority, "utf8")}`);
    await replace(files.ca ?? "", both);
    await expect.poll(() => statusTo(service, { own: strangersClient }), { timeout: 45_000 }).toBe("OK");
    expect(await statusTo(service, { own: client })).toBe("UNAVAILABLE");
  });

  test.for([
    {
      name: "has expired",
      authorities: [expiredAuthority, intermediate],
      fault: "GRPC_TLS_CA names a certificate that expired at 2021-01-01T00:00:00.000Z",
    },
    {
      name: "is missing",
      authorities: [intermediate],
      fault:
        "GRPC_TLS_CA names a file without the root certificate of O=phoneproof\\, for tests only, CN=intermediate",
    },
  ])("do not replace authorities for clients by an intermediate one whose root $name", async ({
    authorities,
    fault,
  }) => {
    const chain = path.join(directory, "chain.pem");
    await writeFile(chain, (await Promise.all(authorities.map((file) => readFile(file, "utf8")))).join(""));
    const { files, settings, replace } = await placeFiles(chain);
    const service = await start(settings);
    expect(service.logged).toContain(`${fault}: every client is refused`);
    expect(await statusTo(service, { own: intermediatesClient })).toBe("UNAVAILABLE");
    await replace(files.ca ?? "", authority);
    await expect.poll(() => statusTo(service, { own: client }), { timeout: 45_000 }).toBe("OK");
    await replace(files.ca ?? "", chain);
    await expect.poll(() => service.logged, { timeout: 45_000 }).toContain(`${unusable}: ${fault}`);
    expect(await statusTo(service, { own: client })).toBe("OK");
  });

  test.for([
    { name: "clients' own, which are self-signed", pem: [pinnedClient.cert], own: pinnedClient },
    { name: "an intermediate one that needs no root", pem: [trustedIntermediate], own: intermediatesClient },
    {
      name: "several in a file, each behind a byte order mark",
      pem: [otherAuthority, authority],
      mark: "\ufeff",
      own: client,
    },
  ])("name any authorities that verify clients for TLS, without a warning: $name", async ({
    pem,
    mark = "",
    own,
  }) => {
    const file = path.join(directory, "verifying.pem");
    const texts = await Promise.all(pem.map((one) => readFile(one, "utf8")));
    await writeFile(file, texts.map((text) => mark + text).join(""));
    const { files, settings, replace } = await placeFiles(file);
    const service = await start(settings);
    expect(await statusTo(service, { own })).toBe("OK");
    expect(service.logged.filter((logged) => logged.includes("GRPC_TLS_CA"))).toEqual([]);

    await replace(files.ca ?? "", otherAuthority);
    await expect.poll(() => statusTo(service, { own }), { timeout: 45_000 }).toBe("UNAVAILABLE");
    await replace(files.ca ?? "", file);
    await expect.poll(() => statusTo(service, { own }), { timeout: 45_000 }).toBe("OK");
  });

  test("renew the certificate also while the authorities for clients, which were not replaced, have expired", async () => {
    const { files, settings, replace } = await placeFiles(expired.cert);
    const service = await start(settings);
    expect(service.logged).toContain(
      "GRPC_TLS_CA names a certificate that expired at 2021-01-01T00:00:00.000Z: every client is refused",
    );
    await replace(files.cert, renewed.cert);
    await replace(files.key, renewed.key);
    await expect.poll(() => service.logged, { timeout: 45_000 }).toContain(presented);
  });

  test("make TLS sessions from before impossible to resume", async () => {
    const { files, settings, replace } = await placeFiles();
    const service = await start(settings);
    const [host = "", port = ""] = service.grpcAddress.split(":");
    async function connect(session?: Buffer) {
      const options = { host, port: Number(port), ALPNProtocols: ["h2"], rejectUnauthorized: false, session };
      const socket = tls.connect(options);
      onTestFinished(() => void socket.destroy());
      // The server's first data comes after the session tickets.
      await once(socket, "data");
      return { isReused: socket.isSessionReused(), session: socket.getSession() };
    }
    const { session } = await connect();
    expect(await connect(session)).toMatchObject({ isReused: true });
    await replace(files.cert, renewed.cert);
    await replace(files.key, renewed.key);
    await expect.poll(() => statusTo(service, { trusted: renewed.cert })).toBe("OK");
    expect(await connect(session)).toMatchObject({ isReused: false });
  });
});

test("a process starts with an expired certificate, warns about it, and presents the one that replaces it", async () => {
  const { files, settings, replace } = await placeFiles();
  await replace(files.cert, expired.cert);
  await replace(files.key, expired.key);
  const service = await start(settings);
  expect(service.logged).toContain(
    "GRPC_TLS_CERT names a certificate that expired at 2021-01-01T00:00:00.000Z: clients refuse it",
  );
  expect(await expiryShown(service)).toBe(expiryIn(expired.cert));
  await replace(files.cert, renewed.cert);
  await replace(files.key, renewed.key);
  await expect.poll(() => expiryShown(service), { timeout: 45_000 }).toBe(expiryIn(renewed.cert));
});

test("without TLS the metric of the certificate's expiry has no value", async () => {
  const service = await start({});
  const { text, samples } = await scrape(service.opsUrl);
  const name = "phoneproof_grpc_certificate_expiry_timestamp_seconds";
  expect(text).toContain(`# TYPE ${name} gauge`);
  expect(samples.filter((sample) => sample.name === name)).toEqual([]);
});

describe("a check of the files", () => {
  afterEach(() => {
    vi.useRealTimers();
  });
  const at = (time: string) => vi.useFakeTimers({ toFake: ["Date"], now: new Date(time) });

  /** The port starts with the server's certificate. */
  async function prepared() {
    const placed = await placeFiles();
    const { logged, log } = listen();
    const [take, onExpiry] = [vi.fn(), vi.fn()];
    const read = () => readGrpcTls(placed.files);
    const parts = { first: read(), read, take, onExpiry, log };
    const taken = () => take.mock.calls.map(([{ cert }]) => cert);
    return { ...placed, parts, check: createRenewalCheck(parts), logged, taken };
  }

  test("that finds no change logs nothing", async () => {
    const { check, logged, taken, files, replace } = await prepared();
    check();
    await replace(files.cert, server.cert);
    check();
    expect([logged, taken()]).toEqual([[], []]);
  });

  test("reports unusable files once per content, and uses the files once they are valid", async () => {
    const { check, logged, taken, files, replace } = await prepared();
    const checkTwice = () => {
      check();
      check();
      return logged.splice(0).map((line) => line.replace(`${unusable}: `, ""));
    };
    const cannot = "names a file that cannot be";
    await unlink(files.key);
    expect(checkTwice()).toEqual([`GRPC_TLS_KEY ${cannot} read (ENOENT)`]);
    await replace(files.key, renewed.key);
    const mismatch = `GRPC_TLS_KEY ${cannot} used for TLS (ERR_OSSL_X509_KEY_VALUES_MISMATCH)`;
    expect(checkTwice()).toEqual([mismatch]);
    await replace(files.key, client.key);
    expect(checkTwice()).toEqual([mismatch]);
    await writeFile(files.cert, (await readFile(renewed.cert, "utf8")).slice(0, 300));
    expect(checkTwice()).toEqual([expect.stringContaining(`GRPC_TLS_CERT ${cannot} used for TLS`)]);
    expect(taken()).toEqual([]);
    await replace(files.cert, renewed.cert);
    await replace(files.key, renewed.key);
    expect(checkTwice()).toEqual([presented]);
    expect(taken()).toEqual([await readFile(renewed.cert, "utf8")]);
  });

  test("does not use an expired certificate, and uses one that is not valid yet once it is", async () => {
    const { check, logged, taken, files, replace } = await prepared();
    await replace(files.cert, expired.cert);
    await replace(files.key, expired.key);
    check();
    check();
    expect(logged.splice(0)).toEqual([
      `${unusable}: GRPC_TLS_CERT names a certificate that expired at 2021-01-01T00:00:00.000Z`,
    ]);
    await replace(files.cert, renewed.cert);
    await replace(files.key, renewed.key);
    at("2020-12-31T23:59:59Z");
    check();
    check();
    expect(logged.splice(0)).toEqual([
      `${unusable}: GRPC_TLS_CERT names a certificate that is not valid before 2021-01-01T00:00:00.000Z`,
    ]);
    expect(taken()).toEqual([]);
    at("2021-01-01T00:00:00Z");
    check();
    expect(taken()).toEqual([await readFile(renewed.cert, "utf8")]);
  });

  test("at the start warns about a certificate that is not valid yet", async () => {
    const { parts, logged } = await prepared();
    at("2019-12-31T23:59:59Z");
    renewCertificate(parts);
    expect(logged).toEqual([
      "GRPC_TLS_CERT names a certificate that is not valid before 2020-01-01T00:00:00.000Z: clients refuse it",
    ]);
    expect(parts.onExpiry).toHaveBeenCalledWith(new Date("2120-01-01T00:00:00Z"));
  });
});
