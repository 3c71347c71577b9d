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
      const fault = faultOfTime(certificate);
      if (fault !== null) throw new Error(fault);
      take(tls);
      inUse = found;
      const { validToDate } = certificate;
      onExpiry(validToDate);
      log.info({ expiry: validToDate }, "the gRPC port presents a renewed certificate to new connections");
    } catch (error) {
      refuse(found || (error as Error).message, error as Error);
    }
  };
}

function faultOfTime({ validFromDate, validToDate }: X509Certificate): string | null {
  const now = Date.now();
  if (now < validFromDate.getTime()) {
    return `GRPC_TLS_CERT names a certificate that is not valid before ${validFromDate.toISOString()}`;
  }
  if (now > validToDate.getTime()) {
    return `GRPC_TLS_CERT names a certificate that expired at ${validToDate.toISOString()}`;
  }
  return null;
}
