/** The end of a process that has said all it has to say. */

/**
 * Ends it with its exit code once its output is written. It would not always end by itself: grpc-js does not let go of a
 * connection that is still being made, and where nobody answers the system gives that up after minutes.
 */
export async function exit(): Promise<never> {
  await Promise.all([process.stdout, process.stderr].map(written));
  process.exit();
}

/** What cannot be written any more is written as far as it ever will be. */
async function written(stream: NodeJS.WriteStream): Promise<void> {
  await new Promise<void>((resolve) => {
    stream.write("", () => resolve());
  });
}
