/** npm run release:record: stores the current APIs as the release that package.json names. */

import { execFileSync } from "node:child_process";
import { mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import manifest from "../package.json" with { type: "json" };
import { buf, currentOpenApi, folderOf, openApiFile, protobufFile, releases, root } from "./release.ts";

const { version } = manifest;
if (releases().includes(version)) {
  console.error(`${version} has been released: give package.json the next version first`);
  process.exit(1);
}

// Written to a temporary folder and then renamed, so that an incomplete release is never compared against.
const draft = `${folderOf(version)}.draft`;
rmSync(draft, { recursive: true, force: true });
mkdirSync(draft);
writeFileSync(path.join(draft, openApiFile), `${JSON.stringify(currentOpenApi(), null, 2)}\n`);
execFileSync(
  buf,
  ["build", "--path", "proto/phoneproof/v1", "--exclude-source-info", "-o", path.join(draft, protobufFile)],
  { cwd: root, stdio: "inherit" },
);
renameSync(draft, folderOf(version));
console.log(`releases/${version} is kept: commit it`);
