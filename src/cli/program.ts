/** All commands, and the top-level help. */

import { version } from "../version.ts";
import { addApiKeyCommands } from "./api-key.ts";
import { addAuditCommands } from "./audit.ts";
import { CliCommand } from "./command.ts";
import { addDestinationNumberCommands } from "./destination-number.ts";
import { addEraseCommand } from "./erase.ts";
import { addProjectCommands } from "./project.ts";
import { addServiceTokenCommands } from "./service-token.ts";
import { addSmsCommands } from "./sms.ts";
import { addStatsCommand } from "./stats.ts";
import { addVerificationCommands } from "./verification.ts";
import { addWebhookCommands } from "./webhook.ts";

export function buildProgram(): CliCommand {
  const program = new CliCommand("phoneproof")
    .description("Administer and try a running phoneproof service, over gRPC.")
    .usage("<command> [options]")
    .version(version, "-V, --version", "show the version")
    .takesGlobalOptions()
    .examples(
      ["the projects of the service on this machine", "project list"],
      ["a verification", "verification create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment test"],
      ["the SMS that verifies it", "sms send --to 1666-0000 --from 010-0000-1234 --text '[Demo] 12345678'"],
      [
        "the projects of a service on another machine",
        "project list --address https://phoneproof.example:50051 --token pp_svc_…",
      ],
    )
    .addHelpText("after", explanation);
  addProjectCommands(program);
  addApiKeyCommands(program);
  addDestinationNumberCommands(program);
  addServiceTokenCommands(program);
  addVerificationCommands(program);
  addSmsCommands(program);
  addWebhookCommands(program);
  addStatsCommand(program);
  addEraseCommand(program);
  addAuditCommands(program);
  return program.helpsAtEveryLevel();
}

const explanation = `
Environment:
  PHONEPROOF_ADDRESS   host:port, http://host:port or https://host:port
                       (default: 127.0.0.1 and GRPC_PORT, else 50051)
  PHONEPROOF_TOKEN     a service token; for verifications, a merchant's API key
                       (default on this machine: PHONEPROOF_ADMIN_TOKEN, else
                       DATA_DIR/admin-token, which is not created if
                       DATABASE_URL is set)
  PHONEPROOF_TLS_CA    for https: file of a private certificate authority
  PHONEPROOF_TLS_CERT, PHONEPROOF_TLS_KEY
                       a client certificate, if the service requires one
  grpc_proxy, https_proxy, http_proxy
                       the first that is set: an HTTP proxy to a service on
                       another machine
  no_grpc_proxy, no_proxy
                       hosts that are reached without it
  TZ                   the time zone of the times that are shown, such as
                       Asia/Seoul (default: this machine's; in a container
                       usually UTC)
  NO_COLOR             any value: no colours

Exit codes:
  0    done
  1    the service refused, an SMS was INVALID, a webhook test failed, a
       watched verification was not verified (with --exit-status), or the
       input or the output failed
  2    wrong usage: an unknown option, a missing argument, or a malformed value
  3    the service cannot be reached, or no token was found
  130  interrupted (143 by SIGTERM)`;
