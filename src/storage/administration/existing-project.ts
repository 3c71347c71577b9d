import type { PrismaDatabase, Transaction } from "../prisma.ts";

/**
 * Locks the project's row, which serialises all changes to the project, its API keys and its webhooks. Returns false if there
 * is no such project.
 */
export async function lockProject(transaction: Transaction, projectId: string): Promise<boolean> {
  const rows = await transaction.$queryRaw<unknown[]>`
    SELECT id FROM project WHERE id = ${projectId}::uuid FOR NO KEY UPDATE`;
  return rows.length > 0;
}

export async function projectExists({ reads }: PrismaDatabase, projectId: string): Promise<boolean> {
  return (await reads.project.count({ where: { id: projectId } })) > 0;
}
