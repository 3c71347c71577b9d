// The service as a program. Compiled code is cached on disk, which halves the time of a start. If the folder cannot be written,
// as in a container, everything is compiled at each start. Plain JavaScript, because the cache cannot hold the file that
// switches it on: in TypeScript, that one would load Node's compiler, which takes about a tenth of a start. An old Node must be
// able to run this file, too, to report that it cannot run the rest.

import module from "node:module";
import { fileURLToPath } from "node:url";

if (Number.parseInt(process.versions.node, 10) >= 24) {
  module.enableCompileCache(fileURLToPath(new URL("../.cache/compiled", import.meta.url)));
  await import("../src/start.ts");
} else {
  console.error(`phoneproof cannot start: it needs Node 24 or newer, this is ${process.version}`);
  process.exitCode = 1;
}
