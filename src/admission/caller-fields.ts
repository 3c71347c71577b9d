import { encodeId } from "../core/ids.ts";
import { type Caller, tokenNameOf } from "../core/project.ts";

/**
 * Who called, for the log: a merchant's project and which of its keys, or which service token. So it can be found out what a leaked one
 * was used for.
 */
export function callerFields(caller: Caller) {
  if (caller.kind === "merchant") {
    const { project, apiKeyId, environment } = caller;
    return { projectId: encodeId("prj_", project.id), apiKeyId: encodeId("key_", apiKeyId), environment };
  }
  const { scope, source } = caller;
  return { tokenId: tokenNameOf(caller), scope, source };
}
