import type { Act, AuditAction } from "../../core/administration/audit.ts";
import type { ServiceToken, ServiceTokenStore } from "../../core/administration/service-tokens.ts";
import { encodeId, newId } from "../../core/ids.ts";
import type { ServiceToken as ServiceTokenRow } from "../../gen/prisma/client.ts";
import { isForeignKeyViolation, type PrismaDatabase } from "../prisma.ts";
import type { Administer } from "./administer.ts";
import { inRange } from "./list-range.ts";

export function createServiceTokenStore(database: PrismaDatabase, administer: Administer): ServiceTokenStore {
  return {
    async add({ digest, numbers, ...token }) {
      try {
        return await administer(
          async ({ serviceToken }) =>
            tokenOf(
              await serviceToken.create({
                data: { id: newId(), ...token, digest: Uint8Array.from(digest), numbers: [...numbers] },
              }),
            ),
          (added) => act("service_token.created", added),
        );
      } catch (error) {
        if (isForeignKeyViolation(error)) return "no_project";
        throw error;
      }
    },

    async list(range) {
      const rows = await database.reads.serviceToken.findMany(inRange({}, range));
      return rows.map(tokenOf);
    },

    async revoke(id) {
      const { token } = await administer(
        async (transaction) => {
          const changed = await transaction.$executeRaw`
            UPDATE service_token SET revoked_at = date_trunc('milliseconds', now())
            WHERE id = ${id}::uuid AND revoked_at IS NULL`;
          const row = await transaction.serviceToken.findUnique({ where: { id } });
          return { token: row && tokenOf(row), isChanged: changed > 0 };
        },
        ({ token, isChanged }) => (token && isChanged ? act("service_token.revoked", token) : null),
      );
      return token;
    },
  };
}

function act(action: AuditAction, token: ServiceToken): Act {
  const { id, projectId, scope, name, source, environment, numbers, ending } = token;
  const details = {
    scope,
    ...(name === "" ? {} : { name }),
    ending,
    ...(source === null ? {} : { source }),
    ...(environment === null ? {} : { environment }),
    ...(numbers.length === 0 ? {} : { numbers: numbers.join(" ") }),
  };
  return { action, subject: encodeId("tok_", id), projectId, details };
}

function tokenOf(row: ServiceTokenRow): ServiceToken {
  const { digest: _, ...token } = row;
  return token;
}
