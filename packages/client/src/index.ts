export type { CallOptions, FetchInit, FetchResponse, Settings } from "./call.js";
export {
  type Aborted,
  type FieldProblem,
  type NoAnswer,
  PhoneproofError,
  type ServiceRefusal,
  type StillPending,
  type UnexpectedAnswer,
  type WebhookNotAuthentic,
} from "./error.js";
export { type CreateOptions, createPhoneproof, type Phoneproof, type WaitOptions } from "./phoneproof.js";
export type {
  Carrier,
  CreatedVerification,
  DiscoverVerification,
  FinishedVerification,
  MatchVerification,
  NewVerification,
  Verification,
  VerificationStatus,
} from "./verification.js";
export { verifyWebhook, type WebhookEvent, type WebhookHeaders, type WebhookOptions } from "./webhook.js";
