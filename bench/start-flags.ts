/** The Node flags of `npm start`, so that the measured service runs with the same ones. */

import { readFileSync } from "node:fs";

const script = readFileSync(new URL("../bin/start.sh", import.meta.url), "utf8");
const [, words] = /^exec node (.*) "\$bin\/start\.mjs"/m.exec(script) ?? [];
if (words === undefined) throw new Error("bin/start.sh does not start the service as expected");

export const startFlags: readonly string[] = words.split(" ").filter((word) => word.startsWith("--"));
