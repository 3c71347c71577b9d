import type { CancelVerification } from "./cancel-verification.ts";
import type { CreateVerification } from "./create-verification.ts";
import type { GetVerification } from "./get-verification.ts";
import type { ListVerifications } from "./list-verifications.ts";
import type { WatchVerification } from "./watch-verification.ts";

/** What can be done with verifications: what `VerificationService` offers, before decoding and encoding. */
export interface VerificationUseCases {
  readonly createVerification: CreateVerification;
  readonly getVerification: GetVerification;
  readonly cancelVerification: CancelVerification;
  readonly listVerifications: ListVerifications;
  readonly watchVerification: WatchVerification;
}
