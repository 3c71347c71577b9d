/** Why a call was refused, as the log says it. */

import type { Failure } from "../failures.ts";
import { UnknownCredential } from "./admission.ts";

/** A field that the request does not have: its name is the client's own text. */
const otherField = "(unknown)";

/**
 * What explains a refusal without anything that the client wrote: which key it was, or which fields of the request.
 * `isKnown` tells the fields that the request can have.
 */
export function refusalReason(
  failure: Failure | undefined,
  isKnown: (field: string) => boolean,
): { readonly keyEnding?: string; readonly fields?: readonly string[] } {
  if (failure instanceof UnknownCredential) return { keyEnding: failure.ending };
  if (failure === undefined || failure.fields.length === 0) return {};
  const named = failure.fields.map(({ field }) => (isKnown(field) ? field : otherField));
  return { fields: [...new Set(named)] };
}
