/** Reads the service's error detail with @grpc/grpc-js. Every error that the service itself returns has one. */

import path from "node:path";
import type { ServiceError } from "@grpc/grpc-js";
import { fromJSON, loadSync, type MessageTypeDefinition } from "@grpc/proto-loader";
import type { ErrorDetail } from "./refusal.ts";

/** The needed part of google.rpc.Status, in which gRPC wraps error details. */
const { Status } = fromJSON({
  nested: {
    Status: { fields: { details: { rule: "repeated", type: "Any", id: 3 } } },
    Any: { fields: { type_url: { type: "string", id: 1 }, value: { type: "bytes", id: 2 } } },
  },
});

const { "phoneproof.v1.ErrorDetail": Detail } = loadSync("phoneproof/v1/error.proto", {
  includeDirs: [path.join(import.meta.dirname, "../../../proto")],
  defaults: true,
});

/** Undefined if the error comes from the network or a proxy. */
export function detailOf({ metadata }: ServiceError): ErrorDetail | undefined {
  const [wrapped] = metadata?.get("grpc-status-details-bin") ?? [];
  if (!(wrapped instanceof Buffer)) return undefined;
  const { details = [] } = (Status as MessageTypeDefinition<object, Wrapping>).deserialize(wrapped);
  const found = details.find(({ type_url: url }) => url.endsWith("/phoneproof.v1.ErrorDetail"));
  return found && (Detail as MessageTypeDefinition<object, ErrorDetail>).deserialize(found.value);
}

interface Wrapping {
  readonly details?: readonly { readonly type_url: string; readonly value: Buffer }[];
}
