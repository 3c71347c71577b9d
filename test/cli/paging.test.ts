import { expect, test } from "vitest";
import { gather } from "../../src/cli/paging.ts";

/** Pages as a service may return them, short ones and empty ones before the last. */
const pages = [[], ["a", "b"], [], ["c"], ["d", "e", "f", "g"]];

test.for([
  { limit: 3, sizes: [3, 3, 1, 1], items: ["a", "b", "c"], next: "4" },
  { limit: 5, sizes: [4, 4, 3, 3, 2], items: ["a", "b", "c", "d", "e"], next: "" },
  { limit: 9, sizes: [4, 4, 4, 4, 4], items: ["a", "b", "c", "d", "e", "f", "g"], next: "" },
])("a list of at most $limit is gathered from short and empty pages, and never asks for more than is left", async ({
  limit,
  ...expected
}) => {
  const sizes: number[] = [];
  const { items, nextPageToken } = await gather(
    { pageToken: undefined, limit, largestPage: 4 },
    async ({ pageSize, pageToken }) => {
      sizes.push(pageSize);
      const index = Number(pageToken);
      const found = pages[index]?.slice(0, pageSize) ?? [];
      return { items: found, nextPageToken: index + 1 < pages.length ? String(index + 1) : "" };
    },
  );
  expect({ sizes, items, next: nextPageToken }).toEqual(expected);
});
