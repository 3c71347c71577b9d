/**
 * `npm run audit:dependencies`: prints the licences in use, problems with them or with install scripts, and npm's advisories
 * about the versions in use. Exits with 0 if there is no problem, 1 if there is one, and 2 if the registry provides no
 * advisories, so that this is not mistaken for a result without findings.
 */

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { allowScripts, dependenciesIn, lock, scriptProblems, unlicensed } from "./dependencies.ts";

interface AuditReport {
  readonly vulnerabilities?: Readonly<
    Record<string, { readonly name: string; readonly severity: string; readonly range: string }>
  >;
  readonly message?: string;
}

const dependencies = dependenciesIn(lock);

function licenceTable(): string {
  const byLicence = Map.groupBy(dependencies, ({ licence }) => licence);
  const lines = [...byLicence].sort(([, one], [, other]) => other.length - one.length);
  return lines
    .map(([licence, packages]) => {
      const inService = packages.filter((dependency) => dependency.inService).length;
      const count = String(packages.length).padStart(4);
      return `${licence.padEnd(32)}${count}, ${inService} of them in the service`;
    })
    .join("\n");
}

/** npm exits with an error if it has findings. */
async function advisories(): Promise<AuditReport> {
  try {
    const { stdout } = await promisify(execFile)("npm", ["audit", "--json"], { maxBuffer: 2 ** 26 });
    return JSON.parse(stdout);
  } catch (error) {
    const { stdout } = error as { stdout?: string };
    return JSON.parse(stdout || '{"message":"npm audit did not run"}');
  }
}

console.log(`${licenceTable()}\n`);
const problems = [...unlicensed(dependencies), ...scriptProblems(dependencies, allowScripts)];
const { vulnerabilities, message } = await advisories();
for (const { name, severity, range } of Object.values(vulnerabilities ?? {})) {
  problems.push(`${name} ${range}: ${severity}, see npm audit`);
}
for (const problem of problems) console.log(problem);
if (vulnerabilities === undefined) console.log(`Known vulnerabilities were not checked: ${message}`);
if (problems.length > 0) process.exitCode = 1;
else if (vulnerabilities === undefined) process.exitCode = 2;
else console.log("All licences are on the list, and no version has a known vulnerability.");
