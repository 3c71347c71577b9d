import { once } from "node:events";
import net from "node:net";
import { atFileEnd } from "./endings.ts";

/** A proxy in front of the database that can cut its connections, or pass nothing on, until it is restored. */
export async function startCuttableProxy(databaseUrl: string) {
  const url = new URL(databaseUrl);
  const [host, port] = [url.hostname, Number(url.port)];
  const ends = new Set<net.Socket>();
  /** The bytes sent to the database, by connection. */
  const sent = new Map<net.Socket, string>();
  let isCut = false;
  let isHanging = false;
  let held: { readonly text: string; readonly onHeld: () => void } | undefined;
  const server = net.createServer((near) => {
    // Keeps listening while cut: otherwise another program could take the port.
    if (isCut) return void near.resetAndDestroy();
    const far = net.connect(port, host);
    near.on("data", (bytes) => {
      sent.set(near, `${sent.get(near) ?? ""}${bytes.toString("latin1")}`);
      if (held === undefined || !bytes.includes(held.text)) return;
      far.pause();
      held.onHeld();
      held = undefined;
    });
    for (const [end, other] of [[near, far] as const, [far, near] as const]) {
      ends.add(end);
      end.on("error", () => {});
      end.on("close", () => {
        ends.delete(end);
        other.destroy();
      });
      end.pipe(other);
      if (isHanging) end.pause();
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port: near } = server.address() as net.AddressInfo;
  url.host = `127.0.0.1:${near}`;
  const cut = () => {
    isCut = true;
    for (const end of ends) end.destroy();
  };
  const restore = () => {
    isCut = false;
    isHanging = false;
    for (const end of ends) end.resume();
  };
  /** Like a network that has forgotten the open connections. New ones work. */
  const forget = () => {
    for (const end of ends) end.pause();
  };
  const hang = () => {
    isHanging = true;
    forget();
  };
  /**
   * Passes on no answer to the next statement that contains the text, until restored. Resolves when it was sent. A service at
   * `databaseUrl` gives such a connection up after little more than a second.
   */
  const holdAnswerTo = (text: string) =>
    new Promise<void>((resolve) => {
      held = { text, onHeld: resolve };
    });
  atFileEnd(() => {
    server.close();
    cut();
  });
  /** How many times a text was sent to the database. */
  const timesSent = (text: string) =>
    [...sent.values()].reduce((times, bytes) => times + bytes.split(text).length - 1, 0);
  /** Here the server does not tell which statements it works on, so that the service takes no held answer for a lost connection. */
  const patientUrl = `${url.href}?options=-c%20track_activities%3Doff`;
  return { databaseUrl: url.href, patientUrl, cut, restore, hang, forget, holdAnswerTo, timesSent };
}
