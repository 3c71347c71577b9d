/** Part of npm run check: checks that clients of the last release keep working, over REST and over gRPC. */

import { spawnSync } from "node:child_process";
import path from "node:path";
import { openApiBreaks } from "./openapi-changes.ts";
import { buf, currentOpenApi, folderOf, protobufFile, readOpenApi, releases, root } from "./release.ts";

const last = releases().at(-1);
if (last === undefined) throw new Error("releases/ holds no release to compare with");

const breaks = openApiBreaks(readOpenApi(last), currentOpenApi());
for (const line of breaks) console.error(`breaks the REST API of ${last}: ${line}`);

const image = path.relative(root, path.join(folderOf(last), protobufFile));
// Packages that are not in the image, such as the internal one, may change.
const { status } = spawnSync(buf, ["breaking", "--against", image], { cwd: root, stdio: "inherit" });
if (status !== 0) console.error(`breaks the gRPC API of ${last}, or buf could not tell`);

process.exitCode = breaks.length > 0 || status !== 0 ? 1 : 0;
