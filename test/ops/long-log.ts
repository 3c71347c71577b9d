/** Writes more lines than a reader takes at once, and ends like the service. */

import { openLogOutput } from "../../src/log/log-output.ts";

const output = openLogOutput();
for (let line = 0; line < 3_000; line++) {
  output.write(`${JSON.stringify({ line, filling: "x".repeat(1_000) })}\n`);
}
await output.end();
process.exit(0);
