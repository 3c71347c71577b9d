/** Reads and checks files with certificates and keys. An error names the setting whose file it is. */
import { readFileSync } from "node:fs";
import { createSecureContext, type SecureContextOptions } from "node:tls";
import { SettingError } from "./setting-errors.ts";

/** PEM texts and the files they were read from. If `ca` is set, clients must present a certificate that it signed. */
export interface GrpcTls {
  readonly cert: string;
  readonly key: string;
  readonly ca: string | null;
  readonly files: { readonly cert: string; readonly key: string; readonly ca: string | null };
}

export function readGrpcTls(files: GrpcTls["files"]): GrpcTls {
  return {
    cert: readPem("GRPC_TLS_CERT", files.cert),
    key: readPem("GRPC_TLS_KEY", files.key),
    ca: files.ca === null ? null : readPem("GRPC_TLS_CA", files.ca),
    files,
  };
}

export function refuseUnusableTls(tls: GrpcTls): void {
  // The certificate first by itself, so that the error names the faulty file; the key, which may be another certificate's, last.
  tryTls("GRPC_TLS_CERT", { cert: tls.cert });
  refuseDisplaced("GRPC_TLS_CERT", tls.cert);
  // Checked as a certificate: as a CA, Node ignores a file that it cannot parse, and every client would then be
  // refused.
  if (tls.ca !== null) {
    tryTls("GRPC_TLS_CA", { cert: tls.ca });
    refuseDisplaced("GRPC_TLS_CA", tls.ca);
  }
  tryTls("GRPC_TLS_KEY", { cert: tls.cert, key: tls.key });
}

/** In front of a line that begins a certificate: white space or a byte order mark. TLS would ignore that certificate. */
const displaced = /^[^\S\r\n]+-----BEGIN [\w ]*CERTIFICATE-----/m;

/** In front of the first line of a file, or of the line behind a block: TLS skips it there. */
const skippedMark = /(^|-----END [\w ]+-----[^\S\n]*\n)\ufeff(?=-)/g;

function refuseDisplaced(name: string, pem: string): void {
  if (!displaced.test(pem.replace(skippedMark, "$1"))) return;
  throw new SettingError(
    `${name} names a file that has white space or a byte order mark in front of a line that begins a certificate`,
  );
}

export function tryTls(name: string, options: SecureContextOptions): void {
  try {
    createSecureContext(options);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new SettingError(
      `${name} names a file that cannot be used for TLS (${code ?? "not readable as PEM"})`,
    );
  }
}

export function readPem(name: string, file: string): string {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    throw new SettingError(
      `${name} names a file that cannot be read (${(error as NodeJS.ErrnoException).code})`,
    );
  }
  if (!text.includes("-----BEGIN ")) throw new SettingError(`${name} names a file that is not PEM`);
  return text;
}
