/**
 * The service as a program. What it is made of is compiled once and kept: a start then takes half the time. Where the
 * folder cannot be written, as in a container, everything is compiled each time.
 */

import { enableCompileCache } from "node:module";
import path from "node:path";

enableCompileCache(path.join(import.meta.dirname, "../.cache/compiled"));
const { main } = await import("./main.ts");
await main();
