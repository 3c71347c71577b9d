import { type ContractCode, contractCodes, Failure } from "../../failures.ts";
import { apiError, createdVerification, createVerificationBody } from "../schemas.ts";
import type { Prose, ReferenceTexts } from "./texts.ts";

/** What to do about a code, where its message does not say it all. */
const advice: Partial<Record<ContractCode, Prose>> = {
  malformed_request:
    "The request was refused before its content was processed: its sender is not a proper HTTP client, stopped in the middle of the request, or sent an id or a header that is far too long.",
  unsupported_content_type:
    "Parameters such as `charset=utf-8` are allowed; the body is read as UTF-8 regardless.",
  idempotency_key_required:
    "Generate it when the person begins, and store it with the body before you send them: then a creation whose response was lost can be repeated later, even by another process.",
  invalid_api_key:
    "The header is `Authorization: Bearer <API_KEY>`, without quotes. A key is shown once, when it is created, and has a checksum: a truncated or mistyped key never works. `npx phoneproof key list` shows which are active, `npx phoneproof key create` creates another.",
  missing_api_key:
    "Make calls only from your server: a page or an app that contained the key would reveal it.",
  insufficient_scope:
    "REST accepts only API keys of a project, `pp_live_…` or `pp_test_…`. Tokens of internal services, `pp_svc_…`, are for gRPC, each for its scope.",
  idempotency_conflict:
    "A key belongs to one attempt. Store key and body together before you send them, and generate a new key when the person tries again.",
  verification_not_cancellable:
    "It ended before the cancellation arrived. The person may just have sent the SMS: read the verification, and act on its `status`.",
  rate_limited:
    "Wait, then continue. The limit applies per project and kind of call; an administrator can raise it. If `RateLimit-Policy` names `authentication`, too many invalid keys came from your IP address: a valid key is accepted at once.",
  usage_limit_exceeded:
    "The limit applies per project and calendar month (Asia/Seoul). An administrator can raise it.",
  no_receiving_number:
    "A new project needs a number in each environment that it uses: `npx phoneproof number add NUMBER --environment live`. If there are numbers, too many verifications are pending on them.",
  service_unavailable:
    "The verification may have been created although the response was lost: repeat the creation with the same Idempotency-Key and body, and only one is created.",
  internal_error:
    "The verification may have been created although the response was lost: repeat the creation with the same Idempotency-Key and body, and only one is created. If the error persists, report the request_id.",
  verification_not_found:
    "A test key does not see live verifications, and a project does not see those of another: the response is the same as if they did not exist.",
  validation_failed: "`fields` lists every invalid field once, and says what was expected.",
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
    "phoneproof verifies that a person holds a phone: they send an SMS with a given text to a given number, and the sender number reported by the network is the proof. For machines: [openapi.json](/openapi.json).",
    "All calls are made by your server, with its secret key: `Authorization: Bearer <API_KEY>`. The key determines the project and environment.",
  ],
  create: {
    heading: "Create a verification",
    newKey: "<new for each attempt>",
    about:
      "Responds with 201. Show the person `destination` and `sms_text`, or open `verification_url`. If the response is lost, repeat the request with the same key and body: you get the first response again, with `Idempotent-Replayed: true`. A key is kept for 24 hours; until then, another body with it gets 409.",
    body: "Body",
    answer: "Response",
  },
  read: { heading: "Read a verification" },
  cancel: {
    heading: "Cancel a verification",
    about:
      "Responds like a read. Only a pending verification can be cancelled; cancelling a cancelled one changes nothing.",
  },
  headers: {
    heading: "Headers of every response",
    about:
      "`X-Request-ID` identifies the request, also in the error object. If the call was counted, `X-Usage-Calls` and `X-Usage-Limit` say how many calls the project has made in this calendar month (Asia/Seoul) and how many it may make. `RateLimit-Policy` and `RateLimit` say what remains of this minute's limit; with 429 and 503, `Retry-After` says when to try again.",
  },
  webhooks: {
    heading: "Webhooks",
    about:
      "A verification ends once, and one event reports it to the webhook that was set for the project when the verification was created: a POST, signed according to [Standard Webhooks](https://www.standardwebhooks.com).",
    event:
      "`type` is `verification.verified`, `verification.expired` or `verification.cancelled`; `data` is what a read would have returned at that instant.",
    headers: {
      "webhook-id": "The event's id, `evt_…`: the same in every retry. Process each event once.",
      "webhook-timestamp":
        "When this attempt was made, in seconds since 1970. Reject the event if it is more than five minutes off.",
      "webhook-signature":
        "`v1,` and the base64 of an HMAC-SHA256; during a secret rotation several, separated by spaces. One valid signature is enough.",
    },
    signature:
      "The signed content is `{webhook-id}.{webhook-timestamp}.{body}`, with the body as received; the key is what follows `whsec_` in your secret, decoded from base64. If no signature is valid, respond with 401. Respond with 2xx within 15 seconds, and process the event afterwards: anything else is retried, up to nine times in about three days. 410 disables the webhook.",
  },
  deprecated: {
    heading: "Deprecated",
    about: "Responses to calls that use these have the headers `Deprecation` and `Sunset`.",
    entry: (what, since, sunset) =>
      `\`${what}\`: since ${since}${sunset === null ? "" : `, to be removed on ${sunset}`}`,
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
