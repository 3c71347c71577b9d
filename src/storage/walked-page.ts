/** What a walk through a list, newest first, has come to. */
export interface Walked<Item> {
  readonly item: Item;
  /** Whether it is asked for: the last of a walk is there in any case. */
  readonly matches: boolean;
  /** The walk goes no further, though the list may. */
  readonly endsWalk: boolean;
}

/**
 * A page of at most `limit` of what was found with a limit of one more, and where the next one goes on: `after` this id. Null where
 * nothing is left. Of several walks at once what lies behind the end of one is left for the next page: that one may have some before it.
 */
export function pageOfWalk<Item>(
  walk: Iterable<Walked<Item>>,
  limit: number,
  idOf: (item: Item) => string,
): { readonly items: readonly Item[]; readonly after: string | null } {
  const items: Item[] = [];
  for (const { item, matches, endsWalk } of walk) {
    if (matches && items.length === limit) {
      const last = items.at(-1);
      return { items, after: last === undefined ? null : idOf(last) };
    }
    if (matches) items.push(item);
    if (endsWalk) return { items, after: idOf(item) };
  }
  return { items, after: null };
}
