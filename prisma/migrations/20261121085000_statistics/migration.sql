-- The transitions of a span of time. Like the other indexes on times it grows at its right end only.
CREATE INDEX "event_occurred_at_idx" ON "event" ("occurred_at");

-- Counts of an hour (UTC), rolled up behind the statements that make what they count. They say nothing of any person, and
-- stay when verifications are erased. Rows are updated in place, many times in their hour.
CREATE TABLE "number_statistics" (
  "project_id" UUID NOT NULL,
  "environment" "environment" NOT NULL,
  "hour" TIMESTAMPTZ(3) NOT NULL,
  "destination" TEXT NOT NULL,
  "created" INTEGER NOT NULL,
  "verified" INTEGER NOT NULL,
  "expired" INTEGER NOT NULL,
  "cancelled" INTEGER NOT NULL,
  "times_to_verify" INTEGER[],
  "fastest_bucket" SMALLINT,
  "slowest_bucket" SMALLINT,
  "last_verified_at" TIMESTAMPTZ(3),
  CONSTRAINT "number_statistics_pkey" PRIMARY KEY ("project_id", "environment", "hour", "destination"),
  CONSTRAINT "number_statistics_hour" CHECK ("hour" = date_trunc('hour', "hour", 'UTC')),
  CONSTRAINT "number_statistics_counts" CHECK (
    "created" >= 0 AND "verified" >= 0 AND "expired" >= 0 AND "cancelled" >= 0
  ),
  CONSTRAINT "number_statistics_times" CHECK (
    coalesce(cardinality("times_to_verify"), 0) = 48
    AND CASE WHEN "verified" = 0 THEN "fastest_bucket" IS NULL AND "slowest_bucket" IS NULL
      ELSE coalesce("fastest_bucket" >= 0 AND "slowest_bucket" BETWEEN "fastest_bucket" AND 47, false) END
  ),
  CONSTRAINT "number_statistics_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
) WITH (fillfactor = 50);

CREATE TABLE "carrier_statistics" (
  "project_id" UUID NOT NULL,
  "environment" "environment" NOT NULL,
  "hour" TIMESTAMPTZ(3) NOT NULL,
  "carrier" TEXT NOT NULL,
  "verified" INTEGER NOT NULL,
  "times_to_verify" INTEGER[],
  "fastest_bucket" SMALLINT NOT NULL,
  "slowest_bucket" SMALLINT NOT NULL,
  "last_verified_at" TIMESTAMPTZ(3) NOT NULL,
  CONSTRAINT "carrier_statistics_pkey" PRIMARY KEY ("project_id", "environment", "hour", "carrier"),
  CONSTRAINT "carrier_statistics_hour" CHECK ("hour" = date_trunc('hour', "hour", 'UTC')),
  CONSTRAINT "carrier_statistics_carrier" CHECK ("carrier" IN ('', 'SKT', 'KT', 'LGU+')),
  CONSTRAINT "carrier_statistics_verified" CHECK ("verified" > 0),
  CONSTRAINT "carrier_statistics_times" CHECK (
    coalesce(cardinality("times_to_verify"), 0) = 48
    AND "fastest_bucket" >= 0 AND "slowest_bucket" BETWEEN "fastest_bucket" AND 47
  ),
  CONSTRAINT "carrier_statistics_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
) WITH (fillfactor = 50);

CREATE TYPE "reception_kind" AS ENUM ('number', 'carrier');

-- The same of all projects together, by which a number or carrier is found silent.
CREATE TABLE "reception_statistics" (
  "environment" "environment" NOT NULL,
  "hour" TIMESTAMPTZ(3) NOT NULL,
  "kind" "reception_kind" NOT NULL,
  "name" TEXT NOT NULL,
  "created" INTEGER NOT NULL,
  "verified" INTEGER NOT NULL,
  "last_verified_at" TIMESTAMPTZ(3),
  CONSTRAINT "reception_statistics_pkey" PRIMARY KEY ("environment", "hour", "kind", "name"),
  CONSTRAINT "reception_statistics_hour" CHECK ("hour" = date_trunc('hour', "hour", 'UTC')),
  CONSTRAINT "reception_statistics_counts" CHECK ("created" >= 0 AND "verified" >= 0)
) WITH (fillfactor = 50);

-- Everything before this instant is counted, or lies in a gap. Its row is what keeps two processes from counting at once.
CREATE TABLE "statistics_progress" (
  "task" TEXT NOT NULL,
  "counted_until" TIMESTAMPTZ(3) NOT NULL,
  CONSTRAINT "statistics_progress_pkey" PRIMARY KEY ("task")
) WITH (fillfactor = 50);

-- What was made in this span is counted by passing over all verifications, of which those up to an id are done.
CREATE TABLE "statistics_gap" (
  "begins_at" TIMESTAMPTZ(3) NOT NULL,
  "ends_at" TIMESTAMPTZ(3) NOT NULL,
  "done_up_to" UUID NOT NULL,
  CONSTRAINT "statistics_gap_pkey" PRIMARY KEY ("begins_at"),
  CONSTRAINT "statistics_gap_span" CHECK ("begins_at" < "ends_at")
);

-- Counting begins now, and all that was before is a gap.
INSERT INTO "statistics_progress" ("task", "counted_until") VALUES
  ('creations', date_trunc('milliseconds', now())),
  ('transitions', date_trunc('milliseconds', now()));
INSERT INTO "statistics_gap" ("begins_at", "ends_at", "done_up_to") VALUES
  ('-infinity', date_trunc('milliseconds', now()), '00000000-0000-0000-0000-000000000000');
