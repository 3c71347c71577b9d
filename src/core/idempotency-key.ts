import { Failure } from "../failures.ts";

/** How long a key replays its first response. After that it counts as a new key. */
export const idempotencyKeyHours = 24;

const idempotencyKeyShape = /^[A-Za-z0-9_.:-]{8,128}$/;

/** Refuses a missing or malformed key. The gateway calls this before it reads the body, since headers arrive first. */
export function checkIdempotencyKey(key: string): void {
  if (key === "") throw new Failure("idempotency_key_required");
  if (!idempotencyKeyShape.test(key)) throw new Failure("idempotency_key_invalid");
}
