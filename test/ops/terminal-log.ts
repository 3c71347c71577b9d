/** Writes one log line. A test runs it on a terminal. */
import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";

createLog("info", openLogOutput()).warn({ answer: 42 }, "something to see");
