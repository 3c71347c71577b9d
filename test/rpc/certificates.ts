/**
 * Certificates and keys for tests only, valid for a hundred years and trusted nowhere else. `server` (for localhost and
 * 127.0.0.1) and `client` are signed by `authority`, `strangersClient` by `otherAuthority`. `renewed` and `expired` have the
 * names of `server` and are self-signed; `expired` was valid in 2020, as was `expiredAuthority`, which signed `intermediate`, which
 * signed `intermediatesClient`. `trustedIntermediate` is `intermediate` as OpenSSL writes a certificate that needs no root
 * (-addtrust clientAuth). `pinnedClient` is self-signed, and may sign no other certificate.
 */

import path from "node:path";

const file = (name: string) => path.join(import.meta.dirname, "certificates", name);

export const certificates = {
  authority: file("authority.pem"),
  otherAuthority: file("other-authority.pem"),
  server: { cert: file("server.pem"), key: file("server-key.pem") },
  renewed: { cert: file("renewed.pem"), key: file("renewed-key.pem") },
  expired: { cert: file("expired.pem"), key: file("expired-key.pem") },
  client: { cert: file("client.pem"), key: file("client-key.pem") },
  strangersClient: { cert: file("strangers-client.pem"), key: file("strangers-client-key.pem") },
  expiredAuthority: file("expired-authority.pem"),
  intermediate: file("intermediate.pem"),
  intermediatesClient: {
    cert: file("intermediates-client.pem"),
    key: file("intermediates-client-key.pem"),
  },
  trustedIntermediate: file("trusted-intermediate.pem"),
  pinnedClient: { cert: file("pinned-client.pem"), key: file("pinned-client-key.pem") },
} as const;
