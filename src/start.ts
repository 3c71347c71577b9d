/** What bin/start.mjs starts. */

import { flushCompileCache } from "node:module";
import { setFlagsFromString } from "node:v8";
import { endAtOnce, endSignals } from "./end-signals.ts";

// Importing main takes a good part of a second, in which a signal must not be lost.
for (const signal of endSignals) process.on(signal, endAtOnce);
const { main } = await import("./main.ts");
// Before the flags change: V8 cannot reuse cached code across a change of flags, neither that of the service nor that
// of Node itself.
flushCompileCache();
// Allocation-site pretenuring allocates objects directly in the old generation if those of their site often survive a
// young collection. Here those belong to requests that wait for the database and end a moment later; in the old
// generation they would retain everything they reference until the next full collection.
setFlagsFromString("--no-allocation-site-pretenuring");
// Little is long-lived, and a full collection takes 10 ms, so the heap need not double before the next one.
setFlagsFromString("--heap-growing-percent=30");
// So little survives a young collection that parallel threads would only wait for each other, and for a CPU.
setFlagsFromString("--no-parallel-scavenge");
await main();
