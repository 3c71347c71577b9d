import type { ApiKey, ApiKeyStore, NewApiKey } from "../../core/administration/api-keys.ts";
import type { Act, AuditAction } from "../../core/administration/audit.ts";
import { encodeId, newId } from "../../core/ids.ts";
import type { Environment } from "../../core/project.ts";
import { type ApiKey as ApiKeyRow, Prisma } from "../../gen/prisma/client.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";
import type { Administer } from "./administer.ts";
import { lockProject, projectExists } from "./existing-project.ts";
import { inRange } from "./list-range.ts";

export function createApiKeyStore(database: PrismaDatabase, administer: Administer): ApiKeyStore {
  return {
    add: (key, maxActive) =>
      administer(
        async (transaction) => {
          if (!(await lockProject(transaction, key.projectId))) return "no_project";
          if ((await countActive(transaction, key.projectId, key.environment)) >= maxActive)
            return "too_many";
          return insert(transaction, key);
        },
        (added) => (typeof added === "string" ? null : act("api_key.created", added)),
        key.projectId,
      ),

    async list(projectId, range) {
      if (!(await projectExists(database, projectId))) return null;
      return (await database.reads.apiKey.findMany(inRange({ projectId }, range))).map(apiKeyOf);
    },

    async replace(id, secretFor, overlapSeconds, maxActive) {
      const found = await database.reads.apiKey.findUnique({ where: { id } });
      if (!found) return "no_key";
      return administer(
        async (transaction) => {
          await lockProject(transaction, found.projectId);
          // Counted while the old key is still active, which does not count if it ends at once.
          const others = await countActive(transaction, found.projectId, found.environment);
          const changed = await transaction.$executeRaw`
          UPDATE api_key
          SET expires_at = least(
            expires_at, date_trunc('milliseconds', statement_timestamp()) + make_interval(secs => ${overlapSeconds})
          )
          WHERE id = ${id}::uuid AND ${active}`;
          if (changed === 0) return "no_key";
          if (others - (overlapSeconds === 0 ? 1 : 0) >= maxActive) throw new TooManyActive();
          const added = await insert(transaction, {
            ...found,
            ...secretFor(found.environment),
            expiresInSeconds: null,
          });
          const replaced = await transaction.apiKey.findUniqueOrThrow({ where: { id } });
          return { added, replaced: apiKeyOf(replaced) };
        },
        (result) =>
          typeof result === "string"
            ? null
            : act("api_key.rotated", result.added, {
                replaced: encodeId("key_", result.replaced.id),
                replaced_expires_at: result.replaced.expiresAt?.toISOString() ?? "",
              }),
        found.projectId,
      ).catch((error: unknown) => {
        if (error instanceof TooManyActive) return "too_many" as const;
        throw error;
      });
    },

    async revoke(id) {
      const { apiKey } = await administer(
        async (transaction) => {
          const changed = await transaction.$executeRaw`
            UPDATE api_key SET revoked_at = date_trunc('milliseconds', now())
            WHERE id = ${id}::uuid AND revoked_at IS NULL`;
          const row = await transaction.apiKey.findUnique({ where: { id } });
          return { apiKey: row && apiKeyOf(row), isChanged: changed > 0 };
        },
        ({ apiKey, isChanged }) => (apiKey && isChanged ? act("api_key.revoked", apiKey) : null),
      );
      return apiKey;
    },
  };
}

function act(action: AuditAction, key: ApiKey, details: Act["details"] = {}): Act {
  const { id, projectId, environment, name, ending, expiresAt } = key;
  const expires = expiresAt === null ? {} : { expires_at: expiresAt.toISOString() };
  return {
    action,
    subject: encodeId("key_", id),
    projectId,
    details: { environment, ...(name === "" ? {} : { name }), ending, ...expires, ...details },
  };
}

/**
 * Whether a key still works. By the statement's time: the transaction may have waited for the project's lock, and another
 * administrator may have ended the key meanwhile.
 */
const active = Prisma.sql`revoked_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp())`;

/** Thrown to roll the transaction back: the old key's expiry must not be changed if no new key is made. */
class TooManyActive extends Error {}

async function countActive(
  transaction: Transaction,
  projectId: string,
  environment: Environment,
): Promise<number> {
  const rows = await transaction.$queryRaw<{ active: number }[]>`
    SELECT count(*)::int AS active FROM api_key
    WHERE project_id = ${projectId}::uuid AND environment = ${environment}::environment AND ${active}`;
  return rows[0]?.active ?? 0;
}

async function insert(transaction: Transaction, key: NewApiKey): Promise<ApiKey> {
  const id = newId();
  await transaction.$executeRaw`
    INSERT INTO api_key (id, project_id, environment, name, digest, ending, created_at, expires_at)
    VALUES (
      ${id}::uuid, ${key.projectId}::uuid, ${key.environment}::environment, ${key.name}, ${key.digest}, ${key.ending},
      date_trunc('milliseconds', statement_timestamp()),
      date_trunc('milliseconds', statement_timestamp()) + make_interval(secs => ${key.expiresInSeconds}::float8)
    )`;
  return apiKeyOf(await transaction.apiKey.findUniqueOrThrow({ where: { id } }));
}

function apiKeyOf(row: ApiKeyRow): ApiKey {
  const { digest: _, ...key } = row;
  return key;
}
