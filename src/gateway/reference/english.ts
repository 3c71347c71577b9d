import { type ContractCode, contractCodes, Failure } from "../../failures.ts";
import { apiError, createdVerification, createVerificationBody } from "../schemas.ts";
import type { Prose, ReferenceTexts } from "./texts.ts";

/** What to do about a code, where its message does not say it all. */
const advice: Partial<Record<ContractCode, Prose>> = {
  malformed_request:
    "It was refused before anything of it was looked at: what sent it is no working HTTP client, stopped amid its request, or sent an id or a header that is far too long.",
  unsupported_content_type:
    "Parameters such as `charset=utf-8` may follow; the body is read as UTF-8 whatever they say.",
  idempotency_key_required:
    "Make it when the person begins, and store it with the body before you send them: then a creation whose answer was lost can be repeated, also by a process that comes after yours.",
  invalid_api_key:
    "The header is `Authorization: Bearer <API_KEY>`, without quotes. A key is shown once, when it is made, and has a checksum: one that was cut or mistyped never works. `npx phoneproof key list` shows which are active, `npx phoneproof key create` makes another.",
  missing_api_key:
    "Calls are made by your server only: a page or an app that held the key would give it away.",
  insufficient_scope:
    "Over REST only API keys of a project are taken, `pp_live_…` or `pp_test_…`. Tokens of internal services, `pp_svc_…`, are for gRPC, each for its scope.",
  idempotency_conflict:
    "A key belongs to one attempt. Store key and body together before you send them, and make a new key when the person tries again.",
  verification_not_cancellable:
    "It ended before the cancel came. Your person may just have sent the SMS: read the verification, and go by its `status`.",
  rate_limited:
    "Wait, then go on. The limit is for the project and the kind of call; an administrator can raise it. Where `RateLimit-Policy` names `authentication`, too many wrong keys came from your IP address: a right one is let in at once.",
  usage_limit_exceeded:
    "The limit is the project's own, for a calendar month in Seoul. An administrator can raise it.",
  no_receiving_number:
    "A new project needs a number in each environment that it uses: `npx phoneproof number add NUMBER --environment live`. One that has numbers has too many pending verifications for them.",
  service_unavailable:
    "A creation may have been made though its answer was lost: repeat it with the same Idempotency-Key and body, and it is made once.",
  internal_error:
    "A creation may have been made though its answer was lost: repeat it with the same Idempotency-Key and body, and it is made once. Tell us the request_id if it stays so.",
  verification_not_found:
    "A test key does not see live verifications, nor a project those of another: that is answered as if there were none.",
  validation_failed: "`fields` names every field that is wrong, once each, and says what was expected.",
};

const errors = contractCodes.map((code) => {
  const { message } = new Failure(code);
  return [code, { meaning: message, ...(advice[code] && { advice: advice[code] }) }];
});

interface Described {
  readonly type: unknown;
  readonly description?: string;
}

/** The descriptions of the schemas, which machines read, too. */
function described<Name extends string>(properties: Readonly<Record<Name, Described>>): Record<Name, Prose> {
  const fields = Object.entries<Described>(properties);
  return Object.fromEntries(fields.map(([name, { description = "" }]) => [name, description])) as Record<
    Name,
    Prose
  >;
}

export const english: ReferenceTexts = {
  language: "en",
  path: "/docs",
  otherLanguage: "English",
  title: "phoneproof API",
  introduction: [
    "Does this person hold this phone? They send an SMS with a given text to a given number, and the network's word for the sender is the proof. For machines: [openapi.json](/openapi.json).",
    "Every call is made by your server, with its secret key: `Authorization: Bearer <API_KEY>`. The key says which project and environment it is.",
  ],
  create: {
    heading: "Create a verification",
    newKey: "<new for each attempt>",
    about:
      "Answers 201. Show the person `destination` and `sms_text`, or open `verification_url`. Where the answer is lost, repeat the request with the same key and body: the first answer comes again, with `Idempotent-Replayed: true`. A key is kept for 24 hours; with another body it answers 409.",
    body: "Body",
    answer: "Answer",
  },
  read: { heading: "Read a verification" },
  cancel: {
    heading: "Cancel a verification",
    about:
      "Answers as a read does. Only a pending verification can be cancelled; cancelling a cancelled one changes nothing.",
  },
  headers: {
    heading: "Headers of every answer",
    about:
      "`X-Request-ID` names the request, also in the error object. `X-Usage-Calls` and `X-Usage-Limit` say how many calls the project has made in this calendar month (Asia/Seoul) and how many it may make, where the call was counted. `RateLimit-Policy` and `RateLimit` say what is left of this minute; with 429 and 503, `Retry-After` says when to try again.",
  },
  webhooks: {
    heading: "Webhooks",
    about:
      "A verification ends once, and one event says so to the webhook that was set for the project when the verification was created: a POST, signed as [Standard Webhooks](https://www.standardwebhooks.com) has it.",
    event:
      "`type` is `verification.verified`, `verification.expired` or `verification.cancelled`; `data` is what a read answered at that instant.",
    headers: {
      "webhook-id": "The event, `evt_…`: the same whenever it is sent again. Work on each once.",
      "webhook-timestamp":
        "When this attempt was made, in seconds since 1970. Refuse what is more than five minutes off.",
      "webhook-signature":
        "`v1,` and the base64 of an HMAC-SHA256; several with spaces between them while the secret is changed. One that verifies is enough.",
    },
    signature:
      "Signed is `{webhook-id}.{webhook-timestamp}.{body}`, the body as it was received, with what follows `whsec_` in your secret, decoded from base64. Where it does not verify, answer 401. Answer 2xx within 15 seconds, and work then: anything else is sent again, up to nine times in some three days. 410 disables the webhook.",
  },
  deprecated: {
    heading: "Deprecated",
    about: "Answers to calls that use these have the headers `Deprecation` and `Sunset`.",
    entry: (what, since, sunset) =>
      `\`${what}\`: since ${since}${sunset === null ? "" : `, to go on ${sunset}`}`,
    instead: "what to use instead",
  },
  errors: {
    heading: "Errors",
    all: "All errors",
    status: (status) => `Status ${status}.`,
    byCode: Object.fromEntries(errors) as ReferenceTexts["errors"]["byCode"],
  },
  fields: {
    request: described(createVerificationBody.properties),
    verification: described(createdVerification.properties),
    error: described(apiError.properties.error.properties),
  },
  tables: {
    field: "Field",
    value: "Value",
    meaning: "Meaning",
    header: "Header",
    status: "Status",
    code: "Code",
    message: "Message",
    or: "or",
    atMost: (characters) => `at most ${characters} characters`,
    byDefault: (value) => `by default ${value}`,
  },
};
