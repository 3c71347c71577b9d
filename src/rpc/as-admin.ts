import type { HandlerContext } from "@connectrpc/connect";
import { requireScope } from "../core/access.ts";
import { callOf } from "./call-context.ts";

/** A method that only an admin token may call. */
export function asAdmin<Request, Response>(
  method: (request: Request) => Promise<Response>,
): (request: Request, context: HandlerContext) => Promise<Response> {
  return async (request, context) => {
    requireScope(callOf(context).caller, "admin");
    return method(request);
  };
}
