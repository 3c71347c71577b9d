CREATE TYPE "pending_reason" AS ENUM ('another_number', 'web_sent', 'two_codes', 'without_code');

-- Why a verification is still pending though a message came: the last reason, shown in its window. No foreign key: it
-- would lock the verification in the statement that stores inbound messages.
CREATE TABLE "pending_hint" (
  "verification_id" UUID NOT NULL,
  "reason" "pending_reason" NOT NULL,
  "noticed_at" TIMESTAMPTZ(3) NOT NULL,
  CONSTRAINT "pending_hint_pkey" PRIMARY KEY ("verification_id")
);
CREATE INDEX "pending_hint_noticed_at_idx" ON "pending_hint" ("noticed_at");

-- The verifications that wait for a message of one sender on one destination.
CREATE INDEX "verification_expecting" ON "verification" ("expected_phone", "destination", "id")
  WHERE ((status = 'pending'::verification_status) AND (mode = 'match'::verification_mode));
