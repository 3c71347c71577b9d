/**
 * The service as a program. What it is made of is compiled once and kept: a start then takes half the time. Where the
 * folder cannot be written, as in a container, everything is compiled each time.
 */

import { enableCompileCache, flushCompileCache } from "node:module";
import path from "node:path";
import { setFlagsFromString } from "node:v8";
import { endAtOnce, endSignals } from "./end-signals.ts";

// What follows takes a good part of a second.
for (const signal of endSignals) process.on(signal, endAtOnce);
enableCompileCache(path.join(import.meta.dirname, "../.cache/compiled"));
const { main } = await import("./main.ts");
// What is compiled before and after flags are changed is of no use to the other: neither ours nor what Node brings of its own.
flushCompileCache();
// What often outlives a collection of young objects would be made old at once. Here it is what waits for the database, which
// is done with a moment later; made old, it would keep all that hangs on it up to the next full collection.
setFlagsFromString("--no-allocation-site-pretenuring");
// Little lives long, and a full collection of it takes a hundredth of a second: it need not wait for twice as much.
setFlagsFromString("--heap-growing-percent=30");
// So little outlives a young collection that threads would only wait for each other, and for a processor.
setFlagsFromString("--no-parallel-scavenge");
await main();
