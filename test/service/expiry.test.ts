import { beforeAll, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";

let service: TestService;
let project: TestProject;

beforeAll(async () => {
  service = await startTestService();
  project = await service.createProject();
});

let created = 0;

async function create(): Promise<string> {
  const response = await fetch(`${service.httpUrl}/v1/verifications`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${project.liveKey}`,
      "content-type": "application/json",
      "idempotency-key": `expiry-${++created}`,
    },
    body: "{}",
  });
  const { id } = (await response.json()) as { id: string };
  return id;
}

/** Nobody reads: what moves a verification is the sweep. */
async function statuses(): Promise<Record<string, number>> {
  const { rows } = await service.db.query("SELECT status, count(*)::int FROM verification GROUP BY 1");
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]));
}

/** Moves the expiry of everything that is pending to `seconds` from now. */
const expireIn = (seconds: number) =>
  service.db.query(
    "UPDATE verification SET expires_at = now() + make_interval(secs => $1), created_at = now() - interval '1 hour' WHERE status = 'pending'",
    [seconds],
  );

test("within two seconds of its expiry a verification that nobody reads is expired, with its event", async () => {
  // The machine may be late, the service is not.
  for (let took = Number.POSITIVE_INFINITY; took >= 2; ) {
    const id = await create();
    await expireIn(0);
    await vi.waitUntil(async () => (await statuses()).pending === undefined, {
      timeout: 45_000,
      interval: 20,
    });
    const { rows } = await service.db.query(
      `SELECT e.type, extract(epoch FROM e.occurred_at - v.expires_at)::float8 AS took
       FROM event e JOIN verification v ON v.id = e.verification_id WHERE v.id = $1`,
      [decodeId("vrf_", id)],
    );
    expect(rows).toMatchObject([{ type: "verification.expired" }]);
    took = rows[0].took;
  }
});

test("what is not due stays pending", async () => {
  const { expired: before = 0 } = await statuses();
  await create();
  await expireIn(3600);
  await create();
  await service.db.query(
    "UPDATE verification SET expires_at = now(), created_at = now() - interval '1 hour' WHERE id = (SELECT max(id::text)::uuid FROM verification WHERE status = 'pending')",
  );
  await vi.waitUntil(async () => (await statuses()).expired === before + 1, {
    timeout: 45_000,
    interval: 20,
  });
  expect(await statuses()).toEqual({ expired: before + 1, pending: 1 });
});

test("a backlog is drained by several processes, each row once, while others are cancelled", async () => {
  await service.db.query("DELETE FROM event; DELETE FROM window_token; DELETE FROM verification");
  await Promise.all(Array.from({ length: 300 }, create));
  // Many more like these, without the wait for each.
  await service.db.query(
    `INSERT INTO verification
     SELECT gen_random_uuid(), project_id, environment, mode, status, expected_phone, phone, carrier, client_reference,
       state, parent_origin, return_url, destination, sms_text, created_at, expires_at, verified_at
     FROM verification, generate_series(1, 9)`,
  );
  const others = await Promise.all([service.startAnother({ ROLES: "worker" }), service.startAnother()]);
  const { rows: some } = await service.db.query("SELECT id FROM verification ORDER BY random() LIMIT 50");
  // Not at the same time as the test's own update: two that lock many rows in orders of their own may wait for each other.
  await expireIn(0);
  await service.db.query(
    `WITH cancelled AS (
       UPDATE verification SET status = 'cancelled' WHERE id = ANY ($1) AND status = 'pending' RETURNING id
     )
     INSERT INTO event SELECT id, 'verification.cancelled', now() FROM cancelled`,
    [some.map(({ id }) => id)],
  );
  await vi.waitUntil(async () => (await statuses()).pending === undefined, { timeout: 45_000, interval: 50 });
  const { expired = 0, cancelled: byHand = 0 } = await statuses();
  expect(expired + byHand).toBe(3_000);
  const { rows } = await service.db.query("SELECT type, count(*)::int FROM event GROUP BY 1 ORDER BY 1");
  expect(Object.fromEntries(rows.map(({ type, count }) => [type, count]))).toEqual({
    "verification.expired": expired,
    "verification.cancelled": byHand,
  });
  await Promise.all(others.map((other) => other.close()));
});
