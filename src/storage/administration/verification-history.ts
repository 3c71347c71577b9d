import type {
  HistoricMessage,
  VerificationHistoryStore,
} from "../../core/administration/verification-history.ts";
import type { Carrier } from "../../core/carrier.ts";
import type { InboundMessage, Prisma } from "../../gen/prisma/client.ts";
import type { PrismaDatabase } from "../prisma.ts";

export function createVerificationHistoryStore({ prisma }: PrismaDatabase): VerificationHistoryStore {
  return {
    async find(id, limit) {
      const verification = await prisma.verification.findUnique({
        where: { id },
        omit: { smsText: true, phone: true },
      });
      if (verification === null) return null;
      const { destination, expectedPhone, createdAt, webhookConfigurationId } = verification;
      const event = await prisma.event.findUnique({ where: { verificationId: id } });
      const hint = await prisma.pendingHint.findUnique({ where: { verificationId: id } });
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
      const messages = await prisma.inboundMessage.findMany({ where: { verificationId: id }, ...latest });
      const until = event === null ? {} : { lte: event.occurredAt };
      const unmatched = await prisma.inboundMessage.findMany({
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
    },
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
