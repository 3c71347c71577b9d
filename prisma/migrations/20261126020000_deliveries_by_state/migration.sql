-- Deliveries are asked for by their state: what never arrived is rare among what did, and was looked for by passing over all of it.
--
-- It may have been made before, beside its writers; one whose making failed is there as well, and of no use.
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('"webhook_delivery_in_state"') AND NOT indisvalid) THEN
    DROP INDEX "webhook_delivery_in_state";
  END IF;
END
$$;
-- The condition holds for every row. It keeps the index from statements that do not say it: on an empty table all indexes cost the
-- planner the same, and it takes the youngest. A plan for deliveries by their ids that was made then would go on looking through
-- all of this one.
CREATE INDEX IF NOT EXISTS "webhook_delivery_in_state" ON "webhook_delivery" ("webhook_configuration_id", "state", "verification_id")
  WHERE (attempts >= 0);
