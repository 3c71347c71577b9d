/** The command against a server that accepts connections but never answers, or that does not even accept them. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import { afterAll, describe, expect, onTestFinished, test } from "vitest";
import { type Running, startCommand, startDemo } from "./command.ts";
import { type SilentServer, startSilentServer } from "./silent-server.ts";

const token = { PHONEPROOF_TOKEN: "pp_svc_x" };
const toTidy: (() => void)[] = [];
afterAll(() => {
  for (const tidy of toTidy) tidy();
});

const silent = await startSilent();
const full = await startFull();

async function startSilent(): Promise<SilentServer> {
  const server = await startSilentServer();
  toTidy.push(() => server.close());
  return server;
}

/** Accepts no more connections: the process is stopped and its backlog is full. */
async function startFull() {
  const listen = `require("node:net").createServer()
    .listen({ port: 0, host: "127.0.0.1", backlog: 1 }, function () { process.stdout.write(String(this.address().port)); })`;
  const listener = spawn(process.execPath, ["-e", listen], { stdio: ["ignore", "pipe", "ignore"] });
  toTidy.push(() => void listener.kill("SIGKILL"));
  const [line] = (await once(listener.stdout, "data")) as [Buffer];
  const port = Number(line.toString());
  listener.kill("SIGSTOP");
  for (let waiting = 0; waiting < 2; waiting += 1) {
    const socket = connect(port, "127.0.0.1");
    toTidy.push(() => void socket.destroy());
    await once(socket, "connect");
  }
  return { address: `127.0.0.1:${port}` };
}

function started(running: Running): Running {
  toTidy.push(() => void running.child.kill("SIGKILL"));
  return running;
}

const commands = [
  ["project", "list"],
  ["verification", "watch", "vrf_x"],
  ["sms", "stream"],
  ["erase", "--phone", "01000000001"],
];
const [listing = []] = commands;

// Each takes as long as the deadline, so they run in parallel.
const runs = [
  ...commands.map((args) => [...args, "--address", silent.address]),
  ...[`https://${silent.address}`, full.address].map((address) => [...listing, "--address", address]),
].map((command) => ({ name: command.join(" "), running: started(startCommand(command, token)) }));
const demo = started(startDemo({ ...token, PHONEPROOF_ADDRESS: `https://${silent.address}` }));

describe("a service that does not answer within the deadline is reported with exit code 3, and the command ends", () => {
  test.for(runs)("phoneproof $name", async ({ running }) => {
    const { code, stdout, stderr } = await running.finished;
    expect({ code, stdout }).toEqual({ code: 3, stdout: "" });
    expect(stderr).toMatch(
      /^phoneproof: the service at 127\.0\.0\.1:\d+ did not answer within 10 s; [^\n]+\n$/,
    );
  });

  test("npm run demo", async () => {
    const { code, stderr } = await demo.finished;
    expect({ code, stderr }).toEqual({
      code: 3,
      stderr: expect.stringMatching(/^phoneproof: [^\n]+ did not answer within 10 s: run npm start first\n$/),
    });
  });
});

describe("long-running commands end at the first signal while they have no connection", () => {
  test.for([
    // All of them handle the three signals in one place.
    [["verification", "watch", "vrf_x"], "SIGINT", 130],
    [["erase", "--phone", "01000000001"], "SIGHUP", 129],
    [["sms", "stream", "--json"], "SIGTERM", 143],
  ] as const)("%j at %s", async ([args, signal, code]) => {
    const { address, dataReceived } = await startSilent();
    const running = startCommand([...args, "--address", `https://${address}`], token);
    onTestFinished(() => void running.child.kill("SIGKILL"));
    running.child.stdin?.write('{"message_id":"x","from":"01000000001","to":"1","text":"1"}\n');
    await dataReceived;
    running.child.kill(signal);
    expect(await running.finished).toEqual({ code, stdout: "", stderr: "" });
  });
});
