/** Reading of lists that the service returns page by page. */

import type { Session } from "./session.ts";
import { escapeControls } from "./terminal.ts";

/** The service's maximum page size for nearly all lists. */
const usualLargestPage = 200;

/**
 * Reads up to `limit` items from `pageToken` on, and returns them with the token of what follows, empty if nothing does. A page
 * may be short or empty without being the last: reading stops only when there is no token or the limit is reached.
 */
export async function gather<Item>(
  from: { readonly pageToken: string | undefined; readonly limit: number; readonly largestPage?: number },
  ask: (page: {
    readonly pageSize: number;
    readonly pageToken: string;
  }) => Promise<{ readonly items: readonly Item[]; readonly nextPageToken: string }>,
): Promise<{ readonly items: readonly Item[]; readonly nextPageToken: string }> {
  const { limit, largestPage = usualLargestPage } = from;
  const items: Item[] = [];
  let nextPageToken = from.pageToken ?? "";
  do {
    const pageSize = Math.min(largestPage, limit - items.length);
    const page = await ask({ pageSize, pageToken: nextPageToken });
    for (const item of page.items) items.push(item);
    nextPageToken = page.nextPageToken;
  } while (nextPageToken !== "" && items.length < limit);
  return { items, nextPageToken };
}

/**
 * Tells a person that a list continues, after its output: on stderr, so that a pipe or a file gets only the list. In JSON the list has
 * the token.
 */
export function noteMore({ json }: Session, nextPageToken: string): void {
  if (json || nextPageToken === "") return;
  const apart = process.stdout.isTTY ? "\n" : "";
  process.stderr.write(`${apart}There may be more: add --page-token ${escapeControls(nextPageToken)}\n`);
}
