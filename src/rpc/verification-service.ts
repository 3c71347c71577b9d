import { create } from "@bufbuild/protobuf";
import { nameProject, nameVerification } from "../core/call.ts";
import type { VerificationService } from "../core/service.ts";
import type { VerificationUseCases } from "../core/verification-use-cases.ts";
import {
  CancelVerificationResponseSchema,
  CreateVerificationResponseSchema,
  GetVerificationResponseSchema,
  ListVerificationsResponseSchema,
  WatchVerificationResponseSchema,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { firstMillisecondOf, modeOf, namedScopeOf, statusesOf, verificationMessage } from "./messages.ts";

/** The service as an object: each method decodes, asks the core, encodes. */
export function createVerificationService(core: VerificationUseCases): VerificationService {
  return {
    async createVerification(request, call) {
      nameProject(call, request.projectId);
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
      call.verificationId = response.verification.id;
      return response;
    },

    async getVerification(request, call) {
      const { verificationId } = request;
      nameVerification(call, verificationId);
      const verification = await core.getVerification(
        { verificationId, ...namedScopeOf(request, call) },
        call,
      );
      const response = create(GetVerificationResponseSchema);
      response.verification = verificationMessage(verification);
      return response;
    },

    async cancelVerification(request, call) {
      const { verificationId } = request;
      nameVerification(call, verificationId);
      const verification = await core.cancelVerification(
        { verificationId, ...namedScopeOf(request, call) },
        call,
      );
      const response = create(CancelVerificationResponseSchema);
      response.verification = verificationMessage(verification);
      return response;
    },

    async listVerifications(request, call) {
      nameProject(call, request.projectId);
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
      nameVerification(call, verificationId);
      const seen = core.watchVerification({ verificationId, ...namedScopeOf(request, call) }, call, signal);
      for await (const verification of seen) {
        yield create(WatchVerificationResponseSchema, { verification: verificationMessage(verification) });
      }
    },
  };
}
