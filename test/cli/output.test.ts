/** The output for people, in terminals of any width, and output that nobody reads or that cannot be written. */

import { create, toBinary } from "@bufbuild/protobuf";
import { beforeAll, describe, expect, test } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ListAuditEntriesResponseSchema } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { answerOf, launcher, linesOf, run, startCommand, startProgram, towards } from "./command.ts";
import { startGrpcPeer } from "./grpc-peer.ts";

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

/** Hangul syllables take two columns of a terminal. */
const width = (line: string) =>
  [...line].reduce((sum, character) => sum + (/[가-힣]/.test(character) ? 2 : 1), 0);

describe("human-readable output", () => {
  let projectId: string;

  beforeAll(async () => {
    ({ projectId } = await service.createProject({ name: "오래된 골목 책방과 커피" }));
    for (const reference of ["주문 번호 하나 둘 셋 넷 다섯", "a-plain-reference-that-goes-on-for-long"]) {
      await answerOf(
        [
          ...["verification", "create", "--project", projectId, "--environment", "test"],
          ...["--client-reference", reference],
        ],
        environment,
      );
    }
    await answerOf(
      ["key", "create", "--project", projectId, "--environment", "live", "--name", "a name at some length"],
      environment,
    );
    await service.createToken({ scope: "ingest", source: "a-gateway-with-a-long-name-of-its-own" });
  });

  const lists = () => [
    ["project", "list"],
    ["key", "list", "--project", projectId],
    ["number", "list"],
    ["token", "list"],
    ["verification", "list", "--project", projectId],
  ];

  test.for([60, 80, 120])("tables fit in %i columns and keep whole ids", async (columns) => {
    for (const args of lists()) {
      const lines = (await seen(columns, ...args)).filter((line) => !line.startsWith("No room for "));
      expect(lines.length).toBeGreaterThan(1);
      for (const line of lines) expect(width(line)).toBeLessThanOrEqual(columns);
      const key = args[0] === "number" ? /^[\d#]+ / : /^(prj|key|tok|vrf)_[0-9a-z]{26} /;
      for (const line of lines.slice(1)) expect(line).toMatch(key);
    }
  });

  test.for([
    60, 80,
  ])("in %i columns the audit log shows the time, action, target and actor", async (columns) => {
    const shown = await seen(columns, "audit", "list", "--limit", "5");
    const [heading, ...lines] = shown.filter((line) => !line.startsWith("No room for "));
    expect(heading).toMatch(/^WHEN +WHAT +TO +WHO\b/);
    expect(lines).not.toEqual([]);
    for (const line of lines) {
      expect(width(line)).toBeLessThanOrEqual(columns);
      expect(line).toMatch(/^(\d{4}-)?\d\d-\d\d \d\d:\d\d(:\d\d)? +\w\S+[.…]\S+ +\w+…?\S+ +\w+/);
    }
  });

  test("the audit log says which project an action concerned, unless only one was asked for", async () => {
    const { projectId: former } = await service.createProject();
    const { projectId: next } = await service.createProject();
    const number = "0298765432";
    const add = ["number", "add", number, "--environment", "live", "--project"];
    await answerOf([...add, former], environment);
    await answerOf(["number", "remove", number], environment);
    await answerOf([...add, next], environment);
    const lines = (await seen(400, "audit", "list", "--limit", "30")).filter((line) => line.includes(number));
    expect(lines.map((line) => /number\.\w+|prj_\w+/g[Symbol.match](line))).toEqual([
      ["number.added", next],
      ["number.removed", former],
      ["number.added", former],
    ]);
    expect((await seen(400, "audit", "list", "--project", next))[0]).not.toContain("PROJECT");
  });

  test("the project id of a token is shortened in the middle, so that it can be recognised by its end", async () => {
    const { id } = await answerOf(
      ["token", "create", "--scope", "read", "--project", projectId],
      environment,
    );
    const line = (await seen(80, "token", "list")).find((text) => text.startsWith(id));
    const [, shown = "", end = ""] = / (prj_\w*)…(\w{4,})$/.exec(line ?? "") ?? [];
    expect(projectId.startsWith(shown) && projectId.endsWith(end), line).toBe(true);
  });

  test("long names are cut off and times lose year and seconds before a column is dropped", async () => {
    const list = ["key", "list", "--project", projectId];
    const named = ["--environment", "live", "--name", "a name ".repeat(12), "--expires-in", "1h"];
    const { id } = await answerOf(["key", "create", "--project", projectId, ...named], environment);
    const line = async (columns: number) =>
      (await seen(columns, ...list)).find((text) => text.startsWith(id)) ?? "";
    expect(await line(80)).toMatch(/a name .*… +\d\d-\d\d \d\d:\d\d$/);
    expect(await line(200)).toMatch(/ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d +-$/);
  });

  test("a time within half a year has its minute, also in another year, and any other its day", async () => {
    const list = ["key", "list", "--project", projectId];
    for (const [days, shown, passedDays = 0] of [
      ["1d", / \d\d-\d\d \d\d:\d\d$/, 183],
      ["1d", / \d{4}-\d\d-\d\d$/, 185],
      ["182d", / \d\d-\d\d \d\d:\d\d$/],
      ["184d", / \d{4}-\d\d-\d\d$/],
    ] as const) {
      const named = ["--environment", "live", "--name", "a name ".repeat(12), "--expires-in", days];
      const { id } = await answerOf(["key", "create", "--project", projectId, ...named], environment);
      await service.db.query(
        "UPDATE api_key SET created_at = created_at - $2 * interval '1 day', expires_at = expires_at - $2 * interval '1 day' WHERE id = $1",
        [decodeId("key_", id), passedDays],
      );
      expect((await seen(80, ...list)).find((text) => text.startsWith(id))).toMatch(shown);
    }
  });

  test("columns that do not fit are named, with what shows them", async () => {
    const list = ["key", "list", "--project", projectId];
    const [heading = "", ...lines] = await seen(80, ...list);
    expect(lines.at(-1)).toBe("No room for CREATED, LAST USED: a wider terminal or --json shows them.");
    expect(heading).not.toMatch(/CREATED|LAST USED/);
    expect((await seen(200, ...list)).join("\n")).not.toContain("No room");
  });

  test("columns are aligned, also with Hangul", async () => {
    const [heading = "", ...rows] = await seen(120, "project", "list");
    const state = heading.indexOf("STATE");
    expect(state).toBeGreaterThan(0);
    for (const row of rows) {
      const before = /^(.*?) {2,}(active|suspended)/.exec(row);
      const spaces = row.slice(0, row.search(/(active|suspended)/));
      expect(before).not.toBeNull();
      expect(width(spaces)).toBe(state);
    }
  });

  test("a value that is too long ends in …", async () => {
    const lines = await seen(80, "project", "list");
    expect(lines.find((line) => line.startsWith(projectId))).toMatch(/오래된.*…/);
  });

  test("without a terminal nothing is cut off", async () => {
    const { stdout } = await run(["project", "list"], environment);
    expect(stdout).toContain("오래된 골목 책방과 커피");
    expect(stdout).not.toMatch(/…|No room/);
  });

  test("a new secret comes with a line that says it is not shown again", async () => {
    const lines = await seen(80, "key", "create", "--project", projectId, "--environment", "test");
    expect(lines.find((line) => line.startsWith("key "))).toMatch(/pp_test_[A-Za-z0-9]{38}$/);
    expect(lines.at(-1)).toBe("Store the key now: it is not shown again.");
    const token = await seen(80, "token", "create", "--scope", "admin");
    expect(token.at(-1)).toBe("Store the token now: it is not shown again.");
  });

  test("a webhook's secret comes with a line that says what shows it again", async () => {
    const set = ["webhook", "set", "--project", projectId, "--environment", "live"];
    const lines = await seen(80, ...set, "--url", "https://shop.example/shown-again");
    expect(lines.at(-1)).toBe("Store the secret now: it is shown again only when this URL is set again.");
    const again = await seen(80, ...set, "--url", "https://shop.example/shown-again");
    const secretOf = (shown: readonly string[]) => shown.find((line) => line.startsWith("secret "));
    expect(secretOf(lines)).toMatch(/whsec_/);
    expect(secretOf(again)).toBe(secretOf(lines));
  });

  test("times are in the local time zone", async () => {
    const { created_at } = await answer("project", "show", projectId);
    const seoul = new Date(Date.parse(created_at) + 9 * 3_600_000).toISOString();
    expect((await seen(80, "project", "show", projectId)).at(-1)).toBe(
      `created        ${seoul.slice(0, 10)} ${seoul.slice(11, 19)} +09:00`,
    );
    const marquesas = new Date(Date.parse(created_at) - 9.5 * 3_600_000).toISOString();
    const west = { ...environment, TZ: "Pacific/Marquesas" };
    expect((await run(["project", "show", projectId], west)).stdout).toMatch(
      `${marquesas.slice(0, 10)} ${marquesas.slice(11, 19)} -09:30\n`,
    );
  });

  test("an empty list says that it is empty", async () => {
    const [line] = await seen(80, "verification", "list", "--project", projectId, "--status", "expired");
    expect(line).toBe("No verifications here.");
  });

  test("control characters in the service's answers never reach the terminal", async () => {
    const evil = "\u001b[2J\u0007\r\n\t\u009b31m\u202egnp\u2066\u200b\u{e0001}";
    const { id } = await answerOf(
      [
        ...["verification", "create", "--project", projectId, "--environment", "test"],
        ...["--client-reference", evil, "--state", evil],
      ],
      environment,
    );
    for (const args of [
      ["verification", "show", id],
      ["verification", "show", id, "--json"],
      ["verification", "list", "--project", projectId],
      ["verification", "list", "--project", projectId, "--json"],
      ["verification", "cancel", id],
      ["verification", "watch", id, "--json"],
      ["verification", "show", evil],
      ["project", "update", projectId, "--parent-origin", evil],
    ]) {
      const { stdout, stderr } = await run(args, environment);
      expect(stdout + stderr).not.toMatch(/[^\P{Cc}\n]|\p{Cf}|[\u2028\u2029]/u);
    }
    const shown = await seen(200, "verification", "show", id);
    expect(shown).toContainEqual(
      expect.stringContaining("\\x1b[2J\\x07\\r\\n\\t\\x9b31m\\u202egnp\\u2066\\u200b\\u{e0001}"),
    );
    expect(await answer("verification", "show", id)).toMatchObject({ client_reference: evil });
  });
});

test("neither do those in the token of a list's next page", async () => {
  const list = create(ListAuditEntriesResponseSchema, { entries: [{}], nextPageToken: "\u001b[2J" });
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(ListAuditEntriesResponseSchema, list))),
  );
  const peer = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  const { stderr } = await run(["audit", "list", "--limit", "1"], peer);
  expect(stderr).toBe("There may be more: add --page-token \\x1b[2J\n");
});

test("joined emoji in the service's answers are shown as they are", async () => {
  const family = "\u{1f468}\u200d\u{1f469}\u200d\u{1f467}";
  const { stdout } = await run(
    [
      ...["verification", "create", "--project", shop.projectId, "--environment", "test"],
      ...["--client-reference", family],
    ],
    environment,
  );
  expect(stdout).toContain(family);
});

describe("if nobody reads the output", () => {
  const lost = (args: readonly string[]) => {
    const running = startCommand(args, environment);
    running.child.stdout?.destroy();
    return running.finished;
  };

  test("a command that only reads ends without an error", async () => {
    expect(await lost(["project", "list"])).toMatchObject({ code: 0, stderr: "" });
  });

  test("a command that changed something fails with an error, because its answer is lost", async () => {
    expect(await lost(["project", "create", "--name", "Lost"])).toMatchObject({
      code: 1,
      stderr:
        "phoneproof: output_failed: the output was closed early: what the command did remains in effect\n",
    });
  });

  test("a command that created a secret says how to revoke it", async () => {
    const { projectId } = await service.createProject();
    const place = ["--environment", "test", "--project", projectId];
    const { id: replaced } = await answer("key", "create", ...place);
    for (const command of [
      ["key", "create", ...place],
      ["key", "rotate", replaced],
      ["token", "create", "--scope", "read"],
    ]) {
      const { code, stderr } = await lost(command);
      const said =
        /^phoneproof: output_failed: .+: (\S+) was created, but its secret is lost: revoke it with phoneproof (.+)\n$/;
      const [, id, revocation = ""] = said.exec(stderr) ?? [];
      expect({ code, id }).toEqual({ code: 1, id: expect.stringMatching(/^(key|tok)_/) });
      expect(await answer(...revocation.split(" "))).toMatchObject({ id, revoked_at: expect.any(String) });
    }
  });
});

test("with a closed output or /dev/null, no secret is created that nobody would see", async () => {
  const { projectId } = await service.createProject();
  const place = ["--environment", "test", "--project", projectId];
  const { id: replaced } = await answer("key", "create", ...place);
  const existing = async () => {
    const { keys } = await answer("key", "list", "--project", projectId);
    const { tokens } = await answer("token", "list");
    // Without the last uses: those of earlier tests' tokens are written some seconds later.
    return [...keys, ...tokens].map(({ last_used_at: _, ...rest }: Record<string, unknown>) => rest);
  };
  const before = await existing();
  for (const { redirection, args } of [
    { redirection: ">&-", args: ["key", "create", ...place] },
    { redirection: "> /dev/null", args: ["key", "create", ...place] },
    { redirection: "> /dev/null", args: ["key", "rotate", replaced] },
    { redirection: "> /dev/null", args: ["token", "create", "--scope", "read"] },
  ]) {
    const command = ["sh", "-c", `"$@" ${redirection}`, "sh", process.execPath, launcher, ...args];
    expect(await startProgram(command, environment).finished).toEqual({
      code: 1,
      stdout: "",
      stderr:
        "phoneproof: output_failed: the output is closed or goes to /dev/null, and only it would have the secret: nothing was created\n",
    });
  }
  expect(await existing()).toEqual(before);
});

// Linux has a device that is always full.
if (process.platform === "linux") {
  describe("if the output cannot be written", () => {
    test.for([
      { name: "a command that only reads fails", args: ["project", "list"], consequence: "" },
      {
        name: "a command that changed something says that the change remains",
        args: ["project", "create", "--name", "Full"],
        consequence: ": what the command did remains in effect",
      },
    ])("$name", async ({ args, consequence }) => {
      const command = [process.execPath, launcher, ...args];
      const running = startProgram(["sh", "-c", '"$@" > /dev/full', "sh", ...command], environment);
      expect(await running.finished).toEqual({
        code: 1,
        stdout: "",
        stderr: `phoneproof: output_failed: the output cannot be written (ENOSPC: no space left on device, write)${consequence}\n`,
      });
    });
  });
}
