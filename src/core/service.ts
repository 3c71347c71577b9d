import type {
  GetVerificationWindowRequest,
  GetVerificationWindowResponse,
  SendTestMessageRequest,
  SendTestMessageResponse,
  WatchVerificationWindowRequest,
  WatchVerificationWindowResponse,
} from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import type {
  CancelVerificationRequest,
  CancelVerificationResponse,
  CreateVerificationRequest,
  CreateVerificationResponse,
  GetVerificationRequest,
  GetVerificationResponse,
  ListVerificationsRequest,
  ListVerificationsResponse,
  WatchVerificationRequest,
  WatchVerificationResponse,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import type { Call } from "./call.ts";

/**
 * phoneproof.v1.VerificationService as an object, which the gateway calls in process and Connect serves over the network.
 * Refusals are thrown as `Failure`. Each method charges the call at most once and reports the charge in `call.usage`.
 */
export interface VerificationService {
  createVerification(request: CreateVerificationRequest, call: Call): Promise<CreateVerificationResponse>;
  getVerification(request: GetVerificationRequest, call: Call): Promise<GetVerificationResponse>;
  cancelVerification(request: CancelVerificationRequest, call: Call): Promise<CancelVerificationResponse>;
  listVerifications(request: ListVerificationsRequest, call: Call): Promise<ListVerificationsResponse>;
  /** Ends after a terminal status, or when `signal` aborts. */
  watchVerification(
    request: WatchVerificationRequest,
    call: Call,
    signal: AbortSignal,
  ): AsyncIterable<WatchVerificationResponse>;
}

/**
 * phoneproof.internal.v1.VerificationWindowService as an object, which the window calls in process. There is no caller: the
 * token in each request grants the access, and nobody is charged.
 */
export interface VerificationWindowService {
  getVerificationWindow(request: GetVerificationWindowRequest): Promise<GetVerificationWindowResponse>;
  /** Ends after a terminal status, or when `signal` aborts. */
  watchVerificationWindow(
    request: WatchVerificationWindowRequest,
    signal: AbortSignal,
  ): AsyncIterable<WatchVerificationWindowResponse>;
  sendTestMessage(
    request: SendTestMessageRequest,
    origin: Pick<Call, "requestId" | "address">,
  ): Promise<SendTestMessageResponse>;
}
