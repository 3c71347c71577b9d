import { hash } from "node:crypto";
import { Failure, type FieldViolation } from "../failures.ts";

const idHexDigits = 32;
const listHexDigits = 12;

/** A page of a list that is returned as a whole if the request gives no page size, as it was before it had pages. */
export interface PageRequest {
  /** 1 to 200; 0: all. */
  readonly pageSize: number;
  /** Empty: from the first. */
  readonly pageToken: string;
}

/**
 * Most gRPC clients accept no message over 4 MiB unless told otherwise. A project takes up to 11 kB: a return URL has up to 2048
 * characters, of up to four bytes each.
 */
const largestPage = 200;

/** What to read for such a page. Throws validation_failed, with what was found wrong before. */
export function pageOf(
  { pageSize, pageToken: token }: PageRequest,
  list: object,
  found: readonly FieldViolation[] = [],
) {
  const violations = [...found];
  const limit = pageLimit(pageSize, { usual: Number.POSITIVE_INFINITY, most: largestPage }, violations);
  const after = pageStart(token, list, violations);
  if (violations.length > 0) throw new Failure("validation_failed", { fields: violations });
  return { limit, range: { after, limit: limit + 1 } };
}

/** Part of a list in the order of its ids. */
export interface ListRange {
  /** A UUID; null: from the first. */
  readonly after: string | null;
  /** Infinite: all that follow. */
  readonly limit: number;
}

/** The number of entries on a page: `usual` if the request says 0. A size out of range is added to the violations. */
export function pageLimit(
  pageSize: number,
  { usual, most }: { readonly usual: number; readonly most: number },
  violations: FieldViolation[],
): number {
  if (pageSize < 0 || pageSize > most)
    violations.push({ field: "page_size", message: `must be 1 to ${most}` });
  return pageSize === 0 ? usual : pageSize;
}

/**
 * A token for the page that follows the entry with UUID `lastId`. `list` is the request apart from page size and token;
 * its digest goes into the token, because a token used with another list would return entries that are not that list's
 * next page.
 */
export function pageToken(lastId: string, list: object): string {
  return Buffer.from(lastId.replaceAll("-", "") + digestOf(list), "hex").toString("base64url");
}

/**
 * Cuts one page from entries fetched with a limit of `limit + 1`, and makes the next page's token, empty on the last
 * page. `idOf` returns the UUID by which the list is ordered.
 */
export function paginate<Item>(
  found: readonly Item[],
  limit: number,
  idOf: (item: Item) => string,
  list: object,
): { readonly items: readonly Item[]; readonly nextPageToken: string } {
  const items = found.slice(0, limit);
  const last = items.at(-1);
  const more = found.length > items.length && last !== undefined;
  return { items, nextPageToken: more ? pageToken(idOf(last), list) : "" };
}

/**
 * In bytes, about. Most gRPC libraries accept no message over 4 MiB unless told otherwise, and the largest entries of some lists can
 * take more on a page: of deliveries, 200 with ten attempts each, since if an endpoint's answers are not UTF-8, most of their bytes
 * become three.
 */
const longestPage = 2 * 1024 * 1024;

/** How many of at most `limit + 1` items fit on a page of up to `limit`; the first always does. */
export function fitting<Item>(
  items: readonly Item[],
  limit: number,
  bytesOf: (item: Item) => number,
): number {
  let bytes = 0;
  const beyond = items.findIndex((item) => {
    bytes += bytesOf(item);
    return bytes > longestPage;
  });
  return beyond === -1 ? limit : Math.max(1, beyond);
}

/**
 * The UUID of the previous page's last entry; null for the first page. A token that is of another list or, without `list`,
 * malformed is added to the violations.
 */
export function pageStart(
  token: string,
  list: object | undefined,
  violations: FieldViolation[],
): string | null {
  if (token === "") return null;
  const bytes = Buffer.from(token, "base64url");
  const hex = bytes.toString("hex");
  // Node ignores characters that are not of the alphabet.
  const isToken = bytes.toString("base64url") === token && hex.length === idHexDigits + listHexDigits;
  if (isToken && (list === undefined || hex.slice(idHexDigits) === digestOf(list))) {
    return hex.slice(0, idHexDigits).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  }
  violations.push({
    field: "page_token",
    message: "must be the next_page_token of an earlier response to the same request",
  });
  return null;
}

const digestOf = (list: object) => hash("sha256", JSON.stringify(list), "hex").slice(0, listHexDigits);
