/** Starts and ends the service, and prints the files of all modules that were loaded for it. */

import { createRequire, registerHooks } from "node:module";

const loaded: string[] = [];
registerHooks({
  load(url, context, nextLoad) {
    loaded.push(url);
    return nextLoad(url, context);
  },
});

const { parseConfig } = await import("../../src/config.ts");
const { startService } = await import("../../src/service.ts");
const { createLog } = await import("../../src/log/log.ts");
const { openLogOutput } = await import("../../src/log/log-output.ts");

const config = parseConfig({ ...process.env, PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent" });
const service = await startService(config, createLog(config.logLevel, openLogOutput()));
await service.close();
const required = Object.keys(createRequire(import.meta.url).cache);
process.stdout.write([...loaded, ...required].join("\n"), () => process.exit());
