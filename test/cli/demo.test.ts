import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { deadAddress } from "../harness/ports.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { answerOf, run, startDemo, towards } from "./command.ts";

let service: TestService;
let environment: Record<string, string>;

beforeAll(async () => {
  service = await startTestService();
  environment = { ...towards(service), PUBLIC_BASE_URL: service.httpUrl };
});

const activeKeys = async (projectId: string) => {
  const { keys } = await answerOf(["key", "list", "--project", projectId], environment);
  return keys.filter((key: { revoked_at: string | null }) => key.revoked_at === null);
};

const verified = async (projectId: string): Promise<number> =>
  (await answerOf(["verification", "list", "--project", projectId, "--status", "verified"], environment))
    .verifications.length;

const everything = async () => [
  await answerOf(["project", "list"], environment),
  await answerOf(["number", "list"], environment),
];

test("an argument is refused and nothing is created", async () => {
  const before = await everything();
  expect(await startDemo(environment, ["--help"]).finished).toMatchObject({
    code: 2,
    stdout: "",
    stderr:
      "phoneproof: the demo takes no arguments (--help): it shows one verification on a running service\n",
  });
  expect(await everything()).toEqual(before);
});

describe('without an active project "Demo"', () => {
  test("creates a project and a number, says so, and at the end suspends the one and removes the other", async () => {
    const { projects: others } = await answerOf(["project", "list"], environment);
    const { numbers } = await answerOf(["number", "list"], environment);
    for (const round of [1, 2]) {
      const { code, stdout, stderr } = await startDemo(environment).finished;
      expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
      expect(stdout).toContain('There is no active project "Demo"');
      const { projects } = await answerOf(["project", "list"], environment);
      expect(projects).toHaveLength(others.length + 1);
      const own = projects.find(({ name }: { name: string }) => name === "npm run demo");
      expect(own).toMatchObject({ suspended: true });
      expect(await activeKeys(own.id)).toEqual([]);
      expect((await answerOf(["number", "list"], environment)).numbers).toEqual(numbers);
      expect(await verified(own.id)).toBe(round);
    }
  });
});

describe('with a project "Demo"', () => {
  let projectId: string;
  let testNumber: string;

  beforeAll(async () => {
    ({ projectId, testNumber } = await service.createProject({ name: "Demo" }));
  });

  afterAll(() => answerOf(["project", "suspend", projectId], environment));

  test("shows a whole verification and leaves no key behind", async () => {
    const before = await activeKeys(projectId);
    const already = await verified(projectId);
    const { code, stdout, stderr } = await startDemo(environment).finished;
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(stdout).toMatch(/POST \/v1\/verifications/);
    expect(stdout).toMatch(/201 Created, Idempotent-Replayed: false/);
    expect(stdout).toMatch(/outcome +VERIFIED/);
    expect(stdout).toMatch(/status +verified\n.*phone +0100000\d{4}\n.*carrier +SKT/);
    expect(stdout).toMatch(/200 OK, Idempotent-Replayed: true/);
    expect(stdout.trimEnd().split("\n").at(-1)).toBe(
      `Next: npx phoneproof verification list --project ${projectId}`,
    );
    expect(stdout).not.toMatch(/pp_(test|live|svc)_/);
    expect(await verified(projectId)).toBe(already + 1);
    expect(await activeKeys(projectId)).toEqual(before);
  });

  test.for([
    { name: "is now shared by all projects", added: true, message: "The merchant" },
    { name: "has been removed", added: false, message: "the demo adds one and removes it at the end" },
  ])("works if the project's number $name, and leaves everything as it was", async ({ added, message }) => {
    await answerOf(["number", "remove", testNumber], environment);
    const add = ["number", "add", testNumber, "--environment", "test"];
    if (added) await answerOf(add, environment);
    onTestFinished(async () => {
      if (added) await answerOf(["number", "remove", testNumber], environment);
      await answerOf([...add, "--project", projectId], environment);
    });
    const everythingAndKeys = async () => [await everything(), await activeKeys(projectId)];
    const before = await everythingAndKeys();
    const already = await verified(projectId);
    const { code, stdout, stderr } = await startDemo(environment).finished;
    expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
    expect(stdout).toContain(message);
    expect(await verified(projectId)).toBe(already + 1);
    expect(await everythingAndKeys()).toEqual(before);
  });

  test("revokes keys that killed demos left behind, and no others", async () => {
    const others = await activeKeys(projectId);
    const keep = await answerOf(
      ["key", "create", "--project", projectId, "--environment", "test"],
      environment,
    );
    const left = ["key", "create", "--project", projectId, "--environment", "test", "--name", "npm run demo"];
    for (let count = 0; count < 3; count += 1) await answerOf(left, environment);
    expect((await run(left, environment)).stderr).toContain("too_many_api_keys");
    expect(await startDemo(environment).finished).toMatchObject({ code: 0, stderr: "" });
    const { key: _, ...kept } = keep;
    expect(await activeKeys(projectId)).toEqual([...others, kept]);
    await answerOf(["key", "revoke", keep.id], environment);
  });

  test("if other keys exhaust the project's limit, says so and how to free one", async () => {
    const others = (await activeKeys(projectId)).filter(
      (key: { environment: string }) => key.environment === "test",
    );
    const create = ["key", "create", "--project", projectId, "--environment", "test"];
    const kept: string[] = [];
    while (others.length + kept.length < 5) kept.push((await answerOf(create, environment)).id);
    const { code, stderr } = await startDemo(environment).finished;
    expect(code).toBe(1);
    expect(stderr).toContain('too_many_api_keys: "Demo" has the maximum number of active test keys');
    expect(stderr).toContain(`npx phoneproof key list --project ${projectId}`);
    for (const id of kept) await answerOf(["key", "revoke", id], environment);
  });

  test("revokes its key when it is interrupted", async () => {
    const before = await activeKeys(projectId);
    const demo = startDemo(environment);
    await demo.lines(2);
    demo.child.kill("SIGINT");
    expect((await demo.finished).code).toBe(130);
    expect(await activeKeys(projectId)).toEqual(before);
  });

  test("revokes its key when it fails", async () => {
    const before = await activeKeys(projectId);
    const url = `http://${await deadAddress()}`;
    const { code, stderr } = await startDemo({ ...environment, PUBLIC_BASE_URL: url }).finished;
    expect(code).toBe(3);
    expect(stderr).toBe(
      `phoneproof: no service answers at ${url}, the address set by PORT or PUBLIC_BASE_URL: run npm start first\n`,
    );
    expect(await activeKeys(projectId)).toEqual(before);
  });
});

test.for([
  ["no service", { PHONEPROOF_ADDRESS: await deadAddress(), PHONEPROOF_TOKEN: "pp_svc_x" }],
  ["no token", { DATA_DIR: "/nowhere", GRPC_PORT: "1" }],
] as const)("%s: one line says to run npm start", async ([, wrong]) => {
  const { code, stdout, stderr } = await startDemo(wrong).finished;
  expect({ code, stdout }).toEqual({ code: 3, stdout: "" });
  expect(stderr).toMatch(/^phoneproof: [^\n]*: run npm start first\n$/);
});
