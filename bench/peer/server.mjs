/**
 * The peer of cycle.ts: better-auth with its phone-number plugin, configured for production according to its documentation, on
 * its own database. Plain JavaScript, since its packages are not installed where the rest is type-checked.
 */

import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { betterAuth } from "better-auth";
import { getMigrations } from "better-auth/db/migration";
import { toNodeHandler } from "better-auth/node";
import { phoneNumber } from "better-auth/plugins";
import pg from "pg";

/** A rate limit that is counted like any other but never reached. */
const outOfReach = { window: 60, max: 1_000_000_000 };

function authOver(pool, baseURL) {
  return betterAuth({
    baseURL,
    secret: randomBytes(32).toString("base64"),
    database: pool,
    telemetry: { enabled: false },
    // In memory: the default, and the cheapest store. All load comes from one address: each request scans all known addresses.
    rateLimit: { enabled: true, storage: "memory", customRules: { "/phone-number/*": outOfReach } },
    plugins: [
      phoneNumber({
        // The code for the SMS gateway is returned in a header, where the load generator reads it. This costs almost nothing.
        sendOTP: ({ code }, context) => {
          context.setHeader("x-sent-code", code);
        },
        // Without this, a number that nobody has signed up with yet cannot be verified.
        signUpOnVerification: { getTempEmail: (phone) => `${phone.slice(1)}@shop.example` },
      }),
    ],
  });
}

async function serve({ connection, poolSize }) {
  const pool = new pg.Pool({ ...connection, max: poolSize, application_name: "phoneproof-bench-peer" });
  // As behind a proxy, which keeps its connections open.
  const server = createServer({ keepAliveTimeout: 75_000 });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  const auth = authOver(pool, `http://127.0.0.1:${port}`);
  const { runMigrations } = await getMigrations(auth.options);
  await runMigrations();
  // better-auth deletes expired rows by this column once a minute, but creates no index on it.
  await pool.query('CREATE INDEX ON verification ("expiresAt")');
  server.on("request", toNodeHandler(auth));
  return port;
}

process.once("message", (request) => {
  serve(request).then(
    (port) => process.send({ port }),
    (error) => process.send({ failed: error.message }),
  );
});
process.on("disconnect", () => process.exit());
process.on("SIGINT", () => {});
