/** What the commands about verifications answer. */

import { beforeAll, describe, expect, test, vi } from "vitest";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { uuidOf } from "../service/pending.ts";
import { answerOf, linesOf, run, startCommand, towards } from "./command.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { id, time } from "./shapes.ts";

let service: TestService;
let shop: TestProject;
let environment: Record<string, string>;

beforeAll(async () => {
  service = await startTestService();
  shop = await service.createProject({ name: "Shop" });
  environment = towards(service);
});

const answer = (...args: string[]) => answerOf(args, environment);

/** The lines of the human-readable output in a terminal of `columns` columns. */
const seen = (columns: number, ...args: string[]) => linesOf(columns, args, environment);

describe("verification", () => {
  const create = (...args: string[]) =>
    answer("verification", "create", "--project", shop.projectId, "--environment", "test", ...args);

  test("create and list need neither --project nor --environment with a merchant's key", async () => {
    const byKey = { ...environment, PHONEPROOF_TOKEN: shop.testKey };
    const created = await answerOf(["verification", "create"], byKey);
    expect(created).toMatchObject({ status: "pending", environment: "test" });
    expect(await answerOf(["verification", "list", "--limit", "1"], byKey)).toMatchObject({
      verifications: [{ id: created.id }],
    });
    expect(await run(["verification", "create"], environment)).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^phoneproof: validation_failed: --project: .+; --environment: /),
    });
  });

  test("create and show return the REST API's fields plus the project", async () => {
    const created = await create(
      ...[
        "--mode",
        "match",
        "--expected-phone",
        "010-0000-1234",
        "--client-reference",
        "order 7",
        "--state",
        "s7",
      ],
      ...["--idempotency-key", "answers-create"],
    );
    const result = {
      id: id("vrf"),
      status: "pending",
      environment: "test",
      mode: "match",
      phone: null,
      carrier: null,
      client_reference: "order 7",
      state: "s7",
      created_at: time,
      expires_at: time,
      verified_at: null,
      server_time: time,
      project_id: shop.projectId,
    };
    expect(created).toEqual({
      ...result,
      verification_url: expect.stringContaining("/v/"),
      destination: shop.testNumber,
      sms_text: expect.stringMatching(/\d{8}/),
      idempotency_key: "answers-create",
      idempotent_replayed: false,
    });
    expect(await answer("verification", "show", created.id)).toEqual({
      ...result,
      id: created.id,
      history: {
        destination: shop.testNumber,
        masked_expected_phone: "010-****-1234",
        ended_at: null,
        pending_reason: null,
        pending_reason_at: null,
        messages: [],
        unmatched_messages: [],
        webhook_id: null,
        deliveries: [],
      },
    });
  });

  test("the same idempotency key returns the same verification", async () => {
    const first = await create("--idempotency-key", "answers-again");
    expect(await create("--idempotency-key", "answers-again")).toEqual({
      ...first,
      idempotent_replayed: true,
    });
  });

  test("a verified verification has the carrier as LGU+, like the REST API", async () => {
    const { id, sms_text } = await create();
    await service.sms({ to: shop.testNumber, from: "01000000042", text: sms_text, carrier: "LG U+" });
    expect(await answer("verification", "show", id)).toMatchObject({
      status: "verified",
      phone: "01000000042",
      carrier: "LGU+",
      verified_at: time,
    });
  });

  test("show tells what became of the messages, with masked senders", async () => {
    const { id, sms_text } = await create("--mode", "match", "--expected-phone", "010-0000-4301");
    const message = { to: shop.testNumber, from: "01000004302", text: sms_text, carrier: "SKT" };
    await service.sms({ ...message, messageId: "answers-4302" });
    const { history } = await answer("verification", "show", id);
    expect(history).toMatchObject({
      masked_expected_phone: "010-****-4301",
      pending_reason: "another_number",
      pending_reason_at: time,
      messages: [
        {
          source: "cli",
          message_id: "answers-4302",
          masked_sender: "010-****-4302",
          carrier: "SKT",
          received_at: null,
          ingested_at: time,
          outcome: "SENDER_MISMATCH",
          duplicate: false,
        },
      ],
    });
    const lines = await seen(200, "verification", "show", id);
    expect(lines).toContain(
      `No unmatched message is stored that came to ${shop.testNumber} while it was pending.`,
    );
    expect(lines).toContainEqual(
      expect.stringMatching(/^window said +\S.*: a message with its code came from another number/),
    );
    expect(lines).toContainEqual(expect.stringMatching(/ 010-\*{4}-4302 +SENDER_MISMATCH +SKT /));
    expect(lines.join("\n")).not.toMatch(/0100000430/);
  });

  test("show tells of a verification that has ended whether its event was sent", async () => {
    const { projectId } = await service.createProject();
    const place = ["--project", projectId, "--environment", "live"];
    const without = await answer("verification", "create", ...place);
    const url = "https://shop.example/hook";
    await answer("webhook", "set", ...place, "--url", url, "--events", "verification.verified");
    const verifiedOnly = await answer("verification", "create", ...place);
    const webhook = await answer("webhook", "set", ...place, "--url", "https://shop.example/all");
    const all = await answer("verification", "create", ...place);
    for (const { id } of [without, verifiedOnly, all]) await answer("verification", "cancel", id);
    expect(await seen(200, "verification", "show", without.id)).toContainEqual(
      expect.stringMatching(/^webhook +none was set when it was created$/),
    );
    expect(await seen(200, "verification", "show", verifiedOnly.id)).toContainEqual(
      expect.stringMatching(
        /^event +not sent, since the webhook does not receive this kind, or no longer stored$/,
      ),
    );
    expect((await answer("verification", "show", all.id)).history).toMatchObject({
      webhook_id: webhook.id,
      deliveries: [{ type: "verification.cancelled", url: "https://shop.example/all" }],
    });
  });

  test("show prints the verification, and the error, if only its history cannot be read", async () => {
    const { id } = await create();
    const locker = await service.db.connect();
    try {
      await locker.query("BEGIN; LOCK TABLE inbound_message");
      let isOver = false;
      const showing = run(["verification", "show", id, "--json"], environment).finally(() => {
        isOver = true;
      });
      // A waiting statement fails like this after its time limit, too.
      const cancelWaiting =
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
      await vi.waitUntil(async () => (await service.db.query(cancelWaiting)) && isOver, { timeout: 45_000 });
      const { code, stdout, stderr } = await showing;
      expect({ code, shown: JSON.parse(stdout), failed: JSON.parse(stderr) }).toMatchObject({
        code: 1,
        shown: { id, status: "pending", history: null },
        failed: { error: { code: "service_unavailable" } },
      });
    } finally {
      await locker.query("ROLLBACK");
      locker.release();
    }
  });

  test("show leaves the history out for those who may not read it, and charges a merchant once", async () => {
    const { id } = await create();
    const read = await service.createToken({ scope: "read" });
    expect(await answer("verification", "show", id, "--token", read)).toMatchObject({ id, history: null });
    const calls = async () =>
      (await answer("project", "usage", "--project", shop.projectId)).usage[0]?.calls ?? 0;
    const before = await calls();
    expect(await answer("verification", "show", id, "--token", shop.testKey)).toMatchObject({
      id,
      history: null,
    });
    expect(await calls()).toBe(before + 1);
  });

  test("cancel returns the cancelled verification, also when repeated", async () => {
    const { id } = await create();
    const cancelled = await answer("verification", "cancel", id);
    expect(cancelled).toMatchObject({ id, status: "cancelled" });
    expect(await answer("verification", "cancel", id)).toMatchObject({ id, status: "cancelled" });
  });

  test("list filters and pages, with a token for the next page", async () => {
    const { projectId } = await service.createProject();
    const made = [];
    for (const reference of ["a", "b", "c"]) {
      made.push(
        await answer(
          ...["verification", "create", "--project", projectId, "--environment", "live"],
          ...["--client-reference", reference],
        ),
      );
    }
    await answer("verification", "cancel", made[1].id);
    const list = async (...args: string[]) => {
      const { verifications, next_page_token } = await answer(
        "verification",
        "list",
        "--project",
        projectId,
        ...args,
      );
      const references = verifications
        .map((one: { client_reference: string }) => one.client_reference)
        .join("");
      return { references, next: next_page_token as string | null };
    };
    expect(await list()).toEqual({ references: "cba", next: null });
    expect(await list("--status", "pending")).toMatchObject({ references: "ca" });
    expect(await list("--status", "cancelled,verified", "--status", "expired")).toMatchObject({
      references: "b",
    });
    expect(await list("--client-reference", "a")).toMatchObject({ references: "a" });
    expect(await list("--environment", "test")).toMatchObject({ references: "" });
    expect(await list("--created-from", "1h")).toMatchObject({ references: "cba" });
    expect(await list("--created-before", "1h")).toMatchObject({ references: "" });
    expect(await list("--created-from", made[2].created_at)).toMatchObject({ references: "c" });
    // A relative time is a different instant for the second page, which must work nevertheless.
    for (const filters of [[], ["--created-from", "1h"], ["--created-before", "0s"]]) {
      const first = await list(...filters, "--limit", "2");
      expect(first.references).toBe("cb");
      expect(await list(...filters, "--limit", "2", "--page-token", first.next ?? "")).toEqual({
        references: "a",
        next: null,
      });
    }
  });

  test("a list that continues says so on stderr, so that a pipe gets only the list", async () => {
    const { projectId } = await service.createProject();
    const made = ["verification", "create", "--project", projectId, "--environment", "live"];
    const ids: string[] = [];
    for (let count = 0; count < 3; count += 1) ids.unshift((await answer(...made)).id);
    const list = ["verification", "list", "--project", projectId, "--limit", "2"];
    const first = await run(list, environment);
    expect(first.stdout.match(/^\S+/gm)).toEqual(["ID", ...ids.slice(0, 2)]);
    const [, token = ""] = /^There may be more: add --page-token (\S+)\n$/.exec(first.stderr) ?? [];
    const second = await run([...list, "--page-token", token], environment);
    expect({ ids: second.stdout.match(/^\S+/gm), stderr: second.stderr }).toEqual({
      ids: ["ID", ids[2]],
      stderr: "",
    });
    const audited = await run(["audit", "list", "--limit", "1"], environment);
    expect(audited.stdout.trimEnd().split("\n")).toHaveLength(2);
    expect(audited.stderr).toMatch(/^There may be more: add --page-token \S+\n$/);
    expect(await answer("audit", "list", "--limit", "1")).toMatchObject({
      next_page_token: expect.any(String),
    });
  });

  test("watch shows the current status and the transition, then ends", async () => {
    const { id, sms_text } = await create();
    const watching = startCommand(["verification", "watch", id, "--json"], environment);
    const [now = ""] = await watching.lines(1);
    expect(JSON.parse(now)).toMatchObject({ id, status: "pending" });
    await service.sms({ to: shop.testNumber, from: "01000000043", text: sms_text });
    const { code, stdout, stderr } = await watching.finished;
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    const looks = stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    expect(looks.map(({ status }) => status)).toEqual(["pending", "verified"]);
    expect(looks[1]).toMatchObject({ phone: "01000000043", project_id: shop.projectId });
  });

  test("watch shows the time of the verification, not of the watch", async () => {
    const { id, sms_text } = await create();
    await service.sms({ to: shop.testNumber, from: "01000000044", text: sms_text });
    await service.db.query(
      `UPDATE verification SET created_at = '2031-05-01 09:29:00Z', verified_at = '2031-05-01 09:30:00Z',
         expires_at = '2031-05-01 09:39:00Z'
       WHERE id = $1`,
      [uuidOf(id)],
    );
    const { stdout } = await run(["verification", "watch", id], { ...environment, TZ: "UTC" });
    expect(stdout).toBe("2031-05-01 09:30:00  verified  01000000044  SKT\n");
  });

  test("watch shows of an expired verification when it expired", async () => {
    const { id } = await create();
    await service.db.query(
      `UPDATE verification SET created_at = '2025-05-01 09:29:00Z', expires_at = '2025-05-01 09:39:00Z'
       WHERE id = $1`,
      [uuidOf(id)],
    );
    const { stdout } = await run(["verification", "watch", id], { ...environment, TZ: "UTC" });
    expect(stdout).toBe("2025-05-01 09:39:00  expired\n");
  });

  test.for([
    { end: "verified", code: 0 },
    { end: "cancelled", code: 1 },
    { end: "expired", code: 1 },
  ])("watch --exit-status exits with $code if the verification is $end", async ({ end, code }) => {
    const { id, sms_text } = await create();
    if (end === "verified") {
      await service.sms({ to: shop.testNumber, from: "01000000045", text: sms_text });
    } else if (end === "cancelled") await answer("verification", "cancel", id);
    else {
      await service.db.query(
        `UPDATE verification SET created_at = now() - interval '1 hour', expires_at = now() - interval '1 minute'
         WHERE id = $1`,
        [uuidOf(id)],
      );
    }
    const watch = ["verification", "watch", id, "--json"];
    const watched = await run([...watch, "--exit-status"], environment);
    expect({ ...watched, stdout: JSON.parse(watched.stdout) }).toMatchObject({
      code,
      stdout: { id, status: end },
      stderr: "",
    });
    expect(await run(watch, environment)).toMatchObject({ code: 0 });
  });

  test("watch continues after a restart of the service and shows nothing twice", async () => {
    let current = await service.startAnother();
    const proxy = await startCuttingProxy(() => current.grpcAddress);
    const { id, sms_text } = await create();
    const watching = startCommand(["verification", "watch", id], {
      ...environment,
      PHONEPROOF_ADDRESS: proxy.address,
    });
    expect(await watching.lines(1)).toHaveLength(1);
    await current.close();
    current = await service.startAnother();
    await expect
      .poll(async () =>
        (await scrape(current.opsUrl)).sum("phoneproof_rpc_streams_open", {
          method: "phoneproof.v1.VerificationService/WatchVerification",
        }),
      )
      .toBe(1);
    await service.sms({ to: shop.testNumber, from: "01000000047", text: sms_text });
    const { code, stdout, stderr } = await watching.finished;
    await proxy.close();
    expect({ code, stdout, stderr }).toEqual({
      code: 0,
      stdout: expect.stringMatching(/^\S+ \S+ {2}pending .*\n\S+ \S+ {2}verified {2}01000000047 .*\n$/),
      stderr: expect.stringMatching(/^phoneproof: connection lost, trying again: .*\n$/),
    });
  });

  test("watch ends at a signal with its exit code and without an error", async () => {
    const { id } = await create();
    const watching = startCommand(["verification", "watch", id], environment);
    await watching.lines(1);
    watching.child.kill("SIGTERM");
    const { code, stdout, stderr } = await watching.finished;
    expect({ code, stderr }).toEqual({ code: 143, stderr: "" });
    expect(stdout).toMatch(/^\S+ \S+ {2}pending .*\n$/);
  });
});
