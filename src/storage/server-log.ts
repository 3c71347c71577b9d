/**
 * Which of its settings make the database log personal data. Statements fail by design when two have the same key, and Postgres
 * then writes the row's values into the error's detail: phones and codes. Only a session of a superuser, or of a role that has
 * been granted the parameter, may turn that off, so the operator of the database has to; a start can only detect and report it.
 */
import type { Database } from "./database.ts";

/** For the embedded server, whose log is plain text. Our own statements contain no values, but those that a person types do. */
export const redactingLogSettings = { log_error_verbosity: "terse", log_min_error_statement: "panic" };

const settingsStatement = `
SELECT current_setting('log_min_messages'), current_setting('log_error_verbosity'), current_setting('log_destination')`;

/** At these levels errors are not logged at all: for the log, LOG is above ERROR. */
const aboveErrors = /^(log|fatal|panic)$/;
/** Formats that contain the detail of an error whatever `log_error_verbosity` is. */
const wholeFormats = /\b(csvlog|jsonlog)\b/;
const plainFormats = /\b(stderr|syslog|eventlog)\b/;

/** The current settings that make this database write rows' values into its log; null if it does not. */
export async function readLeakingLogSettings(
  database: Pick<Database, "query">,
): Promise<Readonly<Record<string, string>> | null> {
  const { rows } = await database.query<[string, string, string]>({
    text: settingsStatement,
    rowMode: "array",
  });
  const [[messages, verbosity, destination] = ["", "", ""]] = rows;
  if (aboveErrors.test(messages)) return null;
  const leaking = {
    ...(wholeFormats.test(destination) && { log_destination: destination }),
    ...(plainFormats.test(destination) && verbosity !== "terse" && { log_error_verbosity: verbosity }),
  };
  return Object.keys(leaking).length > 0 ? leaking : null;
}
