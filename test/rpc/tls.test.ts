/** gRPC over TLS: docs/grpc.md, docs/settings.md. */

import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import tls from "node:tls";
import { afterAll, describe, expect, onTestFinished, test } from "vitest";
import { run } from "../cli/command.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { certificates } from "./certificates.ts";
import { statusTo } from "./status-over-tls.ts";

const { authority, otherAuthority, server, client, strangersClient } = certificates;

const ofServer = { GRPC_TLS_CERT: server.cert, GRPC_TLS_KEY: server.key };

const directory = await mkdtemp(path.join(tmpdir(), "phoneproof-tls-"));
afterAll(() => rm(directory, { recursive: true }));
const bothAuthorities = path.join(directory, "authorities.pem");
await writeFile(
  bothAuthorities,
  `${await readFile(authority, "utf8")}${await readFile(otherAuthority, "utf8")}`,
);

const oneSided = await startTestService(ofServer);
const mutual = await startTestService({ ...ofServer, GRPC_TLS_CA: authority });

/** Runs the command over TLS, with the settings that its help names. */
const listProjects = (
  { grpcAddress, adminToken }: TestService,
  environment: Readonly<Record<string, string>> = {},
  address = `https://${grpcAddress}`,
) =>
  run(["project", "list"], {
    PHONEPROOF_ADDRESS: address,
    PHONEPROOF_TOKEN: adminToken,
    ...environment,
  });

const refused = { code: 3, stdout: "" };

describe("a gRPC port with a certificate", () => {
  test("serves clients that trust its authority, including the command", async () => {
    expect(await statusTo(oneSided)).toBe("OK");
    expect(await listProjects(oneSided, { PHONEPROOF_TLS_CA: authority })).toMatchObject({
      code: 0,
      stderr: "",
    });
  });

  test("is not trusted by clients of another authority, and the command names the setting it needs", async () => {
    expect(await statusTo(oneSided, { trusted: otherAuthority })).toBe("UNAVAILABLE");
    for (const environment of [{}, { PHONEPROOF_TLS_CA: otherAuthority }]) {
      const answer = await listProjects(oneSided, environment);
      expect(answer).toMatchObject(refused);
      expect(answer.stderr).toMatch(
        /^phoneproof: [^\n]+ set PHONEPROOF_TLS_CA to the authority's certificate\n$/,
      );
    }
  });

  test("is not trusted by clients under a name that the certificate is not for, and the command says so", async () => {
    const service = await startTestService({ ...ofServer, GRPC_HOST: "127.0.0.2" });
    const address = `https://${service.grpcAddress}`;
    const answer = await listProjects(service, { PHONEPROOF_TLS_CA: authority }, address);
    expect(answer).toMatchObject(refused);
    expect(answer.stderr).toMatch(
      /^phoneproof: something listens at 127\.0\.0\.2:\d+, but the connection fails \(Hostname\/IP does not match certificate's altnames: [^\n]+\); use a host name in the address that the service's certificate is for\n$/,
    );
  });

  test("gets from the command the name that it is called by, but never an IP address", async () => {
    const names: unknown[] = [];
    const [cert, key] = await Promise.all([readFile(server.cert), readFile(server.key)]);
    const listening = tls.createServer({ cert, key, ALPNProtocols: ["h2"] }, (socket) => {
      names.push(socket.servername);
      socket.destroy();
    });
    listening.listen(0, "127.0.0.1");
    onTestFinished(() => void listening.close());
    await once(listening, "listening");
    const { port } = listening.address() as AddressInfo;
    for (const host of ["127.0.0.1", "localhost"])
      await listProjects(oneSided, { PHONEPROOF_TLS_CA: authority }, `https://${host}:${port}`);
    expect(new Set(names)).toEqual(new Set(["ip-address.invalid", "localhost"]));
  });

  test("does not serve plaintext clients, and the command says to use https", async () => {
    const { grpcAddress } = oneSided;
    const answer = await listProjects(oneSided, {}, `http://${grpcAddress}`);
    expect(answer).toMatchObject(refused);
    expect(answer.stderr).toContain(`write https://${grpcAddress}\n`);
  });

  test("listens on other interfaces without the setting that allows plaintext", async () => {
    const service = await startTestService({ ...ofServer, GRPC_HOST: "0.0.0.0" });
    const address = service.grpcAddress.replace("0.0.0.0", "127.0.0.1");
    expect(await statusTo({ ...service, grpcAddress: address })).toBe("OK");
  });
});

describe("a gRPC port with an authority for client certificates", () => {
  test("serves clients with a certificate of that authority, including the command", async () => {
    expect(await statusTo(mutual, { own: client })).toBe("OK");
    const environment = {
      PHONEPROOF_TLS_CA: authority,
      PHONEPROOF_TLS_CERT: client.cert,
      PHONEPROOF_TLS_KEY: client.key,
    };
    expect(await listProjects(mutual, environment)).toMatchObject({ code: 0, stderr: "" });
  });

  test.for([
    {
      name: "without a certificate",
      own: undefined,
      advice: "set PHONEPROOF_TLS_CERT and PHONEPROOF_TLS_KEY to a client certificate and its key",
    },
    {
      name: "with a certificate of another authority",
      own: strangersClient,
      advice:
        "the service may have rejected the certificate in PHONEPROOF_TLS_CERT: an authority in the service's GRPC_TLS_CA must have signed it",
    },
  ])("refuses a client $name, even with the admin token, and the command says what is required", async ({
    own,
    advice,
  }) => {
    expect(await statusTo(mutual, { own })).toBe("UNAVAILABLE");
    const shown = own && { PHONEPROOF_TLS_CERT: own.cert, PHONEPROOF_TLS_KEY: own.key };
    const answer = await listProjects(mutual, { PHONEPROOF_TLS_CA: authority, ...shown });
    expect(answer).toMatchObject(refused);
    expect(answer.stderr).toMatch(
      /^phoneproof: something listens at [^\n]+, but the connection fails [^\n]+\n$/,
    );
    expect(answer.stderr.endsWith(`; ${advice}\n`)).toBe(true);
  });

  test("accepts certificates of an old and a new authority while its file contains both", async () => {
    const service = await startTestService({ ...ofServer, GRPC_TLS_CA: bothAuthorities });
    for (const own of [client, strangersClient]) expect(await statusTo(service, { own })).toBe("OK");
    expect(await statusTo(service)).toBe("UNAVAILABLE");
  });
});
