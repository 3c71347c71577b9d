/** phoneproof audit: the log of administrative actions. */

import { type AuditEntry, AuditService } from "../gen/proto/phoneproof/v1/audit_pb.ts";
import type { CliCommand } from "./command.ts";
import { table } from "./layout.ts";
import { atLeastOne, nonEmpty } from "./option-values.ts";
import { gather, noteMore } from "./paging.ts";
import type { Session } from "./session.ts";
import { dateOf, isoTime } from "./words.ts";

interface ListOptions {
  readonly project?: string;
  readonly actor?: string;
  readonly limit: number;
  readonly pageToken?: string;
}

export function addAuditCommands(program: CliCommand): void {
  const group = program
    .group("audit", "Read the log of administrative actions.")
    .examples(
      ["the latest", "audit list"],
      ["by one token", "audit list --actor tok_01kaex4mpyf2xbtyt1s6vdr4e9"],
    );

  group
    .command("list")
    .description("List who did what, when and from where, newest first.")
    .option("--project <id>", "only actions on this project, prj_…", nonEmpty)
    .option(
      "--actor <actor>",
      "only this actor's actions: a token's id, tok_…; installation, for the installation's own token; service, for the process itself",
      nonEmpty,
    )
    .option("--limit <n>", "how many to list at most", atLeastOne, 50)
    .option("--page-token <token>", "continue where the previous list ended, with the same filters")
    .examples(
      ["the latest", "audit list"],
      ["a project's, for a script", "audit list --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --json"],
    )
    .does<ListOptions>(listEntries);
}

async function listEntries(session: Session, options: ListOptions): Promise<void> {
  const { project, actor, limit, pageToken } = options;
  const { items: entries, nextPageToken } = await gather({ pageToken, limit }, async (page) => {
    const request = { projectId: project ?? "", actor: actor ?? "", ...page };
    const answer = await session.client.call(AuditService.method.listAuditEntries, request);
    return { items: answer.entries, nextPageToken: answer.nextPageToken };
  });
  session.answer({ entries: entries.map(entryJson), next_page_token: nextPageToken || null }, () =>
    entries.length === 0 ? "No actions found." : entryTable(entries, { ofOneProject: project !== undefined }),
  );
  noteMore(session, nextPageToken);
}

function entryJson(entry: AuditEntry) {
  return {
    id: entry.id,
    occurred_at: isoTime(entry.occurredAt),
    actor: entry.actor,
    address: entry.address || null,
    request_id: entry.requestId || null,
    action: entry.action,
    subject: entry.subject,
    project_id: entry.projectId || null,
    details: entry.details,
  };
}

/** 12 columns show a word or the beginning of an id, and enough of its end to recognise it. */
const cut = { shortens: 12, keepsEnd: true } as const;
const ipv4Length = "255.255.255.255".length;
const shortestDetails = 16;

function entryTable(entries: readonly AuditEntry[], { ofOneProject }: { ofOneProject: boolean }): string {
  return table(
    [
      { heading: "WHEN", value: ({ occurredAt }) => dateOf(occurredAt), rank: 1 },
      { heading: "WHAT", value: ({ action }) => action, rank: 2, ...cut },
      { heading: "TO", value: ({ subject }) => subject, rank: 3, ...cut },
      { heading: "WHO", value: ({ actor }) => actor, rank: 4, ...cut },
      { heading: "FROM", value: ({ address }) => address || "-", rank: 5, shortens: ipv4Length },
      ...(ofOneProject
        ? []
        : [
            {
              ...{ heading: "PROJECT", value: (entry: AuditEntry) => entry.projectId || "-", rank: 7 },
              ...cut,
            },
          ]),
      { heading: "DETAILS", value: detailsOf, rank: 6, shortens: shortestDetails },
    ],
    entries,
  );
}

const detailsOf = ({ details }: AuditEntry) =>
  Object.entries(details)
    .map(([name, value]) => `${name}=${value}`)
    .join(" ") || "-";
