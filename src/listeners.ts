/**
 * Accepts a server's connections through several sockets on one port. In each round of the event loop, Node accepts
 * one connection from each listening socket. With a single socket a busy process accepts a few hundred connections a
 * second: clients that open one for each request, as nginx does unless it is told otherwise, would wait more than
 * ten times as long as those that keep theirs.
 */

import { once } from "node:events";
import net, { type AddressInfo, type Server } from "node:net";
import { setTimeout as delay } from "node:timers/promises";

/** More accept no more: see docs/performance.md. */
const count = 16;

/** A turn ends within milliseconds, unless its process is stopped in the middle of it. */
const longestTurnMs = 1_000;

interface Address {
  readonly host: string;
  readonly port: number;
}

export interface Listeners {
  /**
   * Listens through `listenFirst`, which resolves once `server` listens, and through further sockets. Fails if another
   * program uses the port.
   */
  open(
    server: Server,
    address: Address,
    listenFirst: (options: Address & { readonly reusePort?: boolean }) => Promise<unknown>,
  ): Promise<AddressInfo>;
  /** Stops accepting connections through the further sockets. */
  stop(): void;
  /** Resolves once all connections that the further sockets accepted are closed. */
  ended(): Promise<void>;
}

export function createListeners(): Listeners {
  const further: net.Server[] = [];
  const endings: Promise<unknown>[] = [];
  let isStopped = false;

  const listenFurther = async (server: Server, options: net.ListenOptions) => {
    // Not in its type: whether a connection that its client has ended can still be written to.
    const { allowHalfOpen } = server as { readonly allowHalfOpen?: boolean };
    const listener = net.createServer({ allowHalfOpen: allowHalfOpen === true, noDelay: true }, (socket) =>
      server.emit("connection", socket),
    );
    listener.listen(options);
    await once(listener, "listening");
    endings.push(once(listener, "close"));
    if (isStopped) listener.close();
    else further.push(listener);
  };

  return {
    async open(server, { host, port }, listenFirst) {
      const isShared =
        canShare &&
        (await takingTurns(port, async () => {
          // Sockets that share a port share it with those of other programs, too.
          if (port !== 0) await failIfUsed(host, port);
          return listenFirst({ host, port, reusePort: true }).then(
            () => true,
            () => false,
          );
        }));
      if (!isShared) await listenFirst({ host, port });
      const address = server.address() as AddressInfo;
      // A name may stand for several addresses, of which one was chosen.
      const chosen = { host: net.isIP(host) === 0 ? address.address : host, port: address.port };
      for (let opened = 1; isShared && opened < count; opened++)
        await listenFurther(server, { ...chosen, reusePort: true });
      return address;
    },
    stop() {
      isStopped = true;
      for (const listener of further) listener.close();
    },
    async ended() {
      await Promise.all(endings);
    },
  };
}

/** Other systems do not distribute connections among sockets that share a port, or have no abstract names for `takingTurns`. */
const canShare = process.platform === "linux";

async function failIfUsed(host: string, port: number): Promise<void> {
  const probe = net.createServer().listen({ host, port });
  await once(probe, "listening");
  probe.close();
  await once(probe, "close");
}

/**
 * Runs `take` while no other process on this machine does it for the same port: between looking at a port and listening on
 * it, another could. The turn is a listening socket of an abstract name, which ends with its process.
 */
async function takingTurns<T>(port: number, take: () => Promise<T>): Promise<T> {
  const until = performance.now() + longestTurnMs;
  for (;;) {
    const turn = net.createServer().listen(`\0phoneproof-port-${port}`);
    const isMine = await once(turn, "listening").then(
      () => true,
      () => false,
    );
    if (!isMine && performance.now() < until) {
      await delay(5);
      continue;
    }
    try {
      return await take();
    } finally {
      if (isMine) turn.close();
    }
  }
}
