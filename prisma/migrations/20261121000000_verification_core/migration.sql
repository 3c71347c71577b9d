CREATE TYPE "environment" AS ENUM ('live', 'test');
CREATE TYPE "code_format" AS ENUM ('numeric', 'alphanumeric');
CREATE TYPE "service_token_scope" AS ENUM ('read', 'write', 'ingest', 'admin');
CREATE TYPE "verification_mode" AS ENUM ('discover', 'match');
CREATE TYPE "verification_status" AS ENUM ('pending', 'verified', 'expired', 'cancelled');
CREATE TYPE "carrier" AS ENUM ('SKT', 'KT', 'LGU+');
CREATE TYPE "inbound_message_outcome" AS ENUM (
  'verified', 'no_match', 'sender_mismatch', 'late', 'not_pending', 'ambiguous', 'web_sent', 'muted', 'invalid'
);
CREATE TYPE "event_type" AS ENUM ('verification.verified', 'verification.expired', 'verification.cancelled');

CREATE TABLE "project" (
  "id" UUID NOT NULL,
  "name" TEXT NOT NULL,
  "code_format" "code_format" NOT NULL,
  "code_length" SMALLINT NOT NULL,
  "validity_seconds" INTEGER NOT NULL,
  "sms_template" TEXT,
  "parent_origin" TEXT,
  "return_url" TEXT,
  "usage_limit" BIGINT,
  "rate_limit_per_minute" INTEGER NOT NULL,
  "suspended_at" TIMESTAMPTZ(3),
  "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  CONSTRAINT "project_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "project_name_length" CHECK (char_length("name") BETWEEN 1 AND 100),
  CONSTRAINT "project_code_length" CHECK (
    "code_length" BETWEEN 6 AND CASE "code_format" WHEN 'numeric' THEN 10 ELSE 12 END
  ),
  CONSTRAINT "project_validity" CHECK ("validity_seconds" BETWEEN 60 AND 3600),
  CONSTRAINT "project_usage_limit" CHECK ("usage_limit" >= 0),
  CONSTRAINT "project_rate_limit" CHECK ("rate_limit_per_minute" BETWEEN 1 AND 1000000)
);

CREATE TABLE "api_key" (
  "id" UUID NOT NULL,
  "project_id" UUID NOT NULL,
  "environment" "environment" NOT NULL,
  "name" TEXT NOT NULL,
  "digest" BYTEA NOT NULL,
  "ending" TEXT NOT NULL,
  "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  "expires_at" TIMESTAMPTZ(3),
  "revoked_at" TIMESTAMPTZ(3),
  CONSTRAINT "api_key_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "api_key_digest_length" CHECK (octet_length("digest") = 32),
  CONSTRAINT "api_key_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE UNIQUE INDEX "api_key_digest_key" ON "api_key" ("digest");
CREATE INDEX "api_key_project_id_idx" ON "api_key" ("project_id");

CREATE TABLE "service_token" (
  "id" UUID NOT NULL,
  "scope" "service_token_scope" NOT NULL,
  "source" TEXT,
  "project_id" UUID,
  "environment" "environment",
  "numbers" TEXT[],
  "digest" BYTEA NOT NULL,
  "ending" TEXT NOT NULL,
  "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  "revoked_at" TIMESTAMPTZ(3),
  CONSTRAINT "service_token_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "service_token_digest_length" CHECK (octet_length("digest") = 32),
  CONSTRAINT "service_token_ingest" CHECK (
    CASE WHEN "scope" = 'ingest' THEN "source" IS NOT NULL
    ELSE "source" IS NULL AND "environment" IS NULL AND "numbers" = '{}' END
  ),
  CONSTRAINT "service_token_project" CHECK ("project_id" IS NULL OR "scope" IN ('read', 'write')),
  CONSTRAINT "service_token_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE UNIQUE INDEX "service_token_digest_key" ON "service_token" ("digest");

CREATE TABLE "destination_number" (
  "id" UUID NOT NULL,
  "number" TEXT NOT NULL,
  "environment" "environment" NOT NULL,
  "project_id" UUID,
  "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  "removed_at" TIMESTAMPTZ(3),
  CONSTRAINT "destination_number_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "destination_number_dialable" CHECK ("number" ~ '^[0-9#]{3,20}$'),
  CONSTRAINT "destination_number_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE UNIQUE INDEX "destination_number_in_use" ON "destination_number" ("number") WHERE (removed_at IS NULL);

CREATE TABLE "verification" (
  "id" UUID NOT NULL,
  "project_id" UUID NOT NULL,
  "environment" "environment" NOT NULL,
  "mode" "verification_mode" NOT NULL,
  "status" "verification_status" NOT NULL,
  "expected_phone" TEXT,
  "phone" TEXT,
  "carrier" "carrier",
  "client_reference" TEXT NOT NULL,
  "state" TEXT NOT NULL,
  "parent_origin" TEXT,
  "return_url" TEXT,
  "destination" TEXT NOT NULL,
  "sms_text" TEXT NOT NULL,
  "created_at" TIMESTAMPTZ(3) NOT NULL,
  "expires_at" TIMESTAMPTZ(3) NOT NULL,
  "verified_at" TIMESTAMPTZ(3),
  CONSTRAINT "verification_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "verification_validity" CHECK ("expires_at" > "created_at"),
  CONSTRAINT "verification_phone" CHECK ("phone" IS NULL OR ("phone" ~ '^010[0-9]+$' AND char_length("phone") = 11 AND "status" = 'verified')),
  CONSTRAINT "verification_carrier" CHECK ("carrier" IS NULL OR "status" = 'verified'),
  CONSTRAINT "verification_verified_at" CHECK (
    ("status" = 'verified') = ("verified_at" IS NOT NULL) AND "verified_at" < "expires_at"
  ),
  CONSTRAINT "verification_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE INDEX "verification_project_id_environment_id_idx" ON "verification" ("project_id", "environment", "id");

CREATE TABLE "live_code" (
  "destination" TEXT NOT NULL,
  "code" TEXT NOT NULL,
  "code_format" "code_format" NOT NULL,
  "verification_id" UUID NOT NULL,
  "expires_at" TIMESTAMPTZ(3) NOT NULL,
  CONSTRAINT "live_code_pkey" PRIMARY KEY ("destination", "code")
);

CREATE TABLE "idempotency_record" (
  "project_id" UUID NOT NULL,
  "environment" "environment" NOT NULL,
  "key" TEXT NOT NULL,
  "request_digest" BYTEA NOT NULL,
  "verification_id" UUID NOT NULL,
  "verification_url" TEXT NOT NULL,
  "created_at" TIMESTAMPTZ(3) NOT NULL,
  CONSTRAINT "idempotency_record_pkey" PRIMARY KEY ("project_id", "environment", "key"),
  -- Two checks in place of one with {8,128}: for such bounds the regular expression took 42 µs a row, this takes 1.
  CONSTRAINT "idempotency_record_key" CHECK (char_length("key") BETWEEN 8 AND 128 AND "key" ~ '^[A-Za-z0-9_.:-]+$')
);

CREATE TABLE "window_token" (
  "digest" BYTEA NOT NULL,
  "verification_id" UUID NOT NULL,
  CONSTRAINT "window_token_pkey" PRIMARY KEY ("digest")
);

CREATE TABLE "usage" (
  "project_id" UUID NOT NULL,
  "month" DATE NOT NULL,
  "calls" BIGINT NOT NULL,
  "granted" BIGINT NOT NULL,
  "call_limit" BIGINT,
  CONSTRAINT "usage_pkey" PRIMARY KEY ("project_id", "month"),
  CONSTRAINT "usage_calls" CHECK ("calls" >= 0 AND "granted" >= 0),
  CONSTRAINT "usage_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
) WITH (fillfactor = 10);

CREATE TABLE "event" (
  "verification_id" UUID NOT NULL,
  "type" "event_type" NOT NULL,
  "occurred_at" TIMESTAMPTZ(3) NOT NULL,
  CONSTRAINT "event_pkey" PRIMARY KEY ("verification_id"),
  CONSTRAINT "event_verification_id_fkey" FOREIGN KEY ("verification_id") REFERENCES "verification" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);

CREATE TABLE "inbound_message" (
  "source" TEXT NOT NULL,
  "message_id" TEXT NOT NULL,
  "sender" TEXT,
  "destination" TEXT,
  "text" TEXT,
  "carrier" "carrier",
  "received_at" TIMESTAMPTZ(3),
  "ingested_at" TIMESTAMPTZ(3) NOT NULL,
  "outcome" "inbound_message_outcome" NOT NULL,
  "verification_id" UUID,
  "duplicate" BOOLEAN NOT NULL,
  CONSTRAINT "inbound_message_pkey" PRIMARY KEY ("source", "message_id"),
  CONSTRAINT "inbound_message_text_length" CHECK (char_length("text") <= 2000)
);

CREATE TABLE "message_fingerprint" (
  "digest" BYTEA NOT NULL,
  "first_at" TIMESTAMPTZ(3) NOT NULL,
  "outcome" "inbound_message_outcome" NOT NULL,
  "verification_id" UUID,
  CONSTRAINT "message_fingerprint_pkey" PRIMARY KEY ("digest")
);

CREATE TABLE "inbound_sender" (
  "environment" "environment" NOT NULL,
  "phone" TEXT NOT NULL,
  "miss_times" TIMESTAMPTZ(3)[],
  "muted_until" TIMESTAMPTZ(3),
  CONSTRAINT "inbound_sender_pkey" PRIMARY KEY ("environment", "phone"),
  CONSTRAINT "inbound_sender_misses" CHECK (cardinality("miss_times") <= 5)
);

CREATE TABLE "used_code_length" (
  "code_format" "code_format" NOT NULL,
  "code_length" SMALLINT NOT NULL,
  CONSTRAINT "used_code_length_pkey" PRIMARY KEY ("code_format", "code_length")
);
