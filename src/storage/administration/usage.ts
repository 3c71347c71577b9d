import type { MonthlyUsage, UsageStore } from "../../core/administration/usage.ts";
import { firstUuid } from "../../core/ids.ts";
import { runStatement } from "../database.ts";
import type { PrismaDatabase } from "../prisma.ts";
import { usageMonth } from "../usage.ts";
import { projectExists } from "./existing-project.ts";

/** A refused call of a project whose limit is 0 leaves a row without calls. */
const columns = `
SELECT u.project_id::text, p.name, to_char(u.month, 'YYYY-MM'), u.calls::float8, u.call_limit::float8
FROM usage u JOIN project p ON p.id = u.project_id`;

const currentMonthStatement = {
  name: "usage_current_month",
  text: `SELECT to_char(${usageMonth}, 'YYYY-MM')`,
};

const monthStatement = {
  name: "usage_in_month",
  text: `${columns}
WHERE u.month = $1::date AND u.project_id > $2::uuid AND u.calls > 0
ORDER BY u.project_id LIMIT $3`,
};

const projectStatement = {
  name: "usage_of_project",
  text: `${columns}
WHERE u.project_id = $1::uuid AND ($2::date IS NULL OR u.month = $2::date) AND u.calls > 0
ORDER BY u.month DESC`,
};

export function createUsageStore(database: PrismaDatabase): UsageStore {
  return {
    async currentMonth() {
      const [row] = await database.reading(() => runStatement(database, currentMonthStatement, []));
      return row?.[0] as string;
    },

    async inMonth(month, { after, limit }) {
      const values = [firstDay(month), after ?? firstUuid, Number.isFinite(limit) ? limit : null];
      return (await database.reading(() => runStatement(database, monthStatement, values))).map(usageOf);
    },

    async ofProject(projectId, month) {
      const rows = await database.reading(() =>
        runStatement(database, projectStatement, [projectId, firstDay(month)]),
      );
      if (rows.length === 0 && !(await projectExists(database, projectId))) return "no_project";
      return rows.map(usageOf);
    },
  };
}

const firstDay = (month: string | null) => month && `${month}-01`;

function usageOf(row: unknown[]): MonthlyUsage {
  const [projectId, projectName, month, calls, limit] = row as [
    string,
    string,
    string,
    number,
    number | null,
  ];
  return { projectId, projectName, month, calls, limit };
}
