import { create } from "@bufbuild/protobuf";
import type { CancelVerification } from "../core/cancel-verification.ts";
import type { CreateVerification } from "../core/create-verification.ts";
import type { GetVerification } from "../core/get-verification.ts";
import type { ListVerifications } from "../core/list-verifications.ts";
import type { VerificationService } from "../core/service.ts";
import type { WatchVerification } from "../core/watch-verification.ts";
import {
  CancelVerificationResponseSchema,
  CreateVerificationResponseSchema,
  GetVerificationResponseSchema,
  ListVerificationsResponseSchema,
  WatchVerificationResponseSchema,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { firstMillisecondOf, modeOf, namedScopeOf, statusesOf, verificationMessage } from "./messages.ts";

/** The service as an object: each method decodes, asks the core, encodes. */
export function createVerificationService(core: {
  readonly createVerification: CreateVerification;
  readonly getVerification: GetVerification;
  readonly cancelVerification: CancelVerification;
  readonly listVerifications: ListVerifications;
  readonly watchVerification: WatchVerification;
}): VerificationService {
  return {
    async createVerification(request, call) {
      const { created, replayed } = await core.createVerification(
        {
          ...namedScopeOf(request, call),
          idempotencyKey: request.idempotencyKey,
          mode: modeOf(request.mode, call),
          expectedPhone: request.expectedPhone ?? null,
          clientReference: request.clientReference,
          state: request.state,
          parentOrigin: request.parentOrigin ?? null,
          returnUrl: request.returnUrl ?? null,
        },
        call,
      );
      const response = create(CreateVerificationResponseSchema);
      response.verification = verificationMessage(created.verification);
      response.verificationUrl = created.verificationUrl;
      response.destination = created.destination;
      response.smsText = created.smsText;
      response.idempotentReplayed = replayed;
      return response;
    },

    async getVerification(request, call) {
      const { verificationId } = request;
      const verification = await core.getVerification({ verificationId, ...namedScopeOf(request) }, call);
      const response = create(GetVerificationResponseSchema);
      response.verification = verificationMessage(verification);
      return response;
    },

    async cancelVerification(request, call) {
      const { verificationId } = request;
      const verification = await core.cancelVerification({ verificationId, ...namedScopeOf(request) }, call);
      const response = create(CancelVerificationResponseSchema);
      response.verification = verificationMessage(verification);
      return response;
    },

    async listVerifications(request, call) {
      const page = await core.listVerifications(
        {
          ...namedScopeOf(request, call),
          pageSize: request.pageSize,
          pageToken: request.pageToken,
          statuses: statusesOf(request.statuses, call),
          clientReference: request.clientReference,
          phone: request.phone,
          createdFrom: firstMillisecondOf("created_from", request.createdFrom, call),
          createdBefore: firstMillisecondOf("created_before", request.createdBefore, call),
        },
        call,
      );
      return create(ListVerificationsResponseSchema, {
        verifications: page.verifications.map(verificationMessage),
        nextPageToken: page.nextPageToken,
      });
    },

    async *watchVerification(request, call, signal) {
      const { verificationId } = request;
      const seen = core.watchVerification({ verificationId, ...namedScopeOf(request) }, call, signal);
      for await (const verification of seen) {
        yield create(WatchVerificationResponseSchema, { verification: verificationMessage(verification) });
      }
    },
  };
}
