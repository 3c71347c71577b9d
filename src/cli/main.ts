/** The phoneproof command. */

import { readFileSync } from "node:fs";
import { CommanderError } from "commander";
import { addApiKeyCommands } from "./api-key.ts";
import { CliCommand } from "./command.ts";
import { addDestinationNumberCommands } from "./destination-number.ts";
import { Interrupted } from "./interrupt.ts";
import { addProjectCommands } from "./project.ts";
import { addServiceTokenCommands } from "./service-token.ts";
import { addSmsCommands } from "./sms.ts";
import { report, Trouble } from "./trouble.ts";
import { addVerificationCommands } from "./verification.ts";
import { addWebhookCommands } from "./webhook.ts";

function buildProgram(): CliCommand {
  const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
    version: string;
  };
  const program = new CliCommand("phoneproof")
    .description("Administer and try a running phoneproof service, over gRPC.")
    .usage("<command> [options]")
    .version(version, "-V, --version", "show the version")
    .takesGlobalOptions()
    .addHelpText("after", explanation);
  addProjectCommands(program);
  addApiKeyCommands(program);
  addDestinationNumberCommands(program);
  addServiceTokenCommands(program);
  addVerificationCommands(program);
  addSmsCommands(program);
  addWebhookCommands(program);
  return program;
}

const explanation = `
Examples:
  # what there is on the service of this machine
  $ phoneproof project list
  # a verification, and the SMS that verifies it
  $ phoneproof verification create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment test
  $ phoneproof sms send --to 1666-0000 --from 010-0000-1234 --text '[Demo] 12345678'
  # the same on another machine
  $ phoneproof project list --address https://phoneproof.example:50051 --token pp_svc_…

Environment:
  PHONEPROOF_ADDRESS   host:port, http://host:port or https://host:port
                       (else 127.0.0.1 and GRPC_PORT, else 127.0.0.1:50051)
  PHONEPROOF_TOKEN     a service token; a merchant's API key works for verifications
                       (else, on this machine, PHONEPROOF_ADMIN_TOKEN or DATA_DIR/admin-token)
  PHONEPROOF_TLS_CA    for https: the file of a private certificate authority
  PHONEPROOF_TLS_CERT, PHONEPROOF_TLS_KEY   a client certificate, where the service wants one
  NO_COLOR             any value: no colours

Exit codes:
  0    done
  1    the service refused, an SMS was INVALID, a webhook test failed, or the output could not be written
  2    wrong usage: an unknown option, a missing argument, a value that cannot be meant
  3    the service cannot be reached, or there is no token to show it
  130  interrupted (143 by SIGTERM)`;

/** `| head` ends a pipe early, and has what it wanted. */
function endWithTheOutput(error: NodeJS.ErrnoException): void {
  if (error.code === "EPIPE") process.exit(process.exitCode ?? 0);
  process.exit(
    report(new Trouble(1, "output_failed", `the output cannot be written: ${error.message}`), wantsJson()),
  );
}

function wantsJson(): boolean {
  const end = process.argv.indexOf("--");
  return process.argv.slice(2, end === -1 ? undefined : end).includes("--json");
}

process.stdout.on("error", endWithTheOutput);
// Whoever no longer reads what went wrong is not to be told that either.
process.stderr.on("error", () => {});

try {
  await buildProgram().parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
  else if (error instanceof Interrupted) process.exitCode = error.exitCode;
  else process.exitCode = report(error, wantsJson());
}
