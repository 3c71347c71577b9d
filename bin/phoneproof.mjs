#!/usr/bin/env node
// Starts the command on a Node version that can run it. Plain JavaScript in old syntax: even an old Node on the PATH must be
// able to run this file, to start the pinned Node or to report why it cannot.

import { spawn } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import module from "node:module";
import { constants } from "node:os";
import { fileURLToPath } from "node:url";

// NO_COLOR takes precedence over FORCE_COLOR, which build systems set for all their jobs. Node does the opposite, and warns of it on
// stderr while it loads TypeScript.
if (process.env.NO_COLOR) delete process.env.FORCE_COLOR;

if (Number.parseInt(process.versions.node, 10) >= 24) {
  // Caches stripped types and compiled code between runs, which halves the time to a first answer.
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
      `phoneproof: needs Node 24 or newer, this is ${process.version}; run npm ci in ${root} to install the pinned version`,
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
    // Ends with the same signal as the child, so that a shell sees the same result. If the signal does not end this process,
    // the exit code is 128 plus its number.
    for (const passed of signals) process.off(passed, passOn);
    process.exitCode = 128 + (constants.signals[signal] || 0);
    process.kill(process.pid, signal);
  });
}
