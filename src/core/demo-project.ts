import type { ApiKeys } from "./administration/api-keys.ts";
import type { DestinationNumbers } from "./administration/destination-numbers.ts";
import type { Projects } from "./administration/projects.ts";
import { encodeId } from "./ids.ts";
import { type Environment, environments } from "./project.ts";

const demoName = "Demo";

/** In the exchange 02-000, which has no subscribers in Korea. */
const demoNumbers: Readonly<Record<Environment, string>> = { live: "0200000001", test: "0200000002" };

/**
 * Creates a demo project for first-time users, with its own number and API key in each environment. Does nothing on an
 * installation that has any other project; completes what an interrupted earlier start left unfinished. Returns the keys
 * created now, which cannot be shown again.
 */
export async function makeDemoProject(administration: {
  readonly projects: Projects;
  readonly apiKeys: ApiKeys;
  readonly destinationNumbers: DestinationNumbers;
}): Promise<Partial<Record<Environment, string>>> {
  const { projects, apiKeys, destinationNumbers } = administration;
  const [existing, ...others] = (await projects.list({ pageSize: 2, pageToken: "" })).projects;
  if (others.length > 0 || (existing && existing.name !== demoName)) return {};
  const project = existing ?? (await projects.create({ name: demoName }));
  const projectId = encodeId("prj_", project.id);
  const all = { pageSize: 0, pageToken: "" };
  const { apiKeys: keys } = await apiKeys.list(projectId, all);
  const made: Partial<Record<Environment, string>> = {};
  for (const environment of environments) {
    if (keys.some((key) => key.environment === environment)) continue;
    const first = { pageSize: 1, pageToken: "" };
    const { numbers } = await destinationNumbers.list(projectId, environment, first);
    if (numbers.length === 0) await destinationNumbers.add(demoNumbers[environment], environment, projectId);
    const { secret } = await apiKeys.create({ projectId, environment, name: "Demo", expiresInSeconds: null });
    made[environment] = secret;
  }
  return made;
}
