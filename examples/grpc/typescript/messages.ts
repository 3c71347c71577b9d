/** SMS of standard input, a JSON object a line. In production: your queue, which keeps one until its receipt has come. */

export interface Sms {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
  readonly carrier: string;
}

/** In bytes, far beyond any SMS: a hundred of them are one request, which may have 8 MiB. */
const longestLine = 65_536;

/** In characters: what the service takes. */
const longestId = 255;

/** Lines end at \n alone: node:readline would cut them at U+2028 and U+2029, too, which JSON may hold as they are. */
async function* lines(): AsyncGenerator<string> {
  let rest = "";
  for await (const chunk of process.stdin.setEncoding("utf8")) {
    const parts = (rest + chunk).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
  yield rest;
}

/** A line that cannot be sent is told by its number, and those after it are read on; the program then ends with 1. */
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

/** The SMS, or what is wrong with it: without the line itself, which holds a person's number. */
function read(line: string): Sms | string {
  if (Buffer.byteLength(line) > longestLine) return "too long";
  let given: unknown;
  try {
    given = JSON.parse(line);
  } catch {
    return "not JSON";
  }
  if (typeof given !== "object" || given === null || Array.isArray(given)) return "not an object";
  // What is missing is sent empty: the service answers INVALID.
  const fields = { message_id: "", from: "", to: "", text: "", carrier: "", ...given };
  const { message_id: messageId, from, to, text, carrier } = fields;
  const sms = { messageId, from, to, text, carrier };
  const isText = (value: unknown) => typeof value === "string" && value.isWellFormed();
  if (!Object.values(sms).every(isText)) return "a field is no text";
  // The receipt of a longer one has its beginning alone.
  return [...messageId].length > longestId ? "a message_id of more than 255 characters" : sms;
}
