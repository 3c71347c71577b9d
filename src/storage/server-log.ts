/**
 * What the database writes into its own log. Statements fail by design where two are given one key, and Postgres then names
 * the row's values in the error's detail: phones and codes. A session may not turn that off unless it is a superuser's, or has been
 * granted the parameter, so whoever runs the database has to; a start can only look and say so.
 */
import type { Database } from "./database.ts";

/**
 * For a server of our own, whose log is plain text. The statements themselves hold no values, but those that a person types do.
 */
export const discreetLogSettings = { log_error_verbosity: "terse", log_min_error_statement: "panic" };

const settingsStatement = `
SELECT current_setting('log_min_messages'), current_setting('log_error_verbosity'), current_setting('log_destination')`;

/** Up to these errors are not logged at all: for the log, LOG is above ERROR. */
const aboveErrors = /^(log|fatal|panic)$/;
/** They hold the detail of an error whatever `log_error_verbosity` says. */
const wholeFormats = /\b(csvlog|jsonlog)\b/;
const plainFormats = /\b(stderr|syslog|eventlog)\b/;

/** The settings by which this database writes rows' values into its log, as they are; null where it does not. */
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
