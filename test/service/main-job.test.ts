import { beforeAll, expect, test } from "vitest";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";

let service: TestService;
let project: TestProject;

beforeAll(async () => {
  service = await startTestService();
  project = await service.createProject();
});

async function call(method: string, path: string, key: string, body?: unknown, idempotencyKey?: string) {
  const response = await fetch(`${service.httpUrl}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(body === undefined ? {} : { "content-type": "application/json" }),
      ...(idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, string> };
}

test("a verification created over REST is verified by an SMS streamed in over gRPC", async () => {
  const created = await call(
    "POST",
    "/v1/verifications",
    project.liveKey,
    { client_reference: "order-1" },
    "main-job-1",
  );
  expect(created.status).toBe(201);
  const { id, destination = "", sms_text = "" } = created.body;

  const [receipt] = await service.sms({
    to: destination,
    from: "010-1234-5678",
    text: sms_text,
    carrier: "LGT",
  });
  expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId: id, duplicate: false });

  const read = await call("GET", `/v1/verifications/${id}`, project.liveKey);
  expect(read.status).toBe(200);
  expect(read.body).toMatchObject({
    id,
    status: "verified",
    environment: "live",
    phone: "01012345678",
    carrier: "LGU+",
    client_reference: "order-1",
  });
  expect(Date.parse(read.body.verified_at ?? "")).toBeGreaterThanOrEqual(
    Date.parse(read.body.created_at ?? ""),
  );
  const { rows } = await service.db.query("SELECT type FROM event");
  expect(rows).toEqual([{ type: "verification.verified" }]);
});
