/** Writes progress to stderr, apart from the results, with the seconds since the start. */
export function reportProgress(what: string): void {
  process.stderr.write(`${String(Math.round(performance.now() / 1000)).padStart(4)} s  ${what}\n`);
}
