import { once } from "node:events";
import net from "node:net";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { createDatabase, type TestDatabase } from "../harness/database.ts";
import { startProcess } from "./service-process.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createDatabase();
});
afterAll(() => database.drop());

test("the ops port answers an unknown path with 404 and the paths that exist", async () => {
  const { opsUrl } = await startProcess({ DATABASE_URL: database.url });
  const answer = await fetch(`${opsUrl}/nope`);
  expect(answer.status).toBe(404);
  expect(await answer.text()).toBe("not found: there are /healthz, /readyz and /metrics\n");
});

test(
  "half a request at the ops port does not keep the service from ending",
  { timeout: 120_000 },
  async () => {
    const service = await startProcess({ DATABASE_URL: database.url });
    const socket = net.connect(Number(new URL(service.opsUrl).port), "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    socket.on("error", () => {});
    await once(socket, "connect");
    // A whole request first, whose answer shows that the connection is being read.
    socket.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    await once(socket, "data");
    socket.write("GET /healthz HTTP/1.1\r\nHost: ");
    expect((await fetch(`${service.opsUrl}/healthz`)).status).toBe(200);
    service.child.kill("SIGTERM");
    expect(await service.ended()).toBe(0);
  },
);
