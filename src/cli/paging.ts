/** Lists that the service answers page by page. */

import { escapeControls } from "./terminal.ts";

/**
 * The first `limit` of a list from `pageToken` on, and the token of what comes after them, empty where nothing does. A page may
 * be short or empty and not be the last: what ends the list is that there is no token, or that it is long enough.
 */
export async function gather<Item>(
  from: { readonly pageToken: string | undefined; readonly limit: number; readonly largestPage: number },
  ask: (page: {
    readonly pageSize: number;
    readonly pageToken: string;
  }) => Promise<{ readonly items: readonly Item[]; readonly nextPageToken: string }>,
): Promise<{ readonly items: readonly Item[]; readonly nextPageToken: string }> {
  const items: Item[] = [];
  let nextPageToken = from.pageToken ?? "";
  do {
    const pageSize = Math.min(from.largestPage, from.limit - items.length);
    const page = await ask({ pageSize, pageToken: nextPageToken });
    items.push(...page.items);
    nextPageToken = page.nextPageToken;
  } while (nextPageToken !== "" && items.length < from.limit);
  return { items, nextPageToken };
}

/** What a person reads below a list that goes on; nothing where it does not. */
export function moreNote(nextPageToken: string): string[] {
  return nextPageToken === "" ? [] : [`There may be more: add --page-token ${escapeControls(nextPageToken)}`];
}
