/**
 * The peer of cycle.ts: better-auth with its phone-number plugin, set up as its documentation says for production, on a
 * database of its own. JavaScript, since its packages are not there where the rest is type-checked.
 */

import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { betterAuth } from "better-auth";
import { getMigrations } from "better-auth/db/migration";
import { toNodeHandler } from "better-auth/node";
import { phoneNumber } from "better-auth/plugins";
import pg from "pg";

/** A window of the rate limit that is counted like any other, and never full. */
const outOfReach = { window: 60, max: 1_000_000_000 };

function authOver(pool, baseURL) {
  return betterAuth({
    baseURL,
    secret: randomBytes(32).toString("base64"),
    database: pool,
    telemetry: { enabled: false },
    // In memory, its default and the cheapest of its stores. Of one address: each request passes over all that are known.
    rateLimit: { enabled: true, storage: "memory", customRules: { "/phone-number/*": outOfReach } },
    plugins: [
      phoneNumber({
        // What a gateway would be handed goes back in a header, where the load generator finds it: about free.
        sendOTP: ({ code }, context) => {
          context.setHeader("x-sent-code", code);
        },
        // Without it a number nobody has signed up with yet cannot be verified at all.
        signUpOnVerification: { getTempEmail: (phone) => `${phone.slice(1)}@shop.example` },
      }),
    ],
  });
}

async function serve({ connection, poolSize }) {
  const pool = new pg.Pool({ ...connection, max: poolSize, application_name: "phoneproof-bench-peer" });
  // Behind a proxy, which keeps its connections.
  const server = createServer({ keepAliveTimeout: 75_000 });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  const auth = authOver(pool, `http://127.0.0.1:${port}`);
  const { runMigrations } = await getMigrations(auth.options);
  await runMigrations();
  // It cleans up by this column once a minute, and makes no index on it.
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
