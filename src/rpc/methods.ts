/** The methods of the gRPC port, and what the code around them has to know of each. */

import { ServerReflection } from "../gen/proto/grpc/reflection/v1/reflection_pb.ts";
import { Health } from "../gen/proto/health/v1/health_pb.ts";
import { ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditService } from "../gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ErasureService } from "../gen/proto/phoneproof/v1/erasure_pb.ts";
import { InboundMessageService } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import { StatisticsService } from "../gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationHistoryService } from "../gen/proto/phoneproof/v1/verification_history_pb.ts";
import { VerificationService } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../gen/proto/phoneproof/v1/webhook_pb.ts";
import { methodName } from "./answered-call.ts";

/** All services but reflection, which describes them. */
export const services = [
  VerificationService,
  InboundMessageService,
  ProjectService,
  ApiKeyService,
  DestinationNumberService,
  ServiceTokenService,
  WebhookService,
  VerificationHistoryService,
  ErasureService,
  AuditService,
  StatisticsService,
  Health,
];

/** Methods whose refusals carry the catalogue's code: the standard services use gRPC's own messages. */
export const ownMethods: ReadonlySet<string> = new Set(
  services.filter((service) => service !== Health).flatMap(({ methods }) => methods.map(methodName)),
);

/** Methods that take a stream of messages, for as long as the client likes. */
export const clientStreamingMethods: ReadonlySet<string> = new Set(
  [InboundMessageService.method.streamInboundMessages, ServerReflection.method.serverReflectionInfo].map(
    methodName,
  ),
);

/** Methods without JSON: in it, the bytes fields of the wire form would have to be base64, which no client knows of. */
export const binaryMethods: ReadonlySet<string> = new Set([
  methodName(InboundMessageService.method.streamInboundMessages),
]);

/** Methods that stream in either direction. The responses of all of them are streams, which last, and are taken as they come. */
export const streamingMethods: ReadonlySet<string> = new Set(
  [...services, ServerReflection].flatMap(({ methods }) =>
    methods.filter(({ methodKind }) => methodKind !== "unary").map(methodName),
  ),
);
