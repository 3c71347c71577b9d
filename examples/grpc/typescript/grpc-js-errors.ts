/** What the service says of an error, with @grpc/grpc-js: the detail that every one of its own has. */

import path from "node:path";
import type { ServiceError } from "@grpc/grpc-js";
import { fromJSON, loadSync, type MessageTypeDefinition } from "@grpc/proto-loader";
import type { ErrorDetail } from "./refusal.ts";

/** As much as is needed of google.rpc.Status, in which gRPC wraps details. */
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

/** Undefined where the network or a proxy spoke. */
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
