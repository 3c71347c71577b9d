import type { HandlerContext } from "@connectrpc/connect";
import { requireScope } from "../core/access.ts";
import type { Administration, AdministrationAs } from "../core/administration/administration.ts";
import { actorOf } from "../core/administration/audit.ts";
import { nameVerification } from "../core/call.ts";
import { callOf } from "./call-context.ts";

/**
 * Wraps methods that only an admin token may call; the audit log records them under that token. `signal` aborts when the call's
 * deadline passes, its client leaves or the service stops.
 */
export type AsAdmin = <Request, Response>(
  method: (administration: Administration, request: Request, signal: AbortSignal) => Promise<Response>,
) => (request: Request, context: HandlerContext) => Promise<Response>;

export function adminMethods(administrationAs: AdministrationAs): AsAdmin {
  return (method) => async (request, context) => {
    const { verificationId } = request as { readonly verificationId?: string };
    if (verificationId !== undefined) nameVerification(callOf(context), verificationId);
    return method(await administrationOf(administrationAs, context), request, context.signal);
  };
}

/** The administrative operations of the caller. Refuses a caller without the scope admin with insufficient_scope. */
export async function administrationOf(
  administrationAs: AdministrationAs,
  context: HandlerContext,
): Promise<Administration> {
  const call = callOf(context);
  requireScope(call.caller, "admin");
  return administrationAs(actorOf(call));
}
