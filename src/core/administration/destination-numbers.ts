import { Failure, type FieldViolation } from "../../failures.ts";
import { noEnvironment, noSuchProject } from "../access.ts";
import type { DestinationNumber } from "../directory.ts";
import { type ListRange, type PageRequest, pageOf, paginate } from "../page-token.ts";
import { normaliseDestination, notDestination } from "../phone.ts";
import type { Environment } from "../project.ts";
import { projectUuidOf } from "./projects.ts";

export interface DestinationNumberStore {
  /**
   * Waits if the number has just been removed from the other environment, until no creation that has chosen it there is under
   * way; adds nothing if `signal` aborts meanwhile. `pending`: it still has pending verifications of that environment.
   */
  add(
    number: string,
    environment: Environment,
    projectId: string | null,
    signal?: AbortSignal,
  ): Promise<DestinationNumber | "in_use" | "no_project" | "pending">;
  /** Numbers in use, with their ids, oldest first. Null: any. */
  list(
    projectId: string | null,
    environment: Environment | null,
    range: ListRange,
  ): Promise<(DestinationNumber & { readonly id: string })[] | "no_project">;
  remove(number: string): Promise<DestinationNumber | null>;
}

export interface DestinationNumbers {
  /** `projectId` empty: shared by all projects. Adds nothing if `signal` aborts while this waits. */
  add(
    number: string,
    environment: Environment | null,
    projectId: string,
    signal?: AbortSignal,
  ): Promise<DestinationNumber>;
  /** `projectId` empty: every number. `violations`: what was found wrong while decoding, to be reported together with the rest. */
  list(
    projectId: string,
    environment: Environment | null,
    page: PageRequest,
    violations?: readonly FieldViolation[],
  ): Promise<{ readonly numbers: readonly DestinationNumber[]; readonly nextPageToken: string }>;
  remove(number: string): Promise<DestinationNumber>;
}

export function administerDestinationNumbers({
  destinationNumbers,
}: {
  readonly destinationNumbers: DestinationNumberStore;
}): DestinationNumbers {
  return {
    async add(number, environment, projectId, signal) {
      const violations: FieldViolation[] = [];
      const dialable = normaliseDestination(number);
      if (dialable === null) violations.push(notDestination("number"));
      if (environment === null) violations.push(noEnvironment);
      if (dialable === null || environment === null)
        throw new Failure("validation_failed", { fields: violations });
      const owner = projectId === "" ? null : projectUuidOf(projectId);
      const added = await destinationNumbers.add(dialable, environment, owner, signal);
      if (added === "in_use") throw new Failure("number_exists");
      if (added === "pending") throw new Failure("number_pending");
      if (added === "no_project") throw noSuchProject();
      return added;
    },

    async list(projectId, environment, page, violations) {
      const list = [projectId, environment];
      const { limit, range } = pageOf(page, list, violations);
      const owner = projectId === "" ? null : projectUuidOf(projectId);
      const listed = await destinationNumbers.list(owner, environment, range);
      // An empty list would hide that the project does not exist.
      if (listed === "no_project") throw noSuchProject();
      const { items: numbers, nextPageToken } = paginate(listed, limit, ({ id }) => id, list);
      return { numbers, nextPageToken };
    },

    async remove(number) {
      const dialable = normaliseDestination(number);
      if (dialable === null) {
        throw new Failure("not_found", {
          message: "There is no such number in use: give the number itself.",
        });
      }
      const removed = await destinationNumbers.remove(dialable);
      if (removed === null) throw new Failure("not_found", { message: "There is no such number in use." });
      return removed;
    },
  };
}
