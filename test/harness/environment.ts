/** The environment of a process under test: nothing of the tests' own environment except PATH and HOME. */
export function plainEnvironment(more: Readonly<Record<string, string>>): Record<string, string> {
  const { PATH = "", HOME = "" } = process.env;
  return { PATH, HOME, ...more };
}
