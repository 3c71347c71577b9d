/**
 * What grpc-js reports about a proxy. It says so only in its log, on stderr, as lines that are neither this command's message nor
 * its JSON, and leaves it out of the error of the call.
 */

import { setLogger } from "@grpc/grpc-js";

let latestFault: string | undefined;

setLogger({
  error: (line: unknown) => {
    const text = String(line);
    if (/proxy/i.test(text)) latestFault = text;
    else console.error(text);
  },
  // Only if somebody asks for them with GRPC_VERBOSITY and GRPC_TRACE.
  info: console.error,
  debug: console.error,
});

/** The latest; undefined if there is none since `forgetProxyFault`. */
export function proxyFault(): string | undefined {
  return latestFault;
}

export function forgetProxyFault(): void {
  latestFault = undefined;
}

/** The variable whose proxy grpc-js uses: these, in this order and only in lower case. */
export function proxyVariable(): string | undefined {
  return ["grpc_proxy", "https_proxy", "http_proxy"].find((name) => process.env[name]);
}
