/** A proxy between a service and its Postgres that fails as networks do. */

import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";

export type NetworkState =
  | "fine"
  /** Connections are refused. */
  | "refused"
  /** Connections open and stay open, but carry no data; what was sent meanwhile arrives afterwards. */
  | "black hole"
  /** As before, but connections that were open before stay dead forever, as with a firewall that has lost its state table. */
  | "dead"
  /** Each chunk is delayed. */
  | "slow";

export interface DatabaseProxy {
  readonly port: number;
  /** The address for new connections. */
  target: { readonly host: string; readonly port: number };
  setState(networkState: NetworkState): Promise<void>;
  /** Resets all connections. */
  reset(): void;
  /**
   * Breaks the next connection that carries one of these prepared statements: with `answered`, after the server has answered,
   * so that the statement is committed but the client does not learn of it; with `sent`, as soon as it was sent. Resolves once
   * that has happened.
   */
  cutAt(statements: readonly string[], when: "sent" | "answered"): Promise<string>;
  close(): Promise<void>;
}

const slowMs = 150;

interface Pair {
  readonly client: Socket;
  readonly upstream: Socket;
  /** Carries no data any more. */
  dead: boolean;
  /** The statement after whose answer the connection breaks. */
  doomed: string | undefined;
}

export async function startDatabaseProxy(target: DatabaseProxy["target"]): Promise<DatabaseProxy> {
  const pairs = new Set<Pair>();
  let networkState: NetworkState = "fine";
  let changed = Promise.withResolvers<void>();
  let cut: { statements: readonly string[]; when: string; happened: (statement: string) => void } | undefined;

  function breakPair(pair: Pair): void {
    pair.client.resetAndDestroy();
    pair.upstream.destroy();
    pairs.delete(pair);
  }

  async function forward(pair: Pair, source: Socket, sink: Socket, piece: Buffer): Promise<void> {
    while (networkState === "black hole" || networkState === "dead") await changed.promise;
    if (pair.dead) return;
    if (networkState === "slow") await new Promise((resolve) => setTimeout(resolve, slowMs));
    if (source === pair.upstream && pair.doomed !== undefined) {
      cut?.happened(pair.doomed);
      cut = undefined;
      breakPair(pair);
      return;
    }
    const named =
      source === pair.client && cut !== undefined ? statementIn(piece, cut.statements) : undefined;
    if (named !== undefined && cut?.when === "answered") pair.doomed = named;
    if (sink.destroyed) return;
    const written = sink.write(piece, () => {
      if (named === undefined || cut?.when !== "sent") return;
      cut.happened(named);
      cut = undefined;
      breakPair(pair);
    });
    if (!written) await once(sink, "drain").catch(() => {});
  }

  /** Forwards chunks strictly in order, whatever delays each of them. */
  function carry(pair: Pair, source: Socket, sink: Socket): void {
    let queue = Promise.resolve();
    source.on("data", (piece: Buffer) => {
      source.pause();
      queue = queue.then(() => forward(pair, source, sink, piece)).then(() => void source.resume());
    });
  }

  function accept(client: Socket): void {
    const upstream = connect(proxy.target.port, proxy.target.host);
    const pair: Pair = { client, upstream, dead: false, doomed: undefined };
    pairs.add(pair);
    const end = () => {
      if (pair.dead) return;
      // A firewall that drops packets also hides the end of a connection.
      if (networkState === "black hole" || networkState === "dead") void changed.promise.then(end);
      else {
        client.destroy();
        upstream.destroy();
        pairs.delete(pair);
      }
    };
    for (const socket of [client, upstream]) {
      socket.setNoDelay(true);
      socket.on("error", end).on("close", end);
    }
    carry(pair, client, upstream);
    carry(pair, upstream, client);
  }

  let server: Server | undefined;
  async function listen(port: number): Promise<number> {
    server = createServer(accept);
    server.listen(port, "127.0.0.1");
    await once(server, "listening");
    return (server.address() as { port: number }).port;
  }

  const port = await listen(0);
  const proxy: DatabaseProxy = {
    port,
    target,
    async setState(next) {
      networkState = next;
      if (next === "dead") for (const pair of pairs) pair.dead = true;
      changed.resolve();
      changed = Promise.withResolvers();
      if (next === "refused") {
        const closing = server;
        server = undefined;
        closing?.close();
        for (const pair of [...pairs]) breakPair(pair);
      } else if (server === undefined) {
        await listen(port);
      }
    },
    reset() {
      for (const pair of [...pairs]) breakPair(pair);
    },
    cutAt: (statements, when) =>
      new Promise((resolve) => {
        cut = { statements, when, happened: resolve };
      }),
    async close() {
      networkState = "fine";
      changed.resolve();
      server?.close();
      for (const { client, upstream } of pairs) {
        client.destroy();
        upstream.destroy();
      }
    },
  };
  return proxy;
}

/** A Bind message contains the prepared statement's name between the NUL of the empty portal name and its own NUL. */
function statementIn(piece: Buffer, statements: readonly string[]): string | undefined {
  return statements.find((statement) => piece.includes(`\0${statement}\0`));
}
