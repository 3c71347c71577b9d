/** A program with a line for its log: run on a terminal by a test. */
import { createLog } from "../../src/log.ts";
import { openLogOutput } from "../../src/log-output.ts";

createLog("info", openLogOutput()).warn({ answer: 42 }, "something to see");
