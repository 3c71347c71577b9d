/** Says in the run's output that tests are absent because a tool is not installed: they would otherwise be missed by nobody. */
export function noteAbsence(tool: string, absent: string): void {
  console.warn(`NOT TESTED, because ${tool} is not installed: ${absent}`);
}
