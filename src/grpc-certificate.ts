/** Keeps the gRPC port's certificate current: renewal tools replace the files without notifying the service. */

import { X509Certificate } from "node:crypto";
import type { Logger } from "pino";
import { type Job, repeat } from "./jobs/job.ts";
import { type GrpcTls, refuseUnusableTls } from "./tls-files.ts";

/** The files are polled: Kubernetes swaps a symlink on their path, which a file watch does not report. */
const checkEveryMs = 60_000;

interface Parts {
  /** The certificate the port was opened with. */
  readonly first: GrpcTls;
  /** Reads the files again; throws if that fails. */
  readonly read: () => GrpcTls;
  /** Presents this certificate to new connections. */
  readonly take: (tls: GrpcTls) => void;
  readonly onExpiry: (expiry: Date) => void;
  readonly log: Logger;
}

/** Switches to renewed files once they are complete and the certificate is valid; until then the previous one stays in use. */
export function renewCertificate(parts: Parts): Job {
  const { first, onExpiry, log } = parts;
  const certificate = new X509Certificate(first.cert);
  onExpiry(certificate.validToDate);
  const fault = faultOfTime(certificate);
  if (fault !== null) log.warn(`${fault}: clients refuse it`);
  const authorityFault = faultOfAuthorities(first.ca);
  if (authorityFault !== null) log.warn(`${authorityFault}: every client is refused`);
  const check = createRenewalCheck(parts);
  return repeat({
    work: async () => {
      check();
      return false;
    },
    idleMs: checkEveryMs,
    busyMs: checkEveryMs,
    onError: (error) => log.error({ err: error }, "the check for a renewed certificate failed"),
  });
}

/** Returns a function that checks the files once per call. */
export function createRenewalCheck({ first, read, take, onExpiry, log }: Parts): () => void {
  let inUse = JSON.stringify(first);
  let authoritiesInUse = first.ca;
  let refused = "";

  /** Logs each unusable content once. */
  function refuse(content: string, { message }: Error): void {
    if (content === refused) return;
    refused = content;
    log.warn({ reason: message }, "the gRPC port keeps its certificate: the new files are not usable");
  }

  return () => {
    let found = "";
    try {
      const tls = read();
      found = JSON.stringify(tls);
      if (found === inUse) return;
      refuseUnusableTls(tls);
      const certificate = new X509Certificate(tls.cert);
      // Authorities that have expired in use do not hold back a renewed certificate.
      const fault =
        faultOfTime(certificate) ?? (tls.ca === authoritiesInUse ? null : faultOfAuthorities(tls.ca));
      if (fault !== null) throw new Error(fault);
      take(tls);
      inUse = found;
      authoritiesInUse = tls.ca;
      const { validToDate } = certificate;
      onExpiry(validToDate);
      log.info({ expiry: validToDate }, "the gRPC port presents a renewed certificate to new connections");
    } catch (error) {
      refuse(found || (error as Error).message, error as Error);
    }
  };
}

function faultOfTime({ validFromDate, validToDate }: X509Certificate, name = "GRPC_TLS_CERT"): string | null {
  const now = Date.now();
  if (now < validFromDate.getTime()) {
    return `${name} names a certificate that is not valid before ${validFromDate.toISOString()}`;
  }
  if (now > validToDate.getTime()) {
    return `${name} names a certificate that expired at ${validToDate.toISOString()}`;
  }
  return null;
}

const pemCertificate = /-----BEGIN ([\w ]*CERTIFICATE)-----[^-]*-----END \1-----/g;

/**
 * TLS accepts a client only by a chain up to a root that is in the file and valid: the first root's fault if all have one. Of an old
 * and a new one in a file, the old one may have expired. What cannot be read here was judged by what reads it for TLS.
 */
function faultOfAuthorities(ca: string | null): string | null {
  const authorities = (ca?.match(pemCertificate) ?? []).flatMap(readable);
  const [first] = authorities;
  if (first === undefined) return null;
  const faults = authorities
    .filter(({ isRoot }) => isRoot)
    .map(({ certificate }) => faultOfTime(certificate, "GRPC_TLS_CA"));
  if (faults.includes(null)) return null;
  return faults[0] ?? `GRPC_TLS_CA names a file without the root certificate of ${nameOf(first.certificate)}`;
}

interface Authority {
  readonly certificate: X509Certificate;
  /** Whether a chain that reaches it needs nothing above it. */
  readonly isRoot: boolean;
}

const nameOf = ({ subject }: X509Certificate) => subject.replaceAll("\n", ", ");

/**
 * Roots are self-signed certificates, also a client's own, which need not be allowed to sign others; and those that OpenSSL has
 * marked as trusted.
 */
function readable(pem: string): Authority[] {
  try {
    const certificate = new X509Certificate(pem);
    const { subject, issuer } = certificate;
    return [{ certificate, isRoot: subject === issuer || pem.startsWith("-----BEGIN TRUSTED") }];
  } catch {
    return [];
  }
}
