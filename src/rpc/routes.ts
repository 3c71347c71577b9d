/** What answers the methods of the gRPC port, and in what each handler is wrapped. */

import type { ConnectRouter } from "@connectrpc/connect";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import type { AdministrationAs } from "../core/administration/administration.ts";
import type { VerificationService as VerificationServiceObject } from "../core/service.ts";
import type { GetStatistics } from "../core/statistics.ts";
import type { TakeInboundMessages } from "../core/take-inbound-messages.ts";
import { file_phoneproof_v1_error } from "../gen/proto/phoneproof/v1/error_pb.ts";
import { VerificationService } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { administrationRoutes } from "./administration-services.ts";
import type { RpcObserver } from "./answered-call.ts";
import { callOf } from "./call-context.ts";
import { withEncodableErrors } from "./encodable-errors.ts";
import { healthRoutes } from "./health-service.ts";
import { countedCompressions, withRequestLimits } from "./inbound-message-bounds.ts";
import { streamInboundMessages, streamInboundMessagesMethod } from "./inbound-message-service.ts";
import { namingFields } from "./json-messages.ts";
import { MemoryBudget } from "./memory-budget.ts";
import { withMessageTimeout } from "./message-timeout.ts";
import { services } from "./methods.ts";
import { reflectionRoutes } from "./reflection-service.ts";
import { withJoinedPieces } from "./small-pieces.ts";
import { withClientFaultErrors } from "./standard-refusals.ts";
import { statisticsRoutes } from "./statistics-service.ts";
import { answeringUnaryCalls, type UnaryOptions } from "./unary-calls.ts";
import { chargeUnreadableCalls } from "./unreadable-calls.ts";

/** One request of an inbound message stream: a thousand messages of two thousand characters. */
const maxGroupBytes = 8 * 1024 * 1024;
/** For inbound message requests that have begun to arrive: eight of the largest in total, two per caller. */
const roomInAllBytes = 8 * maxGroupBytes;
const roomForEachBytes = 2 * maxGroupBytes;
/** For requests that are being decompressed: one per thread of libuv's pool, which decompresses them. */
const decompressionBytes = 4 * maxGroupBytes;

/** Nothing reads fields that a message does not know. Keeping them took up to 50 ms for one of 64 KiB, instead of 5. */
export const binaryReading = { readUnknownFields: false };

/** gRPC's own services, which take no credential: health and reflection. */
export function standardRoutes(router: ConnectRouter, isReady: () => Promise<boolean>): void {
  healthRoutes(
    router,
    services.map(({ typeName }) => typeName),
    isReady,
  );
  // The error detail belongs to no service, but clients have to decode it.
  reflectionRoutes(router, services, [file_phoneproof_v1_error]);
  for (const [index, handler] of router.handlers.entries()) {
    router.handlers[index] = withClientFaultErrors(
      withEncodableErrors(withJoinedPieces(withMessageTimeout(handler))),
    );
  }
}

/** phoneproof's services, whose calls have been admitted. */
export function admittedRoutes(
  router: ConnectRouter,
  parts: {
    readonly verifications: VerificationServiceObject;
    readonly takeMessages: TakeInboundMessages;
    readonly getStatistics: GetStatistics;
    readonly administrationAs: AdministrationAs;
    readonly admission: Admission;
    readonly log: Logger;
    readonly observer: RpcObserver;
    /** Those that the router has been created with. */
    readonly unaryOptions: UnaryOptions;
  },
): void {
  const { verifications, takeMessages, getStatistics, administrationAs, admission, log, observer } = parts;
  const naming = namingFields(answeringUnaryCalls(router, parts.unaryOptions));
  naming.service(VerificationService, {
    createVerification: (request, context) => verifications.createVerification(request, callOf(context)),
    getVerification: (request, context) => verifications.getVerification(request, callOf(context)),
    cancelVerification: (request, context) => verifications.cancelVerification(request, callOf(context)),
    listVerifications: (request, context) => verifications.listVerifications(request, callOf(context)),
    watchVerification: (request, context) =>
      verifications.watchVerification(request, callOf(context), context.signal),
  });
  inboundMessageRoute(router, takeMessages);
  statisticsRoutes(naming, getStatistics);
  administrationRoutes(naming, administrationAs);
  for (const [index, handler] of router.handlers.entries()) {
    const isUnary = handler.method.methodKind === "unary";
    const refusing = withEncodableErrors(withJoinedPieces(withMessageTimeout(handler)));
    router.handlers[index] = isUnary
      ? chargeUnreadableCalls(refusing, { admission, log, observer })
      : refusing;
  }
}

function inboundMessageRoute(router: ConnectRouter, takeMessages: TakeInboundMessages): void {
  const inbound = { takeMessages, process: { unsettled: 0 } };
  const requestRoom = new MemoryBudget({ inAll: roomInAllBytes, each: roomForEachBytes });
  const decompressionRoom = new MemoryBudget({ inAll: decompressionBytes, each: decompressionBytes });
  // For a method with options of its own, Connect enables all protocols again.
  const options = {
    grpcWeb: false,
    readMaxBytes: maxGroupBytes,
    binaryOptions: binaryReading,
    acceptCompression: countedCompressions(decompressionRoom),
  };
  router.rpc(
    streamInboundMessagesMethod,
    (requests, context) => streamInboundMessages(requests, callOf(context), inbound, context.signal),
    options,
  );
  const handler = router.handlers.pop() as UniversalHandler;
  router.handlers.push(withRequestLimits(handler, { maxBytes: maxGroupBytes, room: requestRoom }));
}
