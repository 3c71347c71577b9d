import { create } from "@bufbuild/protobuf";
import type { ConnectRouter } from "@connectrpc/connect";
import type { AdministrationAs } from "../core/administration/administration.ts";
import type { Erasure } from "../core/administration/erasure.ts";
import {
  ErasePhoneResponseSchema,
  ErasureSchema,
  ErasureService,
} from "../gen/proto/phoneproof/v1/erasure_pb.ts";
import { administrationOf, adminMethods } from "./as-admin.ts";

/** Serves the erasure of personal data to admin tokens. */
export function erasureRoutes(router: ConnectRouter, administrationAs: AdministrationAs): void {
  const asAdmin = adminMethods(administrationAs);
  router.service(ErasureService, {
    eraseVerification: asAdmin(async ({ erasures }, { verificationId }) => ({
      erasure: erasureMessage(await erasures.eraseVerification(verificationId)),
    })),
    async *erasePhone({ phone }, context) {
      const { erasures } = await administrationOf(administrationAs, context);
      for await (const erasure of erasures.erasePhone(phone, context.signal)) {
        yield create(ErasePhoneResponseSchema, { erasure: erasureMessage(erasure) });
      }
    },
  });
}

function erasureMessage({ verifications, cancelled, messages, webhookAnswers }: Erasure) {
  return create(ErasureSchema, {
    verifications,
    cancelledVerifications: cancelled,
    messages,
    webhookAnswers,
  });
}
