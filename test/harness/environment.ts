/** For a process under test: nothing of the environment that the tests run in but what a shell always has. */
export function plainEnvironment(more: Readonly<Record<string, string>>): Record<string, string> {
  const { PATH = "", HOME = "" } = process.env;
  return { PATH, HOME, ...more };
}
