import type { HandlerContext } from "@connectrpc/connect";
import { requireScope } from "../core/access.ts";
import type { Administration, AdministrationAs } from "../core/administration/administration.ts";
import { actorOf } from "../core/administration/audit.ts";
import { nameProject, nameVerification } from "../core/call.ts";
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
    const named = request as { readonly verificationId?: string; readonly projectId?: string };
    const call = callOf(context);
    if (named.verificationId !== undefined) nameVerification(call, named.verificationId);
    if (named.projectId !== undefined) nameProject(call, named.projectId);
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
