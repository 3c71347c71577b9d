#!/usr/bin/env node
// Starts the command on a Node that can run it. Plain JavaScript in old syntax: whatever Node a linked
// `phoneproof` finds first must get as far as starting the pinned one, or saying why it cannot.

import { spawn } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import module from "node:module";
import { constants } from "node:os";
import { fileURLToPath } from "node:url";

if (Number.parseInt(process.versions.node, 10) >= 24) {
  // Stripped types and compiled code are kept between runs: half the time to a first answer.
  module.enableCompileCache(fileURLToPath(new URL("../.cache/compiled", import.meta.url)));
  await import("../src/cli/main.ts");
} else {
  const binary = process.platform === "win32" ? "node.exe" : "node";
  const pinned = fileURLToPath(new URL(`../node_modules/node/bin/${binary}`, import.meta.url));
  if (existsSync(pinned) && realpathSync(pinned) !== process.execPath) {
    runOn(pinned);
  } else {
    const root = fileURLToPath(new URL("..", import.meta.url));
    console.error(
      `phoneproof: needs Node 24 or newer, this is ${process.version}; run npm ci in ${root} to install the one it pins`,
    );
    process.exitCode = 3;
  }
}

function runOn(node) {
  const child = spawn(node, [fileURLToPath(import.meta.url), ...process.argv.slice(2)], { stdio: "inherit" });
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"];
  const passOn = (signal) => child.kill(signal);
  for (const signal of signals) process.on(signal, passOn);
  child.on("error", (error) => {
    console.error(`phoneproof: cannot start ${node}: ${error.message}`);
    process.exitCode = 3;
  });
  child.on("exit", (code, signal) => {
    if (signal === null) {
      process.exitCode = code === null ? 1 : code;
      return;
    }
    // Ends as the child did, so that a shell sees the same. Where the signal cannot end this process, its
    // number says it.
    for (const passed of signals) process.off(passed, passOn);
    process.exitCode = 128 + (constants.signals[signal] || 0);
    process.kill(process.pid, signal);
  });
}
