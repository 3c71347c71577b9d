import type { ConnectRouterOptions } from "@connectrpc/connect";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import { requireScope } from "../core/access.ts";
import { newRequestId } from "../core/ids.ts";
import type { Caller } from "../core/project.ts";
import { asFailure } from "../failures.ts";
import { connectError, lineOf, logCall, neededScope, type RpcObserver } from "./admission-interceptor.ts";
import { addressKey } from "./call-context.ts";

/**
 * Refuses who may not call before anything of the message is read: the interceptor comes after a whole message, and
 * strangers would have this process hold theirs for them.
 */
export function admissionGate(parts: {
  readonly admission: Admission;
  readonly log: Logger;
  readonly observer: RpcObserver;
}): NonNullable<ConnectRouterOptions["requestGate"]> {
  const { admission, log, observer } = parts;
  return async ({ method, requestHeader, values }) => {
    const startedAt = performance.now();
    let caller: Caller | undefined;
    try {
      const authorization = requestHeader.get("authorization") ?? undefined;
      caller = await admission.authenticate(authorization, values.get(addressKey));
      requireScope(caller, neededScope(method));
    } catch (thrown) {
      const failure = asFailure(thrown);
      const requestId = newRequestId();
      logCall(log, lineOf({ requestId, method, code: failure.code, startedAt, caller }), failure);
      const refused = {
        method: `${method.parent.typeName}/${method.name}`,
        streaming: method.methodKind !== "unary",
      };
      observer.begun(refused.method, refused.streaming);
      observer.answered({
        ...refused,
        code: failure.code,
        charged: false,
        seconds: (performance.now() - startedAt) / 1_000,
      });
      throw connectError(failure, requestId);
    }
  };
}
