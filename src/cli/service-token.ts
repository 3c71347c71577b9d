/** phoneproof token: the tokens of internal services. */

import { Option } from "commander";
import { type ServiceToken, ServiceTokenService } from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import { report, requirePart } from "./cli-error.ts";
import { noteCreated, requireOutput } from "./closed-output.ts";
import type { CliCommand } from "./command.ts";
import { fields, localTimeWithZone, shortestText, table } from "./layout.ts";
import { newSecretText } from "./new-secret.ts";
import { environmentOption, nonEmpty, several } from "./option-values.ts";
import { allServiceTokens } from "./whole-lists.ts";
import {
  dateOf,
  type EnvironmentWord,
  environmentField,
  environmentWord,
  isoTime,
  type ScopeWord,
  scopeOf,
  scopes,
  scopeWord,
} from "./words.ts";

interface TokenOptions {
  readonly scope: ScopeWord;
  readonly name?: string;
  readonly source?: string;
  readonly project?: string;
  readonly environment?: EnvironmentWord;
  readonly number?: readonly string[];
}

export function addServiceTokenCommands(program: CliCommand): void {
  const group = program
    .group("token", "Create, list and revoke the tokens of internal services.")
    .examples(
      ["a token for the service that receives SMS", "token create --scope ingest --source gateway-1"],
      ["all tokens", "token list"],
    );

  group
    .command("create")
    .description("Create a token for an internal service. Its secret is shown once.")
    .usage("--scope SCOPE [options]")
    .addOption(
      new Option(
        "--scope <scope>",
        "read: get, list and watch verifications, and get statistics; write: also create and cancel them; ingest: stream inbound SMS; admin: everything",
      )
        .choices(scopes)
        .makeOptionMandatory(),
    )
    .option("--name <name>", "a name to recognise it by")
    .option("--source <name>", "ingest: the name of the SMS source that uses it")
    .option("--project <id>", "read and write: the only project it may access, prj_…", nonEmpty)
    .addOption(environmentOption("ingest: the only environment it may deliver to"))
    .option(
      "--number <number>",
      "ingest: a number it may deliver to, may be given several times (default: all)",
      several,
    )
    .examples(
      ["for the service that receives SMS", "token create --scope ingest --source gateway-1"],
      [
        "for one number only",
        "token create --scope ingest --source gateway-1 --environment live --number 1666-0000",
      ],
      [
        "for a dashboard",
        "token create --scope read --name dashboard --project prj_01kaex4mpyf2xbtyt1s6vdr4e9",
      ],
    )
    .does<TokenOptions>(async (session, { scope, name, source, project, environment, number }) => {
      requireOutput();
      const { serviceToken, secret } = await session.client.call(
        ServiceTokenService.method.createServiceToken,
        {
          scope: scopeOf[scope],
          name: name ?? "",
          source: source ?? "",
          projectId: project ?? "",
          numbers: [...(number ?? [])],
          ...environmentField(environment),
        },
      );
      const token = requirePart(serviceToken, "a token");
      noteCreated("token", token.id);
      session.answer({ ...tokenJson(token), token: secret }, () =>
        newSecretText("token", tokenEntries(token), secret),
      );
      // The token is made and works, so this is no failure.
      if (name && token.name === "") {
        report(session.client.olderService("created the token without its name"), session.json);
      }
    });

  group
    .command("list")
    .description("List all tokens, oldest first, revoked ones included.")
    .examples(["all tokens", "token list"])
    .does(async (session) => {
      const serviceTokens = await allServiceTokens(session.client);
      session.answer({ tokens: serviceTokens.map(tokenJson) }, () => tokenTable(serviceTokens));
    });

  group
    .command("revoke")
    .description("Revoke a token. Every process refuses it within a second.")
    .argument("<id>", "the token, tok_…")
    .examples(["revoke a token", "token revoke tok_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, serviceTokenId) => {
      const { serviceToken } = await session.client.call(ServiceTokenService.method.revokeServiceToken, {
        serviceTokenId,
      });
      const token = requirePart(serviceToken, "a token");
      session.answer(tokenJson(token), () => fields(tokenEntries(token)));
    });
}

function tokenJson(token: ServiceToken) {
  return {
    id: token.id,
    scope: scopeWord(token.scope),
    name: token.name,
    source: token.source || null,
    project_id: token.projectId || null,
    environment: environmentWord(token.environment),
    numbers: token.numbers,
    ending: token.ending,
    created_at: isoTime(token.createdAt),
    revoked_at: isoTime(token.revokedAt),
    last_used_at: isoTime(token.lastUsedAt),
  };
}

function tokenEntries(token: ServiceToken) {
  return [
    ["id", token.id],
    ["scope", scopeWord(token.scope)],
    ["name", token.name || null],
    ["source", token.source || null],
    ["project", token.projectId || "all"],
    ["environment", environmentWord(token.environment) ?? "both"],
    ["numbers", token.numbers.length === 0 ? "all" : token.numbers.join(", ")],
    ["ending", `…${token.ending}`],
    ["created", localTimeWithZone(dateOf(token.createdAt))],
    ["revoked", localTimeWithZone(dateOf(token.revokedAt))],
    ["last used", localTimeWithZone(dateOf(token.lastUsedAt))],
  ] as const;
}

/** What a token may access, in short form. */
function reach({ projectId, environment, numbers }: ServiceToken): string {
  const limits = [projectId, environmentWord(environment) ?? "", ...numbers].filter((limit) => limit !== "");
  return limits.length === 0 ? "all" : limits.join(" ");
}

/** Shows the beginning of a project's id and enough of its end to recognise it. */
const shortestReach = 12;

function tokenTable(tokens: readonly ServiceToken[]): string {
  if (tokens.length === 0) return "No tokens yet: phoneproof token create --scope ingest --source NAME";
  return table(
    [
      { heading: "ID", value: ({ id }) => id, rank: 1 },
      { heading: "SCOPE", value: ({ scope }) => scopeWord(scope), rank: 2 },
      { heading: "NAME", value: ({ name }) => name || "-", rank: 4, shortens: shortestText },
      { heading: "SOURCE", value: ({ source }) => source || "-", rank: 3, shortens: shortestText },
      { heading: "TOKEN", value: ({ ending }) => `…${ending}`, rank: 5 },
      {
        heading: "STATE",
        value: ({ revokedAt }) => (revokedAt === undefined ? "active" : "revoked"),
        rank: 2,
        colour: (state) => (state === "active" ? "green" : "dim"),
      },
      { heading: "ONLY", value: reach, rank: 6, shortens: shortestReach, keepsEnd: true },
      { heading: "CREATED", value: ({ createdAt }) => dateOf(createdAt), rank: 8 },
      { heading: "LAST USED", value: ({ lastUsedAt }) => dateOf(lastUsedAt), rank: 7 },
    ],
    tokens,
  );
}
