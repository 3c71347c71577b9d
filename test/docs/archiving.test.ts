/** Runs the archive_command that docs/backup.md prints, as Postgres does. */

import { spawnSync } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { plainEnvironment } from "../harness/environment.ts";
import { readPage } from "./pages.ts";

const [, command = ""] = /^archive_command = '(.+)'/m.exec(readPage("docs/backup.md").text) ?? [];
const name = "000000010000000000000007";
const contents = "written by Postgres";

let directory: string;
let archived: string;

beforeEach(async () => {
  directory = await mkdtemp(path.join(os.tmpdir(), "archiving-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  archived = path.join(directory, "archive", name);
  await mkdir(path.dirname(archived));
  await writeFile(path.join(directory, name), contents);
});

function archive(programs = "") {
  const line = command
    .replaceAll("/archive/", `${directory}/archive/`)
    .replaceAll("%p", name)
    .replaceAll("%f", name);
  const env = plainEnvironment({});
  return spawnSync("sh", ["-c", line], { cwd: directory, env: { ...env, PATH: `${programs}:${env.PATH}` } })
    .status;
}

test("a file of the log is archived", async () => {
  expect(archive()).toBe(0);
  expect(await readFile(archived, "utf8")).toBe(contents);
});

test("one whose copying was cut off is archived at the next try", async () => {
  const programs = path.join(directory, "programs");
  await mkdir(programs);
  await writeFile(path.join(programs, "cp"), '#!/bin/sh\nprintf wri > "$2"\nkill -KILL $$\n', {
    mode: 0o755,
  });
  expect(archive(programs)).not.toBe(0);
  expect(archive()).toBe(0);
  expect(await readFile(archived, "utf8")).toBe(contents);
});

test("one that was archived just before a crash is taken for archived", () => {
  expect(archive()).toBe(0);
  expect(archive()).toBe(0);
});

test("another one of that name is kept", async () => {
  await writeFile(archived, "of another server");
  expect(archive()).not.toBe(0);
  expect(await readFile(archived, "utf8")).toBe("of another server");
});
