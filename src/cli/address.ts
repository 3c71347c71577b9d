/** Finds the service's address and the token to authenticate with. */

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { CliError, wrongUsage } from "./cli-error.ts";

export interface ServiceAddress {
  /** `host:port`, for messages. */
  readonly shown: string;
  readonly host: string;
  readonly port: number;
  readonly tls: boolean;
}

export interface Token {
  readonly secret: string;
  /** The option, variable or file it was read from, for messages. */
  readonly source: string;
}

const packageRoot = fileURLToPath(new URL("../..", import.meta.url));

export const howToSetAddress =
  "start it with npm start, or set its address with --address or PHONEPROOF_ADDRESS";

const howToSetToken = "give one with --token or PHONEPROOF_TOKEN";

/** `--address`, else `PHONEPROOF_ADDRESS`, else this machine's `GRPC_PORT` (default 50051). */
export function findAddress(option: string | undefined): ServiceAddress {
  if (option !== undefined) return parseAddress(option, "--address");
  const fromEnvironment = process.env.PHONEPROOF_ADDRESS;
  if (fromEnvironment) return parseAddress(fromEnvironment, "PHONEPROOF_ADDRESS");
  return parseAddress(`127.0.0.1:${process.env.GRPC_PORT || "50051"}`, "GRPC_PORT");
}

function parseAddress(text: string, setting: string): ServiceAddress {
  const refuse = () =>
    wrongUsage(
      `${setting}: '${text}' is not an address; write host:port, http://host:port or https://host:port`,
    );
  const withScheme = /^https?:\/\//i.test(text) ? text : `http://${text}`;
  if (!URL.canParse(withScheme)) throw refuse();
  const url = new URL(withScheme);
  const tls = url.protocol === "https:";
  // URL drops a port that is the scheme's default, so it is read from the original text.
  const named = /:(\d+)\/?$/.exec(text)?.[1];
  const port = url.port !== "" ? Number(url.port) : named !== undefined ? Number(named) : tls ? 443 : 0;
  const plain = url.pathname === "/" && url.search === "" && url.hash === "" && url.username === "";
  if (!plain || url.hostname === "" || port < 1) throw refuse();
  return { shown: `${url.hostname}:${port}`, host: url.hostname, port, tls };
}

export function isThisMachine({ host }: ServiceAddress): boolean {
  return /^(localhost|127(\.\d+){3}|0\.0\.0\.0|\[::1?\])$/.test(host);
}

/**
 * `--token`, else `PHONEPROOF_TOKEN`, else the admin token of a service on this machine: `PHONEPROOF_ADMIN_TOKEN` or
 * `DATA_DIR/admin-token`. These last two are never sent to another machine.
 */
export function findToken(option: string | undefined, address: ServiceAddress): Token {
  if (option !== undefined) return checkedToken(option, "--token");
  const fromEnvironment = process.env.PHONEPROOF_TOKEN;
  if (fromEnvironment) return checkedToken(fromEnvironment, "PHONEPROOF_TOKEN");
  if (!isThisMachine(address)) {
    throw noToken(`no token for ${address.shown}`);
  }
  const own = process.env.PHONEPROOF_ADMIN_TOKEN;
  return own ? checkedToken(own, "PHONEPROOF_ADMIN_TOKEN") : readTokenFile(address);
}

function readTokenFile(address: ServiceAddress): Token {
  const dataDirectory = process.env.DATA_DIR || ".data";
  const files = new Set(
    [process.cwd(), packageRoot].map((base) => resolve(base, dataDirectory, "admin-token")),
  );
  let missing = "";
  for (const file of files) {
    try {
      return checkedToken(readFileSync(file, "utf8"), file);
    } catch (error) {
      if (error instanceof CliError) throw error;
      const code = error instanceof Error && "code" in error ? error.code : undefined;
      missing ||= file;
      if (code !== "ENOENT" && code !== "ENOTDIR") {
        throw noToken(`the admin token for ${address.shown} cannot be read from ${file} (${String(code)})`);
      }
    }
  }
  throw noToken(
    `no admin token for ${address.shown}: ${missing} does not exist`,
    `the service creates it at its first start (npm start), unless DATABASE_URL is set: then it uses PHONEPROOF_ADMIN_TOKEN; ${howToSetToken}`,
  );
}

/**
 * A token is sent as a Bearer credential, which allows no other characters. The line break at the end of a file, with which it
 * also gets into variables and secret stores, is not part of it.
 */
function checkedToken(text: string, source: string): Token {
  const secret = text.trim();
  if (/^[A-Za-z0-9._~+/-]+=*$/.test(secret)) return { secret, source };
  throw noToken(`${source} contains no token: it is empty or has characters that tokens never have`);
}

function noToken(message: string, advice = howToSetToken): CliError {
  return new CliError(3, "token_missing", message, { advice });
}
