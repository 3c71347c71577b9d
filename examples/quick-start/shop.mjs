import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createPhoneproof } from "@phoneproof/client";

const phoneproof = createPhoneproof({
  baseUrl: process.env.PHONEPROOF_URL || "http://localhost:8080",
  apiKey: process.env.PHONEPROOF_API_KEY || "",
});

/** The verification that each session started. In production, use a database table. */
const attempts = new Map();

createServer(async (request, response) => {
  try {
    if (request.method === "POST" && request.url === "/begin") await begin(request, response);
    else if (request.method === "GET" && request.url === "/") await show(request, response);
    else response.writeHead(404).end();
  } catch (error) {
    console.error(error);
    response.writeHead(502).end("The phone cannot be verified at the moment.");
  }
}).listen(Number(process.env.SHOP_PORT || 3000), "127.0.0.1", function () {
  console.log(`The shop is open at http://localhost:${this.address().port}`);
});

/** Creates a verification for a new session, and sends the browser to its window. */
async function begin(request, response) {
  // Otherwise a form on any site could send people to a verification, and replace their session. (Not Sec-Fetch-Site: for a
  // form that opens a new tab, WebKit says "cross-site" always.)
  const { origin, host } = request.headers;
  if (origin && !origin.endsWith(`//${host}`)) return response.writeHead(403).end();
  const session = randomUUID();
  // Not the session, which is a secret: whoever has the window's URL may read the reference.
  const created = await phoneproof.create({ client_reference: `attempt-${randomUUID()}` });
  attempts.set(session, created.id);
  response.writeHead(303, {
    location: created.verification_url,
    "set-cookie": `session=${session}; HttpOnly; SameSite=Lax; Path=/`,
  });
  response.end();
}

/** Shows the session's verification. Only what this server has read itself counts. */
async function show(request, response) {
  const session = /(?:^|;\s*)session=([\w-]+)/.exec(request.headers.cookie ?? "")?.[1];
  const id = attempts.get(session);
  const verification = id === undefined ? undefined : await phoneproof.read(id);
  const says =
    verification === undefined
      ? "Nothing verified yet."
      : verification.status === "verified"
        ? `Verified: ${verification.phone}`
        : `Your verification is ${verification.status}.`;
  response.writeHead(200, { "content-type": "text/html; charset=utf-8", "cache-control": "no-store" });
  // By a script: once a form is sent, WebKit drops a <meta http-equiv="refresh">, even if the form opens a new tab.
  response.end(`<!doctype html>
<html lang="en">
  <meta name="viewport" content="width=device-width">
  <title>My shop</title>
  ${verification?.status === "verified" ? "" : `<script>setTimeout(() => location.reload(), 2_000)</script>`}
  <p>${says}</p>
  <form method="post" action="/begin" target="_blank"><button>Verify my phone</button></form>
</html>`);
}
