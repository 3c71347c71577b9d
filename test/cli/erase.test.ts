import { spawnSync } from "node:child_process";
import { create, toBinary } from "@bufbuild/protobuf";
import { beforeAll, describe, expect, test } from "vitest";
import { EraseVerificationResponseSchema } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { type Merchant, merchant } from "../gateway/merchant.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { tablesWith } from "../harness/every-table.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { framed } from "../rpc/raw-grpc.ts";
import { createPending } from "../service/pending.ts";
import { newPhone } from "../service/sms-source.ts";
import { answerOf, launcher, run, startProgram, towards } from "./command.ts";
import { startGrpcPeer } from "./grpc-peer.ts";

let service: TestService;
let shop: Merchant;
let environment: Record<string, string>;

beforeAll(async () => {
  service = await startTestService({ ROLES: "api" });
  const { liveKey } = await service.createProject();
  shop = merchant(service.httpUrl, liveKey);
  environment = towards(service);
});

/** Creates one verification that the phone has verified, and one that is pending for it. */
async function proved(phone: string): Promise<{ verified: string; pending: string }> {
  const verified = await createPending(shop);
  await service.sms({ to: verified.to, from: phone, text: verified.text });
  const pending = await createPending(shop, { mode: "match", expected_phone: phone });
  return { verified: verified.id, pending: pending.id };
}

async function printed(...args: string[]) {
  const { code, stdout, stderr } = await run(["erase", ...args], environment);
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return stdout;
}

test("--phone reports what was erased, and the phone is in no table afterwards", async () => {
  const phone = newPhone();
  const { verified, pending } = await proved(phone);
  const spelled = `+82 10-${phone.slice(3, 7)}-${phone.slice(7)}`;
  expect(await answerOf(["erase", "--phone", spelled], environment)).toEqual({
    verifications: 2,
    cancelled_verifications: 1,
    messages: 1,
    webhook_answers: 0,
  });
  expect(await tablesWith(service.db, phone)).toEqual([]);
  expect((await shop.read(verified)).body).toMatchObject({ status: "verified", phone: null });
  expect((await shop.read(pending)).body).toMatchObject({ status: "cancelled" });
});

test("--verification reports what was erased, and the phone is in no table afterwards", async () => {
  const phone = newPhone();
  const { verified, pending } = await proved(phone);
  expect(await answerOf(["erase", "--verification", verified], environment)).toEqual({
    verifications: 1,
    cancelled_verifications: 0,
    messages: 1,
    webhook_answers: 0,
  });
  expect(await printed("--verification", pending)).toBe(
    "Erased from 1 verification, 0 SMS, 0 webhook answers.\nCancelled, because pending: 1 verification.\n",
  );
  expect(await tablesWith(service.db, phone)).toEqual([]);
});

test("the human-readable output is one or two lines, also if there was nothing to erase", async () => {
  const phone = newPhone();
  await proved(phone);
  expect(await printed("--phone", phone)).toBe(
    "Erased from 2 verifications, 1 SMS, 0 webhook answers.\nCancelled, because pending: 1 verification.\n",
  );
  expect(await printed("--phone", phone)).toBe("Nothing was left to erase.\n");
});

test("a phone that was only in the answers of endpoints is not reported as nothing", async () => {
  const answer = create(EraseVerificationResponseSchema, { erasure: { webhookAnswers: 1_200 } });
  const { address } = await startGrpcPeer((call) =>
    call.end(framed(toBinary(EraseVerificationResponseSchema, answer))),
  );
  const at = { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
  expect((await run(["erase", "--verification", "vrf_1"], at)).stdout).toBe(
    "Erased from 0 verifications, 0 SMS, 1,200 webhook answers.\n",
  );
});

test.for([
  [["--phone", "02-123-4567"], 1, /^phoneproof: validation_failed: --phone: must be a 010 mobile number/],
  [["--verification", "vrf_01kaex4mpyf2xbtyt1s6vdr4e9"], 1, /^phoneproof: verification_not_found: /],
  [[], 2, /^phoneproof: erase: give either --verification or --phone; see phoneproof erase --help/],
  [
    ["--phone", "01012345678", "--verification", "vrf_x"],
    2,
    /^phoneproof: erase: give either --verification or/,
  ],
] as const)("erase %j ends with exit %i and one line", async ([args, exit, line]) => {
  const { code, stdout, stderr } = await run(["erase", ...args], environment);
  expect({ code, stdout }).toEqual({ code: exit, stdout: "" });
  expect(stderr).toMatch(/^[^\n]+\n$/);
  expect(stderr).toMatch(line);
});

// `script` (util-linux) runs the command in a terminal.
const hasTerminal = spawnSync("script", ["--version"]).status === 0;
if (!hasTerminal) noteAbsence("script", "the question of erase");
if (hasTerminal)
  describe("in a terminal", () => {
    /** Types the line, if there is one, once the command has asked. */
    async function typed(args: readonly string[], line: string | undefined) {
      const settings = { ...environment, NODE: process.execPath, LAUNCHER: launcher };
      const command = `exec "$NODE" "$LAUNCHER" erase ${args.join(" ")}`;
      const running = startProgram(["script", "-qec", command, "/dev/null"], settings);
      if (line !== undefined) {
        await expect.poll(running.stdout).toContain("permanently? [y/N] ");
        running.child.stdin?.write(line);
      }
      const { code, stdout } = await running.finished;
      return { code, stdout };
    }

    test("it erases only after a yes", async () => {
      const phone = newPhone();
      const { verified } = await proved(phone);
      const args = ["--phone", phone];
      for (const line of ["\n", "not yet\n", "\x04"]) {
        expect(await typed(args, line)).toEqual({
          code: 1,
          stdout: expect.stringMatching(/\r\nphoneproof: not_confirmed: nothing was erased\r\n$/),
        });
      }
      expect((await shop.read(verified)).body).toMatchObject({ phone });
      const { code, stdout } = await typed(args, "y\n");
      expect({ code, stdout }).toEqual({
        code: 0,
        stdout: expect.stringContaining(`Erase ${phone} everywhere,`),
      });
      expect(stdout).toContain("Erased from 2 verifications");
      expect((await shop.read(verified)).body).toMatchObject({ phone: null });
    });

    test("it asks there if its errors go elsewhere", async () => {
      const { verified } = await proved(newPhone());
      const args = ["--verification", verified, "2>/dev/null"];
      expect(await typed(args, "n\n")).toEqual({ code: 1, stdout: expect.not.stringContaining("Erased") });
      expect(await typed(args, "y\n")).toEqual({
        code: 0,
        stdout: expect.stringContaining("Erased from 1 verification,"),
      });
    });

    test("it erases nothing if it cannot ask there", async () => {
      const { verified } = await proved(newPhone());
      // A session of its own has no terminal, though it reads from one.
      const settings = { ...environment, NODE: process.execPath, LAUNCHER: launcher };
      const command = `exec setsid -w "$NODE" "$LAUNCHER" erase --verification ${verified} 2>/dev/null`;
      const { code, stdout } = await startProgram(["script", "-qec", command, "/dev/null"], settings)
        .finished;
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect((await shop.read(verified)).body.phone).not.toBeNull();
    });

    test.for([
      { name: "with --yes", more: "--yes" },
      { name: "if its input is elsewhere", more: "</dev/null" },
    ])("it does not ask $name", async ({ more }) => {
      const { verified } = await proved(newPhone());
      const { code, stdout } = await typed(["--verification", verified, more], undefined);
      expect({ code, stdout }).toEqual({
        code: 0,
        stdout: expect.stringMatching(/^Erased from 1 verification,/),
      });
    });
  });

test("the help has examples", async () => {
  const { code, stdout } = await run(["erase", "--help"], {});
  expect(code).toBe(0);
  expect(stdout).toMatch(/Usage: phoneproof erase --verification ID \| --phone PHONE/);
  expect(stdout).toMatch(/Examples:\n {2}# .*\n {2}\$ phoneproof erase --verification vrf_/);
});
