import { fields } from "./layout.ts";

/** Says nothing of a new one: its secret shows the ending, and it was neither revoked nor used. */
const ofAnOldOne: ReadonlySet<string> = new Set(["ending", "revoked", "last used"]);

/** Shows a new key or token, whose `entries` are those of `show`, with its secret. */
export function newSecretText(
  kind: "key" | "token",
  entries: readonly (readonly [label: string, value: string | null])[],
  secret: string,
): string {
  const shown = entries.filter(([label]) => !ofAnOldOne.has(label));
  return `${fields([...shown, [kind, secret]])}\n\nStore the ${kind} now: it is not shown again.`;
}
