import { PhoneproofError } from "@phoneproof/client";

/** The error that the promise rejects with, which must be one of the package's errors. */
export async function failureOf(promise: Promise<unknown>): Promise<PhoneproofError> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error instanceof PhoneproofError) return error;
  throw error ?? new Error("nothing was thrown");
}
