import { hash } from "node:crypto";
import type { FieldViolation } from "../failures.ts";

const idHexDigits = 32;
const listHexDigits = 12;

export const strayPageToken: FieldViolation = {
  field: "page_token",
  message: "must be the next_page_token of an earlier answer to the same request",
};

/** How many a page holds: the usual number where the request says 0. One that it may not ask for is added to the violations. */
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
 * Where a page ended, by the UUID of the last of it, and in which list: `list` is what was asked for besides page size and
 * token. In another list it would answer what looks like a page and is none.
 */
export function pageToken(lastId: string, list: object): string {
  return Buffer.from(lastId.replaceAll("-", "") + digestOf(list), "hex").toString("base64url");
}

/**
 * A page out of what was found with a limit of one more than `limit`, and the token of the next one, empty on the last. `idOf`
 * answers the UUID by which the list is ordered.
 */
export function pageOf<Item>(
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

/** The UUID of the last of the page before; undefined where the token is none of this list, or of any where none is given. */
export function lastOfPage(token: string, list: object | undefined): string | undefined {
  const hex = Buffer.from(token, "base64url").toString("hex");
  if (hex.length !== idHexDigits + listHexDigits) return undefined;
  if (list !== undefined && hex.slice(idHexDigits) !== digestOf(list)) return undefined;
  return hex.slice(0, idHexDigits).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

const digestOf = (list: object) => hash("sha256", JSON.stringify(list), "hex").slice(0, listHexDigits);
