import type { ListRange } from "../../core/page-token.ts";

/** Prisma's arguments for that part of the rows that satisfy `where`, in the order of their ids. */
export function part<Where extends object>(where: Where, { after, limit }: ListRange) {
  return {
    where: { ...where, ...(after === null ? {} : { id: { gt: after } }) },
    orderBy: { id: "asc" as const },
    ...(Number.isFinite(limit) ? { take: limit } : {}),
  };
}
