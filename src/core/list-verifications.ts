import { Failure, type FieldViolation } from "../failures.ts";
import {
  boundsOf,
  chargedProject,
  missingProject,
  type NamedScope,
  noSuchProject,
  requireScope,
} from "./access.ts";
import type { Call } from "./call.ts";
import { creationLimits } from "./create-verification.ts";
import type { Directory } from "./directory.ts";
import { pageLimit, pageStart, pageToken } from "./page-token.ts";
import { normaliseMobile, notMobile } from "./phone.ts";
import { checkText } from "./text-field.ts";
import type { UsageCount } from "./usage.ts";
import type { Verification, VerificationFilter, VerificationStatus, Verifications } from "./verification.ts";

export interface ListRequest extends NamedScope {
  /** 1 to 1000; 0 means 100. */
  readonly pageSize: number;
  /** Empty for the first page. */
  readonly pageToken: string;
  readonly statuses: readonly VerificationStatus[];
  /** Empty: any. */
  readonly clientReference: string;
  /** Empty: any. */
  readonly phone: string;
  /** Milliseconds since the epoch; null: unbounded. */
  readonly createdFrom: number | null;
  readonly createdBefore: number | null;
}

export interface ListedPage {
  readonly verifications: readonly Verification[];
  /** Empty on the last page only: a page with few entries, or none, need not be the last. */
  readonly nextPageToken: string;
}

export type ListVerifications = (request: ListRequest, call: Call) => Promise<ListedPage>;

const pageSizes = { usual: 100, most: 1000 };

/** Lists a project's verifications, newest first. The page token holds the last id that the previous page examined. */
export function listVerifications(parts: {
  readonly verifications: Verifications;
  readonly directory: Pick<Directory, "project">;
  readonly chargeUsage: (projectId: string) => Promise<UsageCount>;
}): ListVerifications {
  return async (request, call) => {
    requireScope(call.caller, "read");
    const filter = filterOf(request, call);
    const chargeTo = chargedProject(call.caller);
    // A merchant caller's own project exists. A service token may have mistyped the project id: without this check it
    // would get an empty list instead of an error.
    if (chargeTo === null && (await parts.directory.project(filter.projectId)) === null)
      throw noSuchProject();
    const { verifications, after } = await parts.verifications.list(filter);
    // Charged last: a request that cannot be answered is not charged.
    if (chargeTo !== null) call.usage = await parts.chargeUsage(chargeTo);
    return { verifications, nextPageToken: after === null ? "" : pageToken(after, listOf(filter)) };
  };
}

function filterOf(request: ListRequest, call: Call): VerificationFilter {
  const { projectId, environment } = boundsOf(call.caller, request);
  const violations: FieldViolation[] = [...call.violations];
  if (projectId === null) violations.push(missingProject);
  const limit = pageLimit(request.pageSize, pageSizes, violations);
  const reference = checkText("client_reference", request.clientReference, {
    max: creationLimits.clientReference,
  });
  if (reference) violations.push(reference);
  const phone = request.phone === "" ? null : normaliseMobile(request.phone);
  if (request.phone !== "" && phone === null) violations.push(notMobile("phone"));
  const filter = {
    projectId: projectId ?? "",
    environment,
    // Deduplicated and sorted, because the same statuses in another order are the same list for the page token, and
    // because each row is compared with all of them.
    statuses: [...new Set(request.statuses)].sort(),
    clientReference: request.clientReference === "" ? null : request.clientReference,
    phone,
    createdFrom: request.createdFrom,
    createdBefore: request.createdBefore,
    limit,
  };
  // If another field is invalid, the token's list is not known, so only the token's format can be checked.
  const isClear = violations.every(({ field }) => field === "page_size");
  const before = pageStart(request.pageToken, isClear ? listOf(filter) : undefined, violations);
  if (violations.length > 0) throw new Failure("validation_failed", { fields: violations });
  return { ...filter, before };
}

/**
 * What identifies the list that a page token belongs to. The time bounds are left out because clients that ask for "the
 * last 24 hours" send different bounds with each page. The rows that follow a page are the same nevertheless: they are
 * older than everything that the moving bounds admit at the newer end.
 */
function listOf(filter: Omit<VerificationFilter, "before" | "limit">): object {
  const { projectId, environment, statuses, clientReference, phone } = filter;
  return [projectId, environment, statuses, clientReference, phone];
}
