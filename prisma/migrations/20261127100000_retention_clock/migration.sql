-- Retention notices by this that the clock has jumped. The table has one row at most.
CREATE TABLE "retention_clock" (
    "id" BOOLEAN NOT NULL DEFAULT true,
    "seen_at" TIMESTAMPTZ(3) NOT NULL,
    "jumped_from" TIMESTAMPTZ(3),
    "jumped_to" TIMESTAMPTZ(3),

    CONSTRAINT "retention_clock_pkey" PRIMARY KEY ("id"),
    CONSTRAINT "retention_clock_one_row" CHECK ("id")
);
