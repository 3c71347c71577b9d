import type { ListRange } from "../../core/page-token.ts";

/** Arguments of Prisma's findMany for that range of the rows that satisfy `where`, in the order of their ids. */
export function inRange<Where extends object>(where: Where, { after, limit }: ListRange) {
  return {
    where: { ...where, ...(after === null ? {} : { id: { gt: after } }) },
    orderBy: { id: "asc" as const },
    ...(Number.isFinite(limit) ? { take: limit } : {}),
  };
}
