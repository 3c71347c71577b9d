-- Whether anything is due at all, which is asked far more often than it is so. It grows at its right end.
CREATE INDEX "webhook_delivery_next" ON "webhook_delivery" ("next_attempt_at")
  WHERE (state = 'pending'::webhook_delivery_state);
