import { Failure, type FieldViolation } from "../../failures.ts";
import { noEnvironment, noSuchProject } from "../access.ts";
import { digestCredential, newCredential } from "../credential.ts";
import { decodeId } from "../ids.ts";
import { type ListRange, type PageRequest, pageOf, paginate } from "../page-token.ts";
import type { Environment } from "../project.ts";
import { checkText } from "../text-field.ts";
import { projectUuidOf } from "./projects.ts";

export interface ApiKey {
  readonly id: string;
  readonly projectId: string;
  readonly environment: Environment;
  readonly name: string;
  /** The secret's last four characters. */
  readonly ending: string;
  readonly createdAt: Date;
  readonly expiresAt: Date | null;
  readonly revokedAt: Date | null;
  /** Up to some minutes behind; null: never used. */
  readonly lastUsedAt: Date | null;
}

export interface NewApiKey {
  readonly projectId: string;
  readonly environment: Environment;
  readonly name: string;
  readonly digest: Buffer;
  readonly ending: string;
  /** Null: until revoked. */
  readonly expiresInSeconds: number | null;
}

/** Counting active keys and adding one happen under the project's lock, so that two concurrent calls cannot create a sixth. */
export interface ApiKeyStore {
  add(key: NewApiKey, maxActive: number): Promise<ApiKey | "no_project" | "too_many">;
  /** Oldest first. Null: no such project. */
  list(projectId: string, range: ListRange): Promise<ApiKey[] | null>;
  /**
   * Adds a key with the same properties as the given one, which then expires after the overlap. `secretFor` makes the new key's
   * secret and returns what is stored of it; it is called under the lock, and only if the given key is still valid.
   */
  replace(
    id: string,
    secretFor: (environment: Environment) => Pick<NewApiKey, "digest" | "ending">,
    overlapSeconds: number,
    maxActive: number,
  ): Promise<{ readonly added: ApiKey; readonly replaced: ApiKey } | "no_key" | "too_many">;
  revoke(id: string): Promise<ApiKey | null>;
}

export interface ApiKeys {
  create(request: {
    readonly projectId: string;
    readonly environment: Environment | null;
    readonly name: string;
    readonly expiresInSeconds: number | null;
  }): Promise<{ readonly apiKey: ApiKey; readonly secret: string }>;
  list(
    projectId: string,
    page: PageRequest,
  ): Promise<{ readonly apiKeys: readonly ApiKey[]; readonly nextPageToken: string }>;
  rotate(
    id: string,
    overlapSeconds: number | null,
  ): Promise<{ readonly apiKey: ApiKey; readonly secret: string; readonly replaced: ApiKey }>;
  revoke(id: string): Promise<ApiKey>;
}

const maxActive = 5;
const defaultOverlapSeconds = 72 * 3600;
const maxOverlapSeconds = 30 * 86_400;
const maxLifeSeconds = 3650 * 86_400;

export function administerApiKeys({ apiKeys }: { readonly apiKeys: ApiKeyStore }): ApiKeys {
  return {
    async create({ projectId, environment, name, expiresInSeconds }) {
      const violations: FieldViolation[] = [];
      if (environment === null) violations.push(noEnvironment);
      const nameViolation = checkText("name", name, { max: 100 });
      if (nameViolation) violations.push(nameViolation);
      if (expiresInSeconds !== null && !(expiresInSeconds >= 1 && expiresInSeconds <= maxLifeSeconds)) {
        violations.push({ field: "expires_in", message: "must be 1 second to 3650 days" });
      }
      if (violations.length > 0 || environment === null) {
        throw new Failure("validation_failed", { fields: violations });
      }
      const secret = newCredential(environment);
      const added = await apiKeys.add(
        { projectId: projectUuidOf(projectId), environment, name, expiresInSeconds, ...keptOf(secret) },
        maxActive,
      );
      if (added === "no_project") throw noSuchProject();
      if (added === "too_many") throw new Failure("too_many_api_keys");
      return { apiKey: added, secret };
    },

    async list(projectId, page) {
      const list = [projectId];
      const { limit, range } = pageOf(page, list);
      const found = await apiKeys.list(projectUuidOf(projectId), range);
      if (found === null) throw noSuchProject();
      const { items, nextPageToken } = paginate(found, limit, ({ id }) => id, list);
      return { apiKeys: items, nextPageToken };
    },

    async rotate(id, overlapSeconds) {
      const overlap = overlapSeconds ?? defaultOverlapSeconds;
      if (!(overlap >= 0 && overlap <= maxOverlapSeconds)) {
        throw new Failure("validation_failed", {
          fields: [{ field: "overlap", message: "must be 0 to 30 days" }],
        });
      }
      let secret = "";
      const secretFor = (environment: Environment) => {
        secret = newCredential(environment);
        return keptOf(secret);
      };
      const result = await apiKeys.replace(keyUuidOf(id), secretFor, overlap, maxActive);
      if (result === "no_key") {
        throw new Failure("not_found", { message: "There is no such active API key." });
      }
      if (result === "too_many") throw new Failure("too_many_api_keys");
      return { apiKey: result.added, secret, replaced: result.replaced };
    },

    async revoke(id) {
      const revoked = await apiKeys.revoke(keyUuidOf(id));
      if (revoked === null) throw new Failure("not_found", { message: "There is no such API key." });
      return revoked;
    },
  };
}

/** What the database stores of a secret. */
export function keptOf(secret: string): { readonly digest: Buffer; readonly ending: string } {
  return { digest: Buffer.from(digestCredential(secret), "hex"), ending: secret.slice(-4) };
}

/** Whoever gives a leaked key itself must not take it for one that no longer works. */
function keyUuidOf(id: string): string {
  const uuid = decodeId("key_", id);
  if (uuid === null) {
    throw new Failure("not_found", {
      message: "There is no such API key: give its id, key_…, not the key itself.",
    });
  }
  return uuid;
}
