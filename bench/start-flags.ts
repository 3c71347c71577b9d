/** What `npm start` gives Node: the service is measured as it is started. */

import { readFileSync } from "node:fs";

const { scripts } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  readonly scripts: { readonly start: string };
};

export const startFlags: readonly string[] = scripts.start.split(" ").filter((word) => word.startsWith("--"));
