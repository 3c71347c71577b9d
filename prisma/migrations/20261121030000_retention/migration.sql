-- What has an end is found by it. These indexes grow at their right end only.
CREATE INDEX "idempotency_record_created_at_idx" ON "idempotency_record" ("created_at");
CREATE INDEX "live_code_expires_at_idx" ON "live_code" ("expires_at");
CREATE INDEX "inbound_message_ingested_at_idx" ON "inbound_message" ("ingested_at");

-- A token works until 24 hours after its verification's end, which is no later than 24 hours after its expiry.
ALTER TABLE "window_token" ADD COLUMN "delete_after" TIMESTAMPTZ(3) NOT NULL;
CREATE INDEX "window_token_delete_after_idx" ON "window_token" ("delete_after");

-- How far a pass has come in the order it goes by: a time, or an id. Its row is what keeps two processes from
-- making one pass at once.
CREATE TABLE "retention_progress" (
  "task" TEXT NOT NULL,
  "done_up_to" TEXT NOT NULL,
  CONSTRAINT "retention_progress_pkey" PRIMARY KEY ("task")
);
INSERT INTO "retention_progress" ("task", "done_up_to") VALUES
  ('erase_unmatched_messages', '-infinity'),
  ('erase_matched_messages', '-infinity'),
  ('delete_unmatched_messages', '-infinity'),
  ('delete_matched_messages', '-infinity'),
  ('erase_verifications', '00000000-0000-0000-0000-000000000000');
