import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { afterAll, expect, test } from "vitest";
import { buf, folderOf, protobufFile, releases, root } from "../../releases/release.ts";

const directory = mkdtempSync(path.join(os.tmpdir(), "phoneproof-releases-"));
afterAll(() => rmSync(directory, { recursive: true }));

const last = releases().at(-1) ?? "";

/** Runs buf breaking, as `npm run check` does, for these protos. */
function bufBreaking(proto: string) {
  const image = path.join(folderOf(last), protobufFile);
  return spawnSync(buf, ["breaking", proto, "--against", image, "--config", path.join(root, "buf.yaml")], {
    cwd: path.dirname(proto),
    encoding: "utf8",
  });
}

test("npm run check compares both APIs with the last release without needing git's history", () => {
  const { GIT_DIR: _unused, ...env } = process.env;
  execFileSync(process.execPath, [path.join(root, "releases/check.ts")], {
    cwd: directory,
    env: { ...env, GIT_DIR: path.join(directory, "none") },
    stdio: "pipe",
  });
});

test.for([
  {
    what: "a removed field",
    file: "verification.proto",
    from: /^ {2}string sms_text = 4;$/m,
    to: "",
    breaks: true,
  },
  {
    what: "a changed type of a field",
    file: "inbound_message.proto",
    from: "bool duplicate = 4",
    to: "int32 duplicate = 4",
    breaks: true,
  },
  {
    what: "a removed method",
    file: "verification.proto",
    from: /^ {2}rpc CancelVerification.*$/m,
    to: "",
    breaks: true,
  },
  {
    what: "an added field",
    file: "verification.proto",
    from: "  string sms_text = 4;",
    to: "  string sms_text = 4;\n  string more = 99;",
    breaks: false,
  },
])("buf breaking reports $what: $breaks", ({ file, from, to, breaks }) => {
  cpSync(path.join(root, "proto"), path.join(directory, "proto"), { recursive: true });
  const changed = path.join(directory, "proto/phoneproof/v1", file);
  const text = readFileSync(changed, "utf8");
  const then = text.replace(from, to);
  expect(then).not.toBe(text);
  writeFileSync(changed, then);
  const { status, stdout } = bufBreaking(directory);
  expect(status === 0, stdout).toBe(!breaks);
});

test("CHANGELOG.md has a section for each release, the latest first", () => {
  const sections = [
    ...readFileSync(path.join(root, "CHANGELOG.md"), "utf8").matchAll(/^## (\d+\.\d+\.\d+)/gm),
  ];
  expect(sections.map(([, version]) => version)).toEqual(releases().reverse());
});
