/** phoneproof verification: merchants' verifications and their results. */

import { randomUUID } from "node:crypto";
import { type Timestamp, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { Option } from "commander";
import {
  type Verification,
  VerificationService,
  VerificationStatus,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { CliError, report, requirePart, wrongUsage } from "./cli-error.ts";
import type { ServiceClient } from "./client.ts";
import type { CliCommand } from "./command.ts";
import { interruptible } from "./interrupt.ts";
import { fields, localTime, localTimeWithZone, shortestText, table } from "./layout.ts";
import { atLeastOne, environmentOption, instant, nonEmpty, severalOf } from "./option-values.ts";
import { gather, noteMore } from "./paging.ts";
import { lossLine } from "./reconnect.ts";
import type { Session } from "./session.ts";
import { escapeControls, safeJson, styled } from "./terminal.ts";
import { historyEntries, historyJson, historyOf, historyText } from "./verification-history.ts";
import { followVerification } from "./verification-watch.ts";
import {
  carrierWord,
  dateOf,
  type EnvironmentWord,
  environmentField,
  environmentWord,
  isoTime,
  type ModeWord,
  modeOf,
  modes,
  modeWord,
  type StatusWord,
  statuses,
  statusOf,
  statusWord,
} from "./words.ts";

/** The service's maximum page size for this list. */
const largestPage = 1_000;

interface CreateOptions {
  readonly project?: string;
  readonly environment?: EnvironmentWord;
  readonly mode?: ModeWord;
  readonly expectedPhone?: string;
  readonly clientReference?: string;
  readonly state?: string;
  readonly parentOrigin?: string;
  readonly returnUrl?: string;
  readonly idempotencyKey?: string;
}

interface ListOptions {
  readonly project?: string;
  readonly environment?: EnvironmentWord;
  readonly status?: readonly StatusWord[];
  readonly clientReference?: string;
  readonly phone?: string;
  readonly createdFrom?: Date;
  readonly createdBefore?: Date;
  readonly limit: number;
  readonly pageToken?: string;
}

interface WatchOptions {
  readonly exitStatus?: true;
}

/** The service requires the option from a token, and knows it from a merchant's API key. */
const withKeyNone = " (not needed with a merchant's API key)";

export function addVerificationCommands(program: CliCommand): void {
  const group = program
    .group("verification", "Create, list, show, watch and cancel verifications.")
    .examples(
      ["what is pending", "verification list --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --status pending"],
      ["follow one until it ends", "verification watch vrf_01kaex4mpyf2xbtyt1s6vdr4e9"],
    );

  group
    .command("create")
    .description("Create a verification, as a merchant's server would.")
    .usage("[--project ID --environment E] [options]")
    .option("--project <id>", `the project, prj_…${withKeyNone}`, nonEmpty)
    .addOption(environmentOption(`the environment${withKeyNone}`))
    .addOption(
      new Option(
        "--mode <mode>",
        "discover: find out the phone; match: compare it (default: discover)",
      ).choices(modes),
    )
    .option("--expected-phone <phone>", "with --mode match: the 010 mobile number to compare with")
    .option("--client-reference <text>", "the merchant's identifier of the attempt")
    .option("--state <text>", "a random value that links the result to the merchant's session")
    .option("--parent-origin <origin>", "the origin the window reports to, as registered for the project")
    .option("--return-url <url>", "where the window returns to, as registered for the project")
    .option("--idempotency-key <key>", "repeat it to get the same verification again (default: a new one)")
    .examples(
      [
        "which phone is it?",
        "verification create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment test",
      ],
      [
        "is it this phone?",
        "verification create --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment test --mode match --expected-phone 010-0000-1234",
      ],
    )
    .does<CreateOptions>(createVerification);

  group
    .command("list")
    .description("List a project's verifications, newest first.")
    .usage("[--project ID] [options]")
    .option("--project <id>", `the project, prj_…${withKeyNone}`, nonEmpty)
    .addOption(environmentOption("only this environment's"))
    .option(
      "--status <status>",
      `only these: ${statuses.join(", ")}; may be given several times`,
      severalOf(statuses),
    )
    .option("--client-reference <text>", "only with exactly this client reference", nonEmpty)
    .option("--phone <phone>", "only those verified with this phone", nonEmpty)
    .option(
      "--created-from <instant>",
      "only created since this time: 2026-11-21T06:41:00Z, or 24h for 24 hours ago",
      instant,
    )
    .option("--created-before <instant>", "only created before this time", instant)
    .option("--limit <n>", "how many to list at most", atLeastOne, 100)
    .option("--page-token <token>", "continue where the previous list ended, with the same filters")
    .examples(
      ["the latest hundred", "verification list --project prj_01kaex4mpyf2xbtyt1s6vdr4e9"],
      [
        "those of the last day that expired",
        "verification list --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --status expired --created-from 24h",
      ],
    )
    .does<ListOptions>(listVerifications);

  group
    .command("show")
    .description(
      "Show a verification as it is now and, with an admin token, its history: the messages that came for it and what they led to, unmatched messages on its destination, and its webhook deliveries. Senders are masked.",
    )
    .argument("<id>", "the verification, vrf_…")
    .examples(["one verification", "verification show vrf_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, verificationId) => {
      const { shown, read } = await readWithHistory(session.client, verificationId);
      const known = read instanceof CliError ? null : read;
      session.answer({ ...verificationJson(shown), history: known && historyJson(known) }, () =>
        known === null
          ? fields(entries(shown))
          : `${fields([...entries(shown), ...historyEntries(known)])}\n\n${historyText(known)}`,
      );
      if (!(read instanceof CliError)) return;
      // With such a service the command does what it did before there were histories.
      if (read.code === "unimplemented") report(read, session.json);
      else throw read;
    });

  group
    .command("watch")
    .description(
      "Show a verification now and when it ends, then exit. With --json, one object per line. Reconnects if the connection is lost, until 60 s after the verification has expired.",
    )
    .argument("<id>", "the verification, vrf_…")
    .option("--exit-status", "exit with 1 if it ends expired or cancelled")
    .examples(
      ["follow one until it ends", "verification watch vrf_01kaex4mpyf2xbtyt1s6vdr4e9"],
      [
        "wait for the end in a script",
        "verification watch vrf_01kaex4mpyf2xbtyt1s6vdr4e9 --json | tail -n 1",
      ],
      [
        "continue only if it was verified",
        "verification watch vrf_01kaex4mpyf2xbtyt1s6vdr4e9 --exit-status && ./next-step",
      ],
    )
    .does<WatchOptions>(watchVerification);

  group
    .command("cancel")
    .description("Cancel a pending verification. Cancelling a cancelled one changes nothing.")
    .argument("<id>", "the verification, vrf_…")
    .examples(["cancel one", "verification cancel vrf_01kaex4mpyf2xbtyt1s6vdr4e9"])
    .does(async (session, _options, verificationId) => {
      const { verification } = await session.client.call(VerificationService.method.cancelVerification, {
        verificationId,
      });
      showVerification(session, requirePart(verification, "a verification"));
    });
}

/** Reads it again if it has ended between the reads. It never changes after that. */
async function readWithHistory(client: ServiceClient, verificationId: string) {
  async function readBoth() {
    const { verification } = await client.call(VerificationService.method.getVerification, {
      verificationId,
    });
    const shown = requirePart(verification, "a verification");
    return { shown, read: await historyOf(client, verificationId) };
  }
  const first = await readBoth();
  const { shown, read } = first;
  if (shown.status !== VerificationStatus.PENDING || read === null || read instanceof CliError) return first;
  const hasEnded = read.history.endedAt !== undefined || read.deliveries.length > 0;
  return hasEnded ? readBoth() : first;
}

async function createVerification(session: Session, options: CreateOptions): Promise<void> {
  if (options.expectedPhone !== undefined && options.mode !== "match") {
    // The service ignores it then, and any phone would verify.
    throw wrongUsage(
      "verification create: --expected-phone requires --mode match; see phoneproof verification create --help",
    );
  }
  const idempotencyKey = options.idempotencyKey ?? `cli-${randomUUID()}`;
  const created = await session.client.call(VerificationService.method.createVerification, {
    projectId: options.project ?? "",
    ...environmentField(options.environment),
    idempotencyKey,
    clientReference: options.clientReference ?? "",
    state: options.state ?? "",
    ...(options.mode === undefined ? {} : { mode: modeOf[options.mode] }),
    expectedPhone: options.expectedPhone,
    parentOrigin: options.parentOrigin,
    returnUrl: options.returnUrl,
  });
  const verification = requirePart(created.verification, "a verification");
  session.answer(
    {
      ...verificationJson(verification),
      verification_url: created.verificationUrl,
      destination: created.destination,
      sms_text: created.smsText,
      idempotency_key: idempotencyKey,
      idempotent_replayed: created.idempotentReplayed,
    },
    () =>
      fields([
        ...entries(verification).filter(([label]) => !["phone", "carrier", "verified"].includes(label)),
        ["send to", created.destination],
        ["SMS text", created.smsText],
        ["window", created.verificationUrl],
        [
          "idempotency key",
          `${idempotencyKey}${created.idempotentReplayed ? " (the first response again)" : ""}`,
        ],
      ]),
  );
}

async function listVerifications(session: Session, options: ListOptions): Promise<void> {
  const { clientReference, phone, createdFrom, createdBefore, limit, pageToken } = options;
  const { items: verifications, nextPageToken } = await gather(
    { pageToken, limit, largestPage },
    async (page) => {
      const answer = await session.client.call(VerificationService.method.listVerifications, {
        projectId: options.project ?? "",
        statuses: (options.status ?? []).map((status) => statusOf[status]),
        clientReference: clientReference ?? "",
        phone: phone ?? "",
        ...environmentField(options.environment),
        createdFrom: createdFrom && timestampFromDate(createdFrom),
        createdBefore: createdBefore && timestampFromDate(createdBefore),
        ...page,
      });
      return { items: answer.verifications, nextPageToken: answer.nextPageToken };
    },
  );
  session.answer(
    { verifications: verifications.map(verificationJson), next_page_token: nextPageToken || null },
    () => verificationTable(verifications),
  );
  noteMore(session, nextPageToken);
}

async function watchVerification(
  session: Session,
  { exitStatus }: WatchOptions,
  verificationId: string,
): Promise<void> {
  let last: VerificationStatus | undefined;
  await interruptible((signal) =>
    followVerification({
      client: session.client,
      verificationId,
      signal,
      onStatus(verification) {
        last = verification.status;
        process.stdout.write(
          `${session.json ? safeJson(verificationJson(verification)) : lookLine(verification)}\n`,
        );
      },
      onLost(loss) {
        const lossText = lossLine(loss, session.json);
        if (lossText !== undefined) process.stderr.write(`${lossText}\n`);
      },
    }),
  );
  if (exitStatus && last !== VerificationStatus.VERIFIED) process.exitCode = 1;
}

function lookLine(verification: Verification): string {
  const word = statusWord(verification.status);
  const details =
    verification.status === VerificationStatus.PENDING
      ? [`until ${localTime(dateOf(verification.expiresAt))}`]
      : [verification.phone ?? "", carrierWord(verification.carrier) ?? ""];
  const line = [
    localTime(dateOf(timeOf(verification))),
    statusColoured(word),
    ...details.map(escapeControls),
  ];
  return line.filter((part) => part !== "").join("  ");
}

/**
 * The time of the current status. A cancellation has no timestamp of its own and a pending verification has none, so both show
 * when the service answered.
 */
function timeOf({ status, verifiedAt, expiresAt, serverTime }: Verification): Timestamp | undefined {
  if (status === VerificationStatus.VERIFIED) return verifiedAt;
  return status === VerificationStatus.EXPIRED ? expiresAt : serverTime;
}

/** The contract's VerificationResult plus the project. */
function verificationJson(verification: Verification) {
  return {
    id: verification.id,
    status: statusWord(verification.status),
    environment: environmentWord(verification.environment),
    mode: modeWord(verification.mode),
    phone: verification.phone ?? null,
    carrier: carrierWord(verification.carrier),
    client_reference: verification.clientReference,
    state: verification.state,
    created_at: isoTime(verification.createdAt),
    expires_at: isoTime(verification.expiresAt),
    verified_at: isoTime(verification.verifiedAt),
    server_time: isoTime(verification.serverTime),
    project_id: verification.projectId,
  };
}

function entries(verification: Verification) {
  return [
    ["id", verification.id],
    ["status", statusWord(verification.status)],
    ["phone", verification.phone ?? null],
    ["carrier", carrierWord(verification.carrier)],
    ["mode", modeWord(verification.mode)],
    ["environment", environmentWord(verification.environment)],
    ["project", verification.projectId],
    ["client reference", verification.clientReference || null],
    ["state", verification.state || null],
    ["created", localTimeWithZone(dateOf(verification.createdAt))],
    ["expires", localTimeWithZone(dateOf(verification.expiresAt))],
    ["verified", localTimeWithZone(dateOf(verification.verifiedAt))],
  ] as const;
}

function showVerification(session: Session, verification: Verification): void {
  session.answer(verificationJson(verification), () => fields(entries(verification)));
}

const statusColours = new Map([
  ["pending", "yellow"],
  ["verified", "green"],
  ["expired", "dim"],
  ["cancelled", "dim"],
] as const);

function statusColour(status: string) {
  return statusColours.get(status as StatusWord);
}

function statusColoured(status: string): string {
  const colour = statusColour(status);
  return colour === undefined ? status : styled(colour, status);
}

function verificationTable(verifications: readonly Verification[]): string {
  if (verifications.length === 0) return "No verifications here.";
  return table(
    [
      { heading: "ID", value: ({ id }) => id, rank: 1 },
      { heading: "STATUS", value: ({ status }) => statusWord(status), rank: 2, colour: statusColour },
      { heading: "PHONE", value: ({ phone }) => phone ?? "-", rank: 3 },
      { heading: "CREATED", value: ({ createdAt }) => dateOf(createdAt), rank: 4 },
      { heading: "CARRIER", value: ({ carrier }) => carrierWord(carrier) ?? "-", rank: 6 },
      { heading: "ENV", value: ({ environment }) => environmentWord(environment) ?? "-", rank: 7 },
      { heading: "MODE", value: ({ mode }) => modeWord(mode), rank: 8 },
      // At the end: in a pipe it is not shortened, and a long one would move the columns behind it far away.
      {
        heading: "REFERENCE",
        value: ({ clientReference }) => clientReference || "-",
        rank: 5,
        shortens: shortestText,
      },
    ],
    verifications,
  );
}
