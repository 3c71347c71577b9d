/** The compressions of messages over gRPC. */

import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";

const compressByBrotli = promisify(brotliCompress);

/**
 * About as small and as fast as gzip. With brotli's default, the answer to a request of 64 KiB took a tenth of a second and a page of a
 * thousand verifications a quarter, twenty to ninety times as long, in one of the four threads that also decompress requests.
 */
const brotliQuality = 4;

/** Those that requests may have. A client chooses that of its answers, also one without a credential. */
export const compressions: Compression[] = [
  compressionGzip,
  {
    ...compressionBrotli,
    compress: (bytes) =>
      compressByBrotli(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: brotliQuality } }),
  },
];
