/** Writes one log line and ends at once, like a process that nothing has stopped in order. */

import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";

createLog("info", openLogOutput()).info("the last words");
process.exit(1);
