/** Replaces name resolution during a test file by a local DNS server, with a stub of the system's resolver behind it. */
import { createSocket } from "node:dgram";
import dns, { Resolver } from "node:dns/promises";
import { once } from "node:events";
import { syncBuiltinESMExports } from "node:module";
import ipaddr from "ipaddr.js";
import { afterAll, beforeAll, beforeEach } from "vitest";
import type { ResolvedAddress } from "../../src/webhooks/name-resolution.ts";

/** null: the query fails; "silence": it is never answered. */
type Records = readonly string[] | null | "silence";

/** The DNS records by name. A name that is not listed does not exist. */
export type Names = Record<string, { readonly a: Records; readonly aaaa: Records }>;

export interface NameServer {
  names: Names;
  /** The names that were queried. */
  readonly asked: Set<string>;
  /** How many queries were never answered, and how many were. */
  unanswered: number;
  answered: number;
  /** While false, nothing listens where queries are sent. */
  isThere: boolean;
  /** The operating system's resolver. */
  bySystem: (name: string) => Promise<ResolvedAddress[]>;
}

const types = { 1: "a", 28: "aaaa" } as const;
const failed = 2;
const noSuchName = 3;
const unknown = () =>
  Promise.reject(Object.assign(new Error("getaddrinfo ENOTFOUND"), { code: "ENOTFOUND" }));

/** For the tests of the describe that calls it; emptied before each of them. */
export function nameServerOfSuite(): NameServer {
  const server: NameServer = {
    names: {},
    asked: new Set(),
    unanswered: 0,
    answered: 0,
    isThere: true,
    bySystem: unknown,
  };
  const socket = createSocket("udp4");
  const own = { Resolver: dns.Resolver, lookup: dns.lookup };

  function answerTo(query: Buffer): Buffer | null {
    const labels: string[] = [];
    let end = 12;
    for (let length = query[end] ?? 0; length > 0; length = query[end] ?? 0) {
      labels.push(query.toString("latin1", end + 1, end + 1 + length));
      end += 1 + length;
    }
    const name = labels.join(".");
    server.asked.add(name);
    const type = query.readUInt16BE(end + 1);
    const known = server.names[name];
    const addresses = known?.[types[type as keyof typeof types]];
    if (addresses === "silence") {
      server.unanswered++;
      return null;
    }
    server.answered++;
    const records = (addresses ?? []).map((address) => {
      const bytes = ipaddr.parse(address).toByteArray();
      return Buffer.from([0xc0, 0x0c, 0, type, 0, 1, 0, 0, 0, 0, 0, bytes.length, ...bytes]);
    });
    const code = known === undefined ? noSuchName : addresses === null ? failed : 0;
    const header = [query[0] ?? 0, query[1] ?? 0, 0x81, 0x80 | code, 0, 1, 0, records.length, 0, 0, 0, 0];
    return Buffer.concat([Buffer.from(header), query.subarray(12, end + 5), ...records]);
  }

  beforeAll(async () => {
    socket.on("message", (query, { port, address }) => {
      const answer = answerTo(query);
      if (answer !== null) socket.send(answer, port, address);
    });
    socket.bind(0, "127.0.0.1");
    await once(socket, "listening");
    const address = `127.0.0.1:${socket.address().port}`;
    const closed = createSocket("udp4").bind(0, "127.0.0.1");
    await once(closed, "listening");
    const nowhere = `127.0.0.1:${closed.address().port}`;
    closed.close();
    class ToThisServer extends Resolver {
      constructor(options?: ConstructorParameters<typeof Resolver>[0]) {
        super(options);
        this.setServers([server.isThere ? address : nowhere]);
      }
    }
    Object.assign(dns, { Resolver: ToThisServer, lookup: (name: string) => server.bySystem(name) });
    syncBuiltinESMExports();
  });

  beforeEach(() => {
    server.names = {};
    server.asked.clear();
    server.unanswered = 0;
    server.answered = 0;
    server.isThere = true;
    server.bySystem = unknown;
  });

  afterAll(async () => {
    Object.assign(dns, own);
    syncBuiltinESMExports();
    socket.close();
  });

  return server;
}
