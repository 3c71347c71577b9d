-- What the expiry sweep looks for, in the order it takes it.
CREATE INDEX "verification_due" ON "verification" ("expires_at") WHERE (status = 'pending'::verification_status);
