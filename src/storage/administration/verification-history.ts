import type {
  HistoricMessage,
  VerificationHistory,
  VerificationHistoryStore,
} from "../../core/administration/verification-history.ts";
import type { Carrier } from "../../core/carrier.ts";
import type { InboundMessage, Prisma } from "../../gen/prisma/client.ts";
import { asStorageError } from "../database-errors.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";

export function createVerificationHistoryStore({
  prisma,
  reading,
}: PrismaDatabase): VerificationHistoryStore {
  return {
    /** Reads one snapshot: a verification that ends meanwhile would be shown as pending, with the message that verified it. */
    async find(id, limit) {
      try {
        return await reading(() =>
          prisma.$transaction((snapshot) => read(snapshot, id, limit), {
            isolationLevel: "RepeatableRead",
          }),
        );
      } catch (error) {
        throw asStorageError(error);
      }
    },
  };
}

async function read(snapshot: Transaction, id: string, limit: number): Promise<VerificationHistory | null> {
  const verification = await snapshot.verification.findUnique({
    where: { id },
    omit: { smsText: true, phone: true },
  });
  if (verification === null) return null;
  const { destination, expectedPhone, createdAt, webhookConfigurationId } = verification;
  const event = await snapshot.event.findUnique({ where: { verificationId: id } });
  const hint = await snapshot.pendingHint.findUnique({ where: { verificationId: id } });
  // Messages of one batch have the same time. Of these, the one that verified comes first, before those that came too late.
  const latest = {
    orderBy: [
      { ingestedAt: "desc" },
      { outcome: "desc" },
      { duplicate: "desc" },
      { source: "desc" },
      { messageId: "desc" },
    ],
    take: limit,
    omit: { text: true },
  } satisfies Prisma.InboundMessageFindManyArgs;
  const messages = await snapshot.inboundMessage.findMany({ where: { verificationId: id }, ...latest });
  const until = event === null ? {} : { lte: event.occurredAt };
  const unmatched = await snapshot.inboundMessage.findMany({
    where: { destination, verificationId: null, ingestedAt: { gte: createdAt, ...until } },
    ...latest,
  });
  return {
    destination,
    expectedPhone,
    endedAt: event?.occurredAt ?? null,
    webhookId: webhookConfigurationId,
    hint,
    messages: messages.reverse().map(messageOf),
    unmatched: unmatched.reverse().map(messageOf),
  };
}

function messageOf(row: Omit<InboundMessage, "text">): HistoricMessage {
  const { source, messageId, sender, carrier, receivedAt, ingestedAt, outcome, duplicate } = row;
  return {
    source,
    messageId,
    sender,
    carrier: carrier === "LGU_PLUS" ? "LGU+" : (carrier satisfies Carrier | null),
    receivedAt,
    ingestedAt,
    outcome,
    duplicate,
  };
}
