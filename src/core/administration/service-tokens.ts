import { Failure, type FieldViolation } from "../../failures.ts";
import { noSuchProject } from "../access.ts";
import { newCredential } from "../credential.ts";
import { decodeId } from "../ids.ts";
import { adminSource, simulatorSource } from "../inbound-message.ts";
import { fitting, type ListRange, type PageRequest, pageOf, paginate } from "../page-token.ts";
import { normaliseDestination } from "../phone.ts";
import type { Environment, ServiceTokenScope } from "../project.ts";
import { checkText } from "../text-field.ts";
import { keptOf } from "./api-keys.ts";
import { projectUuidOf } from "./projects.ts";

export interface ServiceToken {
  readonly id: string;
  readonly scope: ServiceTokenScope;
  /** What administrators recognise it by. May be empty. */
  readonly name: string;
  readonly source: string | null;
  readonly projectId: string | null;
  readonly environment: Environment | null;
  readonly numbers: readonly string[];
  readonly ending: string;
  readonly createdAt: Date;
  readonly revokedAt: Date | null;
  /** Up to some minutes behind; null: never used. */
  readonly lastUsedAt: Date | null;
}

export type NewServiceToken = Omit<ServiceToken, "id" | "createdAt" | "revokedAt" | "lastUsedAt"> & {
  readonly digest: Buffer;
};

export interface ServiceTokenStore {
  add(token: NewServiceToken): Promise<ServiceToken | "no_project">;
  /** Oldest first. */
  list(range: ListRange): Promise<ServiceToken[]>;
  revoke(id: string): Promise<ServiceToken | null>;
}

export interface ServiceTokens {
  /** `violations`: what was found wrong while decoding, to be reported together with the rest. */
  create(
    request: {
      readonly scope: ServiceTokenScope | null;
      readonly name: string;
      readonly source: string;
      readonly projectId: string;
      readonly environment: Environment | null;
      readonly numbers: readonly string[];
    },
    violations?: readonly FieldViolation[],
  ): Promise<{ readonly serviceToken: ServiceToken; readonly secret: string }>;
  list(
    page: PageRequest,
  ): Promise<{ readonly serviceTokens: readonly ServiceToken[]; readonly nextPageToken: string }>;
  revoke(id: string): Promise<ServiceToken>;
}

/** The sources recorded for administrators' own messages and for those of a window's simulated phone. */
const reservedSources: ReadonlySet<string> = new Set([adminSource, simulatorSource]);

const sourceShape = /^[A-Za-z0-9_.-]{1,64}$/;

export function administerServiceTokens({
  serviceTokens,
}: {
  readonly serviceTokens: ServiceTokenStore;
}): ServiceTokens {
  return {
    async create({ scope, name, source, projectId, environment, numbers }, found = []) {
      const violations = [...found];
      const refuse = (field: string, message: string) => violations.push({ field, message });
      const ingests = scope === "ingest";
      if (scope === null) refuse("scope", "must be ingest, read, write or admin");
      const nameViolation = checkText("name", name, { max: 100 });
      if (nameViolation) violations.push(nameViolation);
      if (ingests && !sourceShape.test(source)) {
        const isNeeded = source === "" ? "is required with scope ingest:" : "must be";
        refuse("source", `${isNeeded} 1 to 64 characters of A-Z a-z 0-9 _ . -`);
      }
      if (ingests && reservedSources.has(source.toLowerCase())) {
        refuse("source", `must not be ${source}: that name is reserved for phoneproof's own messages`);
      }
      // If the scope is invalid, it is unknown which fields it allows, so none of them is reported.
      const isOther = scope !== null && !ingests;
      if (isOther && source !== "") refuse("source", "is allowed only with scope ingest");
      if (isOther && environment !== null) refuse("environment", "is allowed only with scope ingest");
      if (isOther && numbers.length > 0) refuse("numbers", "are allowed only with scope ingest");
      if (projectId !== "" && scope !== null && scope !== "read" && scope !== "write") {
        refuse("project_id", "is allowed only with scopes read and write");
      }
      const normalised = numbers.map(normaliseDestination);
      const dialable = [...new Set(normalised)].filter((number) => number !== null);
      if (normalised.includes(null)) refuse("numbers", "must all be numbers that a handset can dial");
      if (violations.length > 0 || scope === null)
        throw new Failure("validation_failed", { fields: violations });
      const secret = newCredential("svc");
      const added = await serviceTokens.add({
        scope,
        name,
        source: ingests ? source : null,
        projectId: projectId === "" ? null : projectUuidOf(projectId),
        environment,
        numbers: dialable,
        ...keptOf(secret),
      });
      if (added === "no_project") throw noSuchProject();
      return { serviceToken: added, secret };
    },

    async list(page) {
      const { limit, range } = pageOf(page, allTokens);
      const found = await serviceTokens.list(range);
      const most = Number.isFinite(limit) ? fitting(found, limit, bytesOf) : limit;
      const { items, nextPageToken } = paginate(found, most, ({ id }) => id, allTokens);
      return { serviceTokens: items, nextPageToken };
    },

    async revoke(id) {
      const uuid = decodeId("tok_", id);
      if (uuid === null) {
        // Whoever gives a leaked token itself must not take it for one that no longer works.
        throw new Failure("not_found", {
          message: "There is no such token: give its id, tok_…, not the token itself.",
        });
      }
      const revoked = await serviceTokens.revoke(uuid);
      if (revoked === null) throw new Failure("not_found", { message: "There is no such token." });
      return revoked;
    },
  };
}

/** The list, for its page tokens: that of the projects has no filter either. */
const allTokens = ["service tokens"];

/** About: all else takes less than a KiB. */
function bytesOf({ numbers }: ServiceToken): number {
  return numbers.reduce((bytes, number) => bytes + 2 + number.length, 1024);
}
