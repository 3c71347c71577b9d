/** What the gRPC port shows: whoever renews a certificate replaces its files, and tells nobody. */

import { X509Certificate } from "node:crypto";
import type { Logger } from "pino";
import { type GrpcTls, refuseUnusableTls } from "./config.ts";
import { type Job, repeat } from "./jobs/job.ts";

/** The files are not watched: Kubernetes swaps a link on the way to them, which a watch does not hear of. */
const lookMs = 60_000;

interface Parts {
  /** What the port was opened with. */
  readonly first: GrpcTls;
  /** Reads the files anew; throws where it cannot. */
  readonly read: () => GrpcTls;
  /** Shows these to new connections. */
  readonly take: (tls: GrpcTls) => void;
  readonly onExpiry: (expiry: Date) => void;
  readonly log: Logger;
}

/** Takes what has come into the files once it is whole and its time has begun; until then what was there before stays. */
export function renewCertificate(parts: Parts): Job {
  const { first, onExpiry, log } = parts;
  const certificate = new X509Certificate(first.cert);
  onExpiry(certificate.validToDate);
  const fault = faultOfTime(certificate);
  if (fault !== null) log.warn(`${fault}: clients refuse it`);
  const look = lookForRenewed(parts);
  return repeat({
    work: async () => {
      look();
      return false;
    },
    idleMs: lookMs,
    busyMs: lookMs,
    onError: (error) => log.error({ err: error }, "whether the certificate was renewed could not be seen"),
  });
}

/** One look at the files a call. */
export function lookForRenewed({ first, read, take, onExpiry, log }: Parts): () => void {
  let inUse = JSON.stringify(first);
  let refused = "";

  /** Once for each content. */
  function refuse(content: string, { message }: Error): void {
    if (content === refused) return;
    refused = content;
    log.warn(
      { reason: message },
      "the gRPC port keeps its certificate: what has come into the files is no use",
    );
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
      log.info({ expiry: validToDate }, "the gRPC port shows a renewed certificate to new connections");
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
