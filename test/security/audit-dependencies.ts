/**
 * `npm run audit:dependencies`: the licences in use, what is wrong with them or with install scripts, and what npm's
 * advisories know of the versions in use. Ends with 0 where all is well, 1 where something was found, and 2 where the
 * registry has no advisories to ask, so that nobody takes that for a clean bill.
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

/** npm tells of what it has found by its exit code, too. */
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
