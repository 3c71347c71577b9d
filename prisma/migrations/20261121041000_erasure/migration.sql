-- An endpoint's answer may echo the number. The mark is on the delivery, since that row is what the result of an attempt
-- under way is written under.
ALTER TABLE "webhook_delivery" ADD COLUMN "erased" BOOLEAN NOT NULL DEFAULT false;

-- A verification's own messages. Ids begin with the time, so it grows at its right end: storing a message takes no longer.
CREATE INDEX "inbound_message_verification_id_idx" ON "inbound_message" ("verification_id")
  WHERE (verification_id IS NOT NULL);
