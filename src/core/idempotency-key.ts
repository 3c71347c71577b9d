import { Failure } from "../failures.ts";

/** For so long a key repeats its first answer. Then it is new again. */
export const idempotencyKeyHours = 24;

const idempotencyKeyShape = /^[A-Za-z0-9_.:-]{8,128}$/;

/** Refuses a missing or malformed key. The gateway asks before it reads a body, since headers come first. */
export function checkIdempotencyKey(key: string): void {
  if (key === "") throw new Failure("idempotency_key_required");
  if (!idempotencyKeyShape.test(key)) throw new Failure("idempotency_key_invalid");
}
