import { readFileSync } from "node:fs";

const read = () => JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));

/** This release, such as `0.7.7`, from package.json. */
export const { version } = read() as { readonly version: string };
