/**
 * Reads SMS from standard input, one JSON object per line. In production, use your queue, which must keep each message until
 * its receipt has arrived.
 */

export interface Sms {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
  readonly carrier: string;
}

/** In bytes, far more than any SMS needs: a request has up to a hundred messages and at most 8 MiB. */
const longestLine = 65_536;

/** In characters; the service's limit. */
const longestId = 255;

/** Splits lines at \n only: node:readline would also split at U+2028 and U+2029, which JSON may contain unescaped. */
async function* lines(): AsyncGenerator<string> {
  let rest = "";
  for await (const chunk of process.stdin.setEncoding("utf8")) {
    const parts = (rest + chunk).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
  yield rest;
}

/** A line that cannot be sent is reported by its number and skipped; the program then exits with 1. */
export async function* messages(): AsyncGenerator<Sms> {
  let number = 0;
  for await (const line of lines()) {
    number += 1;
    if (line.trim() === "") continue;
    const sms = read(line);
    if (typeof sms === "object") {
      yield sms;
    } else {
      console.error(`line ${number} was not sent: ${sms}`);
      process.exitCode = 1;
    }
  }
}

/** The SMS, or what is wrong with it, without quoting the line, which contains a person's phone number. */
function read(line: string): Sms | string {
  if (Buffer.byteLength(line) > longestLine) return "too long";
  let given: unknown;
  try {
    given = JSON.parse(line);
  } catch {
    return "not JSON";
  }
  if (typeof given !== "object" || given === null || Array.isArray(given)) return "not an object";
  // Missing fields are sent empty: the service answers INVALID.
  const fields = { message_id: "", from: "", to: "", text: "", carrier: "", ...given };
  const { message_id: messageId, from, to, text, carrier } = fields;
  const sms = { messageId, from, to, text, carrier };
  const isText = (value: unknown) => typeof value === "string" && value.isWellFormed();
  if (!Object.values(sms).every(isText)) return "a field is not a string";
  // The receipt for a longer id may contain only its beginning, and could not be matched to its message.
  return [...messageId].length > longestId ? "message_id is longer than 255 characters" : sms;
}
