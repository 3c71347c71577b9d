import type { FieldViolation } from "../../failures.ts";
import { noSuchProject } from "../access.ts";
import { type ListRange, type PageRequest, pageOf, paginate } from "../page-token.ts";
import { projectUuidOf } from "./projects.ts";

/** The calls that a project was charged for in a calendar month in Seoul. */
export interface MonthlyUsage {
  readonly projectId: string;
  readonly projectName: string;
  /** `2026-11` */
  readonly month: string;
  readonly calls: number;
  /** The limit at the month's last call; null: none. */
  readonly limit: number | null;
}

export interface UsageStore {
  /** By the database's clock. */
  currentMonth(): Promise<string>;
  /** Of all projects, in the order of their ids. */
  inMonth(month: string, range: ListRange): Promise<MonthlyUsage[]>;
  /** Of one project, the latest month first. Null: every month. */
  ofProject(projectId: string, month: string | null): Promise<MonthlyUsage[] | "no_project">;
}

export interface UsageReport {
  /** `projectId` empty: all projects. `month` empty: of one project every month, of all projects the current one. */
  list(
    request: { readonly projectId: string; readonly month: string } & PageRequest,
  ): Promise<{ readonly usage: readonly MonthlyUsage[]; readonly nextPageToken: string }>;
}

const months = /^[12]\d{3}-(0[1-9]|1[0-2])$/;

export function reportUsage({ usage }: { readonly usage: UsageStore }): UsageReport {
  return {
    async list({ projectId, month, ...page }) {
      const violations: FieldViolation[] = [];
      if (month !== "" && !months.test(month)) {
        violations.push({ field: "month", message: "must be a month such as 2026-11" });
      }
      if (projectId === "") {
        // In the list's name, so that a list whose pages are read while the month ends does not go on in the next one.
        const inMonth = month === "" ? await usage.currentMonth() : month;
        const { limit, range } = pageOf(page, [inMonth], violations);
        const found = await usage.inMonth(inMonth, range);
        const { items, nextPageToken } = paginate(found, limit, (of) => of.projectId, [inMonth]);
        return { usage: items, nextPageToken };
      }
      pageOf(page, [projectId, month], violations);
      const found = await usage.ofProject(projectUuidOf(projectId), month === "" ? null : month);
      if (found === "no_project") throw noSuchProject();
      return { usage: found, nextPageToken: "" };
    },
  };
}
