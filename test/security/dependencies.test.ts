import { expect, test } from "vitest";
import { allowScripts, dependenciesIn, type Lock, lock, scriptProblems, unlicensed } from "./dependencies.ts";

const dependencies = dependenciesIn(lock);

test("every package's licence is on the list, and those in the service are permissive", () => {
  expect(dependencies.length).toBeGreaterThan(300);
  expect(dependencies.filter(({ inService }) => inService).length).toBeGreaterThan(50);
  expect(unlicensed(dependencies)).toEqual([]);
});

test("install scripts run only where they are needed, and all others are refused by name", () => {
  expect(scriptProblems(dependencies, allowScripts)).toEqual([]);
});

test.for<[string, Lock["packages"][string], string | undefined]>([
  ["a licence that is not on the list", { license: "AGPL-3.0-only" }, "planted 1.0.0: AGPL-3.0-only"],
  ["no licence", {}, "planted 1.0.0: none"],
  ["a tool's licence in the service", { license: "MPL-2.0" }, "planted 1.0.0: MPL-2.0"],
  ["a tool's licence in a tool", { license: "MPL-2.0", dev: true }, undefined],
  ["a choice of licences", { license: "(GPL-2.0-only OR MIT)" }, undefined],
  ["two licences at once", { license: "GPL-2.0-only AND MIT" }, "planted 1.0.0: GPL-2.0-only AND MIT"],
])("planted: %s", ([, entry, problem]) => {
  const planted = { packages: { "node_modules/a/node_modules/planted": { version: "1.0.0", ...entry } } };
  expect(unlicensed(dependenciesIn(planted))).toEqual(problem === undefined ? [] : [problem]);
});

test("planted: an undecided install script, and one that runs without need", () => {
  const planted = { packages: { "node_modules/planted": { hasInstallScript: true, license: "MIT" } } };
  const found = dependenciesIn(planted);
  expect(scriptProblems(found, {})).toEqual(["planted: its install script is neither allowed nor refused"]);
  expect(scriptProblems(found, { planted: true })).toEqual([
    "planted: its install script runs and is not needed",
  ]);
  expect(scriptProblems(found, { planted: false })).toEqual([]);
  expect(scriptProblems([], { planted: false })).toEqual(["planted: has no install script"]);
});
