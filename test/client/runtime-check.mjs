/** Uses the package in the runtime that runs this: `runtime-check.mjs ENTRY BASE_URL API_KEY`. Prints the results as JSON. */

const [entry, baseUrl, apiKey] = globalThis.process.argv.slice(2);
const { createPhoneproof, PhoneproofError, verifyWebhook } = await import(entry);

const phoneproof = createPhoneproof({ baseUrl, apiKey, attemptTimeoutMs: 500, retryPauseMs: 1 });

// The proxy at baseUrl drops responses to this request.
const created = await phoneproof.create({ client_reference: "runtime" });
const cancelled = await phoneproof.cancel(created.id);
const finished = await phoneproof.waitUntilFinished(created.id);
const missing = await phoneproof.read("vrf_none").catch((error) => error);

const abort = new AbortController();
abort.abort("enough");
const aborted = await phoneproof.create({}, { signal: abort.signal }).catch((error) => error);

// An old signature, made by the reference implementation.
const headers = {
  "webhook-id": "evt_1",
  "webhook-timestamp": "1700000000",
  "webhook-signature": "v1,hg6TS8Wc5fWiVIsoBjsuMo+GWlfgzsB1N3J5ElUpMV8=",
};
const secret = "whsec_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const lenient = { toleranceSeconds: Number.MAX_SAFE_INTEGER };
const event = await verifyWebhook('{"type":"verification.expired"}', headers, secret, lenient);
const bytes = new TextEncoder().encode('{"type":"verification.expired"}');
const fromBytes = await verifyWebhook(bytes.buffer, new Headers(headers), [secret], lenient);
const forged = await verifyWebhook("{}", headers, secret, lenient).catch((error) => error);

console.log(
  JSON.stringify({
    created: created.status,
    cancelled: cancelled.status,
    finished: finished.status,
    missing: missing instanceof PhoneproofError && missing.code,
    aborted: [aborted.code, aborted.cause, typeof aborted.idempotencyKey],
    event: event.type,
    bytes: fromBytes.type,
    forged: forged.code,
  }),
);
