CREATE TYPE "webhook_delivery_state" AS ENUM ('pending', 'delivered', 'failed', 'disabled');

CREATE TABLE "webhook_configuration" (
  "id" UUID NOT NULL,
  "project_id" UUID NOT NULL,
  "environment" "environment" NOT NULL,
  "version" INTEGER NOT NULL,
  "url" TEXT NOT NULL,
  "events" "event_type"[],
  "secret" BYTEA NOT NULL,
  "created_at" TIMESTAMPTZ(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  "replaced_at" TIMESTAMPTZ(3),
  "disabled_at" TIMESTAMPTZ(3),
  "disabled_reason" TEXT,
  "failing_since" TIMESTAMPTZ(3),
  CONSTRAINT "webhook_configuration_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "webhook_configuration_version" CHECK ("version" >= 1),
  CONSTRAINT "webhook_configuration_url_length" CHECK (char_length("url") BETWEEN 1 AND 2048),
  CONSTRAINT "webhook_configuration_some_events" CHECK (coalesce(cardinality("events"), 0) BETWEEN 1 AND 3),
  CONSTRAINT "webhook_configuration_secret_length" CHECK (octet_length("secret") = 32),
  CONSTRAINT "webhook_configuration_disabled" CHECK (("disabled_at" IS NULL) = ("disabled_reason" IS NULL)),
  CONSTRAINT "webhook_configuration_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE UNIQUE INDEX "webhook_configuration_in_force" ON "webhook_configuration" ("project_id", "environment")
  WHERE (replaced_at IS NULL);
CREATE UNIQUE INDEX "webhook_configuration_project_id_environment_version_key"
  ON "webhook_configuration" ("project_id", "environment", "version");

ALTER TABLE "verification" ADD COLUMN "webhook_configuration_id" UUID;
ALTER TABLE "verification" ADD CONSTRAINT "verification_webhook_configuration_id_fkey"
  FOREIGN KEY ("webhook_configuration_id") REFERENCES "webhook_configuration" ("id")
  ON DELETE RESTRICT ON UPDATE RESTRICT;

CREATE TABLE "webhook_delivery" (
  "verification_id" UUID NOT NULL,
  "webhook_configuration_id" UUID NOT NULL,
  "state" "webhook_delivery_state" NOT NULL,
  "attempts" INTEGER NOT NULL,
  "failures" SMALLINT NOT NULL DEFAULT 0,
  "resends" INTEGER NOT NULL DEFAULT 0,
  "next_attempt_at" TIMESTAMPTZ(3),
  CONSTRAINT "webhook_delivery_next_attempt" CHECK (("state" = 'pending') = ("next_attempt_at" IS NOT NULL)),
  CONSTRAINT "webhook_delivery_verification_id_fkey" FOREIGN KEY ("verification_id") REFERENCES "event" ("verification_id")
    ON DELETE CASCADE ON UPDATE RESTRICT,
  CONSTRAINT "webhook_delivery_webhook_configuration_id_fkey" FOREIGN KEY ("webhook_configuration_id")
    REFERENCES "webhook_configuration" ("id") ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE INDEX "webhook_delivery_due" ON "webhook_delivery" ("webhook_configuration_id", "next_attempt_at")
  WHERE (state = 'pending'::webhook_delivery_state);
CREATE INDEX "webhook_delivery_webhook_configuration_id_verification_id_idx"
  ON "webhook_delivery" ("webhook_configuration_id", "verification_id");
-- After the index above: on an empty table both cost the planner the same, and it takes the younger. A plan for deliveries
-- by their ids that was made then would go on looking through all webhooks.
ALTER TABLE "webhook_delivery" ADD CONSTRAINT "webhook_delivery_pkey" PRIMARY KEY ("verification_id");

CREATE TABLE "webhook_attempt" (
  "verification_id" UUID NOT NULL,
  "number" INTEGER NOT NULL,
  "started_at" TIMESTAMPTZ(3) NOT NULL,
  "duration_ms" INTEGER,
  "status" SMALLINT,
  "error" TEXT,
  "answer" TEXT,
  CONSTRAINT "webhook_attempt_pkey" PRIMARY KEY ("verification_id", "number"),
  CONSTRAINT "webhook_attempt_number" CHECK ("number" >= 1),
  CONSTRAINT "webhook_attempt_result" CHECK ("duration_ms" IS NULL OR "status" IS NOT NULL OR "error" IS NOT NULL),
  CONSTRAINT "webhook_attempt_verification_id_fkey" FOREIGN KEY ("verification_id")
    REFERENCES "webhook_delivery" ("verification_id") ON DELETE CASCADE ON UPDATE RESTRICT
);
