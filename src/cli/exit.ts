/** Ends the process once its output is written. */

/**
 * Exits with the process's exit code once its output is written. The process might not end by itself: grpc-js keeps a
 * connection attempt open, and for an address that does not answer the operating system gives up only after minutes.
 */
export async function exit(): Promise<never> {
  await Promise.all([process.stdout, process.stderr].map(written));
  process.exit();
}

/** Resolves after an error too: what could not be written never will be. */
async function written(stream: NodeJS.WriteStream): Promise<void> {
  await new Promise<void>((resolve) => {
    stream.write("", () => resolve());
  });
}
