/** phoneproof key: merchants' secret API keys. */

import { type ApiKey, ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import { requirePart } from "./cli-error.ts";
import { noteCreated, requireOutput } from "./closed-output.ts";
import type { CliCommand } from "./command.ts";
import { fields, localTimeWithZone, shortestText, table } from "./layout.ts";
import { newSecretText } from "./new-secret.ts";
import { durationSeconds, environmentOption, nonEmpty } from "./option-values.ts";
import { escapeControls } from "./terminal.ts";
import { allApiKeys } from "./whole-lists.ts";
import { dateOf, type EnvironmentWord, environmentOf, environmentWord, isoTime } from "./words.ts";

export function addApiKeyCommands(program: CliCommand): void {
  const group = program
    .group("key", "Create, list, rotate and revoke merchants' API keys.")
    .examples(
      ["a test key", "key create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment test"],
      ["replace a key while both work", "key rotate key_01kaex4mpyf2xbtyt1s6vdr4e9 --overlap 24h"],
    );

  group
    .command("create")
    .description(
      "Create an API key. Its secret is shown once. A project can have 5 active keys per environment.",
    )
    .usage("--project ID --environment live|test [options]")
    .requiredOption("--project <id>", "the project it is for, prj_…", nonEmpty)
    .addOption(environmentOption("the environment it is for").makeOptionMandatory())
    .option("--name <name>", "a name to recognise it by")
    .option(
      "--expires-in <duration>",
      "how long it is valid: 90s, 12h, 30d (default: until revoked)",
      durationSeconds,
    )
    .examples(
      ["a test key", "key create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment test"],
      [
        "a live key for a month",
        "key create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment live --name checkout --expires-in 30d",
      ],
    )
    .does<{ project: string; environment: EnvironmentWord; name?: string; expiresIn?: number }>(
      async (session, { project, environment, name, expiresIn }) => {
        requireOutput();
        const { apiKey, secret } = await session.client.call(ApiKeyService.method.createApiKey, {
          projectId: project,
          environment: environmentOf[environment],
          name: name ?? "",
          expiresIn: expiresIn === undefined ? undefined : { seconds: BigInt(expiresIn) },
        });
        const key = requirePart(apiKey, "a key");
        noteCreated("key", key.id);
        session.answer({ ...apiKeyJson(key), key: secret }, () =>
          newSecretText("key", apiKeyEntries(key), secret),
        );
      },
    );

  group
    .command("list")
    .description("List a project's keys, oldest first, revoked and expired ones included.")
    .usage("--project ID [options]")
    .requiredOption("--project <id>", "the project, prj_…", nonEmpty)
    .examples(["a project's keys", "key list --project prj_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does<{ project: string }>(async (session, { project }) => {
      const apiKeys = await allApiKeys(session.client, project);
      session.answer({ keys: apiKeys.map(apiKeyJson) }, () => apiKeyTable(apiKeys));
    });

  group
    .command("rotate")
    .description(
      "Replace a key with a new one that does not expire. The old key stays valid for the overlap.",
    )
    .argument("<id>", "the key to replace, key_…")
    .option(
      "--overlap <duration>",
      "how long the old key stays valid: 0s to 30d (default: 72h)",
      durationSeconds,
    )
    .examples(
      ["replace a key, with three days to switch", "key rotate key_01kaex4mpyf2xbtyt1s6vdr4e9"],
      ["replace a key that has leaked", "key rotate key_01kaex4mpyf2xbtyt1s6vdr4e9 --overlap 0s"],
    )
    .does<{ overlap?: number }>(async (session, { overlap }, apiKeyId) => {
      requireOutput();
      const { apiKey, secret, replaced } = await session.client.call(ApiKeyService.method.rotateApiKey, {
        apiKeyId,
        overlap: overlap === undefined ? undefined : { seconds: BigInt(overlap) },
      });
      const key = requirePart(apiKey, "a key");
      const old = requirePart(replaced, "the old key");
      noteCreated("key", key.id);
      session.answer({ ...apiKeyJson(key), key: secret, replaced: apiKeyJson(old) }, () =>
        [
          newSecretText("key", apiKeyEntries(key), secret),
          `The old key …${escapeControls(old.ending)} works until ${localTimeWithZone(dateOf(old.expiresAt)) ?? "it is revoked"}.`,
        ].join("\n"),
      );
    });

  group
    .command("revoke")
    .description("Revoke a key. Every process refuses it within a second.")
    .argument("<id>", "the key, key_…")
    .examples(["revoke a key", "key revoke key_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, apiKeyId) => {
      const { apiKey } = await session.client.call(ApiKeyService.method.revokeApiKey, { apiKeyId });
      const key = requirePart(apiKey, "a key");
      session.answer(apiKeyJson(key), () => fields(apiKeyEntries(key)));
    });
}

function apiKeyJson(apiKey: ApiKey) {
  return {
    id: apiKey.id,
    project_id: apiKey.projectId,
    environment: environmentWord(apiKey.environment),
    name: apiKey.name,
    ending: apiKey.ending,
    created_at: isoTime(apiKey.createdAt),
    expires_at: isoTime(apiKey.expiresAt),
    revoked_at: isoTime(apiKey.revokedAt),
    last_used_at: isoTime(apiKey.lastUsedAt),
  };
}

function apiKeyEntries(apiKey: ApiKey) {
  return [
    ["id", apiKey.id],
    ["project", apiKey.projectId],
    ["environment", environmentWord(apiKey.environment)],
    ["name", apiKey.name || null],
    ["ending", `…${apiKey.ending}`],
    ["created", localTimeWithZone(dateOf(apiKey.createdAt))],
    ["expires", localTimeWithZone(dateOf(apiKey.expiresAt)) ?? "never"],
    ["revoked", localTimeWithZone(dateOf(apiKey.revokedAt))],
    ["last used", localTimeWithZone(dateOf(apiKey.lastUsedAt))],
  ] as const;
}

function apiKeyState({ revokedAt, expiresAt }: ApiKey): string {
  if (revokedAt !== undefined) return "revoked";
  const end = dateOf(expiresAt);
  return end !== null && end.getTime() <= Date.now() ? "expired" : "active";
}

function apiKeyTable(apiKeys: readonly ApiKey[]): string {
  if (apiKeys.length === 0) return "No keys yet: phoneproof key create --project ID --environment test";
  return table(
    [
      { heading: "ID", value: ({ id }) => id, rank: 1 },
      { heading: "ENV", value: ({ environment }) => environmentWord(environment) ?? "-", rank: 2 },
      { heading: "KEY", value: ({ ending }) => `…${ending}`, rank: 3 },
      {
        heading: "STATE",
        value: apiKeyState,
        rank: 2,
        colour: (state) => (state === "active" ? "green" : "dim"),
      },
      { heading: "NAME", value: ({ name }) => name || "-", rank: 4, shortens: shortestText },
      { heading: "CREATED", value: ({ createdAt }) => dateOf(createdAt), rank: 7 },
      { heading: "EXPIRES", value: ({ expiresAt }) => dateOf(expiresAt), rank: 5 },
      { heading: "LAST USED", value: ({ lastUsedAt }) => dateOf(lastUsedAt), rank: 6 },
    ],
    apiKeys,
  );
}
