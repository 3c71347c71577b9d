-- What the core sees to, and no version has written otherwise. A token's numbers that were NULL would have passed the check of
-- what goes with its scope, and no call with it could have been answered; of a sender whose misses were NULL no message could
-- have been stored, since they are compared. The tables are small (senders are those of the last minutes), so each is looked
-- through at once; that of every message comes last.
ALTER TABLE "service_token"
  ALTER COLUMN "numbers" SET NOT NULL,
  -- Not that it is neither `cli` nor `window`: tokens of 0.1.0 may be, and are to go on working and be revoked.
  ADD CONSTRAINT "service_token_source" CHECK ("source" ~ '^[A-Za-z0-9_.-]{1,64}$');
ALTER TABLE "used_code_length" ADD CONSTRAINT "used_code_length_range" CHECK (
  "code_length" BETWEEN 6 AND CASE "code_format" WHEN 'numeric' THEN 10 ELSE 12 END
);
ALTER TABLE "inbound_sender" ALTER COLUMN "miss_times" SET NOT NULL;
