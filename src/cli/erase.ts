/** phoneproof erase: erases personal phone numbers on request. */

import { type Erasure, ErasureService } from "../gen/proto/phoneproof/v1/erasure_pb.ts";
import { CliError, requirePart, wrongUsage } from "./cli-error.ts";
import type { CliCommand } from "./command.ts";
import { isConfirmed } from "./confirmation.ts";
import { interruptible } from "./interrupt.ts";
import { grouped } from "./layout.ts";
import { nonEmpty } from "./option-values.ts";
import type { Session } from "./session.ts";
import { escapeControls } from "./terminal.ts";

interface EraseOptions {
  readonly verification?: string;
  readonly phone?: string;
  readonly yes?: true;
}

export function addEraseCommand(program: CliCommand): void {
  program
    .command("erase")
    .description(
      "Erase a person's phone number permanently: from one verification, or everywhere. Verifications are kept, without the number; pending ones are cancelled. In a terminal it asks first.",
    )
    .usage("--verification ID | --phone PHONE [options]")
    .option(
      "--verification <id>",
      "the numbers, messages and webhook answers of this verification, vrf_…",
      nonEmpty,
    )
    .option("--phone <phone>", "this 010 mobile number, in every verification and message")
    .option("--yes", "do not ask")
    .examples(
      ["one verification's", "erase --verification vrf_01kaex4mpyf2xbtyt1s6vdr4e9"],
      ["a phone, everywhere", "erase --phone 010-0000-1234"],
    )
    .does<EraseOptions>(erase);
}

async function erase(session: Session, { verification, phone, yes }: EraseOptions): Promise<void> {
  if ((verification === undefined) === (phone === undefined)) {
    throw wrongUsage("erase: give either --verification or --phone; see phoneproof erase --help");
  }
  const what = phone === undefined ? `all phone numbers of ${verification}` : `${phone} everywhere`;
  if (!yes && !(await isConfirmed(`Erase ${escapeControls(what)}, permanently?`))) {
    throw new CliError(1, "not_confirmed", "nothing was erased");
  }
  const answered =
    phone === undefined
      ? await eraseVerification(session, verification ?? "")
      : await erasePhone(session, phone);
  const erasure = requirePart(answered, "saying what was erased");
  session.answer(erasureJson(erasure), () => erasureText(erasure));
}

async function eraseVerification(session: Session, verificationId: string): Promise<Erasure | undefined> {
  const { method } = ErasureService;
  return (await session.client.call(method.eraseVerification, { verificationId })).erasure;
}

/** Has no overall deadline: the service scans everything it stores. */
async function erasePhone(session: Session, phone: string): Promise<Erasure | undefined> {
  return interruptible(async (signal) => {
    let erasure: Erasure | undefined;
    for await (const sofar of session.client.watch(ErasureService.method.erasePhone, { phone }, signal)) {
      erasure = sofar.erasure;
    }
    return erasure;
  });
}

function erasureJson({ verifications, cancelledVerifications, messages, webhookAnswers }: Erasure) {
  return {
    verifications,
    cancelled_verifications: cancelledVerifications,
    messages,
    webhook_answers: webhookAnswers,
  };
}

function erasureText({ verifications, cancelledVerifications, messages, webhookAnswers }: Erasure): string {
  if (verifications + messages + webhookAnswers === 0) return "Nothing was left to erase.";
  const parts = [
    counted(verifications, "verification"),
    counted(messages, "SMS", "SMS"),
    counted(webhookAnswers, "webhook answer"),
  ];
  const ended =
    cancelledVerifications === 0
      ? []
      : [`Cancelled, because pending: ${counted(cancelledVerifications, "verification")}.`];
  return [`Erased from ${parts.join(", ")}.`, ...ended].join("\n");
}

function counted(count: number, one: string, many = `${one}s`): string {
  return `${grouped(count)} ${count === 1 ? one : many}`;
}
